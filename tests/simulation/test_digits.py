"""A golden run on digits, and the paper's claim there: on virtual time, which is exact."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

import tramfl
from tramfl.learning.data.datasets import load_dataset
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

GOLDEN = Path(__file__).parent / "golden" / "digits-5-uneven-load-aware-0.json"
"""Written by `python -m tests.simulation.test_digits`, when a change is meant to change it."""
SEEDS = range(5)


def golden_columns() -> dict[str, list[object]]:
    rows = tramfl.simulate("digits-5-uneven", policy="load-aware", seed=0).rows
    names = ("node", "samples", "total_seconds", "test_accuracy")
    return {name: [getattr(row, name) for row in rows] for name in names}


def test_the_golden_run_is_still_the_same() -> None:
    golden, found = json.loads(GOLDEN.read_text()), golden_columns()
    assert found["node"] == golden["node"]
    assert [list(s) for s in found["samples"]] == golden["samples"]  # type: ignore[call-overload]
    assert found["total_seconds"] == golden["total_seconds"], "virtual time is exact"
    assert found["test_accuracy"] == pytest.approx(golden["test_accuracy"], abs=1e-6)


def seconds_to_90(policy: str, seed: int, limit: float) -> float:
    """Virtual seconds to 90 %, or those spent without reaching it, `limit` at least."""
    result = tramfl.simulate(
        "digits-5-uneven", policy=policy, seed=seed, targets=[0.9], settings={"budget.seconds": limit}
    )
    seconds = result.seconds_to(0.9)
    assert seconds is not None or result.summary.total_seconds >= limit
    return result.summary.total_seconds if seconds is None else seconds


@pytest.fixture(scope="module")
def load_aware() -> list[float]:
    return [seconds_to_90("load-aware", seed, 300.0) for seed in SEEDS]


@pytest.mark.parametrize("policy", ["random", "variance-first", "tram"])
def test_load_aware_reaches_90_per_cent_in_less_virtual_time(policy: str, load_aware: list[float]) -> None:
    ours = statistics.fmean(load_aware)
    theirs = statistics.fmean(seconds_to_90(policy, seed, 40.0) for seed in SEEDS)
    assert ours < 0.6 * theirs


def test_time_first_never_reaches_90_per_cent_for_it_never_leaves_its_node() -> None:
    scenario = scenario_named("digits-5-uneven")
    setting, loads = scheduling_only(scenario), scenario.loads
    # Staying costs a tenth of what a node holds at the slowest pace at most; leaving costs a transfer at least.
    slowest = loads.flops * loads.compute_share[0]  # type: ignore[operator]
    longest_stay = setting.held.sum(axis=1).max() / 10 * setting.cost.flops_per_sample / slowest
    shortest_hop = setting.cost.model_bits / (loads.bandwidth * loads.bandwidth_share[1])
    assert longest_stay < shortest_hop
    # No node has all labels, and the labels it has are fewer than 90 % of the test images.
    tests = np.bincount(load_dataset("digits", Path()).test_labels)
    assert ((setting.held > 0) @ tests / tests.sum()).max() < 0.9
    for seed in SEEDS:
        rows = tramfl.simulate(scenario, policy="time-first", seed=seed, rounds=40).rows
        assert {row.node for row in rows} == {rows[0].holder}
        assert max(row.test_accuracy or 0.0 for row in rows) < 0.9


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_columns()) + "\n")

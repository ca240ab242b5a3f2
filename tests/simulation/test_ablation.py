"""What `benchmarks/ablation.py` compares: parts of express on one route, and accuracies on equal seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from benchmarks.ablation import check_same_route, points, run_of, scenario_of, with_plain_hops
from tramfl.notation import BadInput
from tramfl.reporting.runs import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A short run of load-aware, and one of int8 whose hops cost as much."""
    out: Path = tmp_path_factory.mktemp("ablation")
    plain, int8 = scenario_of("digits-3", "load-aware", samples=600), scenario_of("digits-3", "int8", samples=600)
    scenarios = {"load-aware": plain, "same route": with_plain_hops(int8, None)}
    return {name: run_of(scenario, name, out, None) for name, scenario in scenarios.items()}


def test_a_hop_at_the_price_of_float32_leaves_the_route_as_it_is(runs: dict[str, Run]) -> None:
    ours, theirs = runs["same route"], runs["load-aware"]
    assert ours.summary.cost.model_bits == pytest.approx(theirs.summary.cost.model_bits, rel=1e-12)
    assert [row.test_accuracy for row in ours.rows] != [row.test_accuracy for row in theirs.rows]
    check_same_route(ours, theirs, "int8")


def test_a_part_that_takes_another_route_is_refused(runs: dict[str, Run]) -> None:
    with pytest.raises(BadInput, match="from round 2 on, `int8` takes another route"):
        check_same_route(replace_round(runs["same route"], 2), runs["load-aware"], "int8")
    shorter = replace(runs["same route"], rows=runs["same route"].rows[:-1])
    with pytest.raises(BadInput, match=f"from round {len(runs['load-aware'].rows)} on"):
        check_same_route(shorter, runs["load-aware"], "int8")


def replace_round(run: Run, round_: int) -> Run:
    """The run with one sample more in one round."""
    row = run.rows[round_ - 1]
    other = changed(row, samples=(row.samples[0] + 1, *row.samples[1:]))
    return replace(run, rows=(*run.rows[: round_ - 1], other, *run.rows[round_:]))


def test_points_are_between_runs_of_one_seed(runs: dict[str, Run]) -> None:
    def seeded(seed: int, accuracy: float) -> Run:
        run = runs["load-aware"]
        rows = tuple(changed(row, test_accuracy=accuracy) for row in run.rows)
        return replace(run, rows=rows, summary=changed(run.summary, seed=seed))

    ours, theirs = [seeded(0, 0.9), seeded(1, 0.8)], [seeded(1, 0.7), seeded(0, 0.95)]
    assert points(ours, theirs) == pytest.approx([-5.0, 10.0])

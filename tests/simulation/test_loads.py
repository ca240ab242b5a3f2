"""Loads are a function of the seed and the round, and of nothing else."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tramfl import simulate
from tramfl.config import LoadModel
from tramfl.draws import first_holder
from tramfl.notation import BadInput
from tramfl.record import Row, RowDecision, RowLoads, keep_whole_rows
from tramfl.simulation.loads import ReplayedLoads, RoundLoads, load_source

NODES = 4
UNIFORM = LoadModel()
AR1 = LoadModel(kind="ar1", memory=0.8)


def links(loads: RoundLoads) -> list[float]:
    return [loads.bandwidth[i][j] for i in range(NODES) for j in range(i)]


def shares(settings: LoadModel, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """u_i^k and u_ij^k over this many rounds."""
    source = load_source(settings, NODES, seed=3)
    drawn = [source.at(k) for k in range(1, rounds + 1)]
    return np.array([d.flops for d in drawn]) / 10e12, np.array([links(d) for d in drawn]) / 200e6


@pytest.mark.parametrize("settings", [UNIFORM, AR1], ids=["uniform", "ar1"])
def test_each_round_alone_is_uniform_over_the_papers_ranges(settings: LoadModel) -> None:
    for drawn, low in zip(shares(settings, 4000), (0.01, 0.005), strict=True):
        assert drawn.min() >= low
        assert drawn.max() <= 1.0
        quantiles = np.quantile(drawn, [0.1, 0.5, 0.9])
        assert quantiles == pytest.approx(low + (1.0 - low) * np.array([0.1, 0.5, 0.9]), abs=0.03)


@pytest.mark.parametrize("settings", [UNIFORM, AR1, LoadModel(kind="constant")], ids=lambda s: s.kind)
def test_a_link_has_one_value_whichever_end_asks_and_none_to_itself(settings: LoadModel) -> None:
    bandwidth = np.array(load_source(settings, NODES, seed=0).at(5).bandwidth)
    assert np.array_equal(bandwidth, bandwidth.T)
    assert np.isinf(np.diag(bandwidth)).all()
    assert np.isfinite(bandwidth).sum() == NODES * (NODES - 1)


@pytest.mark.parametrize("settings", [UNIFORM, AR1, LoadModel(kind="constant")], ids=lambda s: s.kind)
def test_a_link_has_the_value_of_its_row_however_it_is_looked_up(settings: LoadModel) -> None:
    loads = load_source(settings, 5, 1).at(3)
    one, other = np.indices((5, 5)).reshape(2, -1)
    rows = [value for row in loads.bandwidth for value in row]
    assert [loads.link(i, j) for i, j in zip(one.tolist(), other.tolist(), strict=True)] == rows
    assert loads.along(one, other).tolist() == rows


@pytest.mark.parametrize("settings", [UNIFORM, AR1], ids=["uniform", "ar1"])
def test_a_round_has_the_same_loads_in_whatever_order_rounds_are_asked_for(settings: LoadModel) -> None:
    in_order = load_source(settings, NODES, seed=1)
    expected = {k: in_order.at(k) for k in range(1, 30)}
    at_random = load_source(settings, NODES, seed=1)
    for k in (17, 3, 3, 29, 1, 28, 17):
        assert at_random.at(k) == expected[k]


@pytest.mark.parametrize("settings", [UNIFORM, AR1], ids=["uniform", "ar1"])
def test_another_round_and_another_seed_have_other_loads(settings: LoadModel) -> None:
    source = load_source(settings, NODES, seed=1)
    assert source.at(1) != source.at(2)
    assert source.at(1) != load_source(settings, NODES, seed=2).at(1)


def test_constant_loads_are_all_a_node_has_in_every_round() -> None:
    settings = LoadModel(kind="constant", flops=(1e12, 2e12, 3e12, 4e12), bandwidth=5e6)
    source = load_source(settings, NODES, seed=0)
    assert source.at(1) == source.at(99)
    assert source.at(1).flops == [1e12, 2e12, 3e12, 4e12]
    assert set(links(source.at(1))) == {5e6}


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_a_persistent_load_remembers_as_much_as_its_setting_says(memory: float) -> None:
    for drawn in shares(LoadModel(kind="ar1", memory=memory), 4000):
        lagged = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
        # The rank correlation of normal numbers is a little below their own: (6 / pi) asin(r / 2).
        assert lagged == pytest.approx(6 / math.pi * math.asin(memory / 2), abs=0.04)


def test_the_loads_of_two_nodes_do_not_follow_each_other() -> None:
    flops, _ = shares(AR1, 4000)
    assert abs(np.corrcoef(flops[:, 0], flops[:, 1])[0, 1]) < 0.12


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (LoadModel(flops=(1e12, 2e12)), "loads.flops"),
        (LoadModel(compute_share=(0.9, 0.1)), "loads.compute_share"),
        (LoadModel(bandwidth_share=(0.9, 0.1)), "loads.bandwidth_share"),
        (LoadModel(kind="replay"), "loads.trace"),
    ],
)
def test_settings_that_cannot_be_used_name_their_key(settings: LoadModel, key: str) -> None:
    with pytest.raises(BadInput, match=key):
        load_source(settings, NODES, seed=0)


# Replay.


def row(round_: int, holder: int, flops: tuple[float | None, ...], bandwidth: tuple[float | None, ...]) -> Row:
    return Row(
        round=round_,
        holder=holder,
        node=None,
        samples=(0,),
        loads=RowLoads(flops, bandwidth),
        compute_seconds=0.0,
        transfer_seconds=0.0,
        idle_seconds=1.0,
        total_seconds=float(round_),
        used=(0,),
        label_variance=0.0,
        decision=RowDecision("by hand", "Nobody trains.", 1.0, ()),
    )


TRACE = [
    row(1, 0, (1e9, 2e9, 3e9), (None, 10.0, 20.0)),
    row(2, 1, (4e9, 5e9, None), (30.0, None, None)),
    row(3, 2, (7e9, 8e9, 9e9), (40.0, 50.0, None)),
]


def test_a_replay_gives_back_what_was_recorded_and_begins_again_at_the_end() -> None:
    source = ReplayedLoads(TRACE, 3)
    for k in (1, 4, 301):
        assert source.at(k).flops == [1e9, 2e9, 3e9]
        assert source.at(k).bandwidth[0] == [math.inf, 10.0, 20.0]
    assert source.at(3).bandwidth[2] == [40.0, 50.0, math.inf]
    assert source.at(2).flops[:2] == [4e9, 5e9]


def test_a_node_that_did_not_report_does_not_report_in_a_replay() -> None:
    assert math.isnan(ReplayedLoads(TRACE, 3).at(2).flops[2])


def test_a_link_that_was_not_recorded_has_the_value_it_was_last_seen_with_or_the_mean() -> None:
    source = ReplayedLoads(TRACE, 3)
    assert source.at(1).bandwidth[1][2] == 30.0, "the mean of 10, 20, 30, 40 and 50"
    assert source.at(2).bandwidth[0][2] == 20.0
    assert source.at(2).bandwidth[0][1] == source.at(2).bandwidth[1][0] == 30.0


def test_a_replay_reads_a_recorded_file(tmp_path: Path) -> None:
    keep_whole_rows(tmp_path / "rounds.jsonl", TRACE)
    settings = LoadModel(kind="replay", trace=str(tmp_path / "rounds.jsonl"))
    assert load_source(settings, 3, seed=0).at(3) == ReplayedLoads(TRACE, 3).at(3)


def test_a_replay_of_another_number_of_nodes_is_refused() -> None:
    with pytest.raises(BadInput, match="3 nodes; the scenario has 5"):
        ReplayedLoads(TRACE, 5)


def test_a_replay_of_an_empty_trace_is_refused() -> None:
    with pytest.raises(BadInput, match="no rounds"):
        ReplayedLoads([], 3)


def test_a_replay_of_what_really_happened_takes_as_long_and_decides_alike() -> None:
    """Rounds that took three times as long as predicted, and one with a failed attempt, as real ones may."""
    result = simulate("digits-5-uneven", train=False, rounds=40)
    recorded, total = [], 0.0
    for row in result.rows:
        lost = 2.0 if row.round == 7 else 0.0
        seconds = {
            "compute_seconds": 3 * row.compute_seconds,
            "transfer_seconds": 3 * row.transfer_seconds,
            "lost_seconds": lost,
        }
        total += sum(seconds.values()) + row.idle_seconds
        recorded.append(replace(row, **seconds, total_seconds=total))
    # Other times make other decisions, sooner or later: what comes of these is a record that agrees with itself.
    first = simulate("digits-5-uneven", train=False, rounds=40, loads=ReplayedLoads(recorded, 5)).rows
    assert (first[0].node, first[0].samples) == (recorded[0].node, recorded[0].samples)
    assert first[0].total_seconds == pytest.approx(recorded[0].total_seconds)
    again = simulate("digits-5-uneven", train=False, rounds=40, loads=ReplayedLoads(first, 5)).rows
    assert [(row.node, row.samples) for row in again] == [(row.node, row.samples) for row in first]
    assert [row.total_seconds for row in again] == pytest.approx([row.total_seconds for row in first])


def test_a_replay_of_real_sites_counts_their_overhead_and_decides_alike() -> None:
    result = simulate("digits-5-uneven", train=False, rounds=40)
    recorded, total = [], 0.0
    for row in result.rows:
        total += row.compute_seconds + row.transfer_seconds + row.idle_seconds + 0.1 * row.round
        recorded.append(replace(row, overhead_seconds=0.1 * row.round, total_seconds=total))
    first = simulate("digits-5-uneven", train=False, rounds=40, loads=ReplayedLoads(recorded, 5)).rows
    assert [row.overhead for row in first] == pytest.approx([0.1 * k for k in range(1, 41)])
    again = simulate("digits-5-uneven", train=False, rounds=40, loads=ReplayedLoads(first, 5)).rows
    assert [(row.node, row.samples) for row in again] == [(row.node, row.samples) for row in first]
    assert [row.total_seconds for row in again] == pytest.approx([row.total_seconds for row in first])


def test_times_of_a_record_hold_only_where_the_same_is_done_again() -> None:
    result = simulate("digits-5-uneven", train=False, rounds=30)
    slow = [replace(row, compute_seconds=1000.0, transfer_seconds=1000.0) for row in result.rows]
    other = simulate("digits-5-uneven", train=False, rounds=30, policy="random", loads=ReplayedLoads(slow, 5))
    assert any(row.compute_seconds < 1000.0 for row in other.rows if row.node is not None)


class ComesAndGoes:
    """Loads of a federation that begins at node 3 and without node 4, which is there for every other five rounds."""

    def __init__(self) -> None:
        self._drawn = load_source(UNIFORM, 5, seed=0)

    def at(self, round_: int) -> RoundLoads:
        loads = self._drawn.at(round_)
        there = (round_ - 1) // 5 % 2 == 1
        flops: Any = [None if node == 4 and not there else f for node, f in enumerate(loads.flops)]
        return dataclasses.replace(loads, flops=flops, holder=3)


@pytest.mark.parametrize("policy", ["load-aware", "random"])
def test_a_replay_decides_alike_where_a_site_was_late_came_back_and_was_not_drawn_to_begin(policy: str) -> None:
    assert first_holder(0, 5) != 3
    recorded = simulate("digits-5", train=False, rounds=60, policy=policy, loads=ComesAndGoes()).rows
    assert [list(row.loads.flops) for row in recorded] == [ComesAndGoes().at(row.round).flops for row in recorded]
    assert recorded[0].holder == 3
    assert any(row.node == 4 for row in recorded)

    again = simulate("digits-5", train=False, rounds=60, policy=policy, loads=ReplayedLoads(recorded, 5)).rows
    decisions = [[(row.node, row.samples, row.holder) for row in rows] for rows in (recorded, again)]
    assert decisions[0] == decisions[1]
    assert [row.total_seconds for row in again] == pytest.approx([row.total_seconds for row in recorded])

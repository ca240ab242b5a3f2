"""Runs in which every node keeps a model: the clock of every method from the loads alone, records, resuming."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

import tramfl
from tramfl.config import LoadModel
from tramfl.methods import method_named, method_names, with_method
from tramfl.notation import BadInput
from tramfl.record import MODEL_FILE, Row, RunFolder, Sent
from tramfl.scheduling.load_aware import LoadAware
from tramfl.simulation.loads import RoundLoads, UniformLoads, load_source
from tramfl.simulation.play import Request
from tramfl.simulation.play import play as play_request
from tramfl.simulation.scenarios import scenario_named

SCENARIO, NODES = "digits-5", 5
FLOPS_PER_SAMPLE, MODEL_BITS, SAMPLES = 71.57e6, 38.42e6, 8 * 32
KEPT = [name for name in method_names() if "exchange.rule" in method_named(name).settings]


def play(method: str, rounds: int = 12, **keys: Any) -> tuple[Row, ...]:
    settings = {"exchange.local_steps": 8, **keys.pop("settings", {})}
    return tramfl.simulate(SCENARIO, method=method, rounds=rounds, train=False, settings=settings, **keys).rows


def loads(seed: int = 0) -> UniformLoads:
    return UniformLoads(LoadModel(), np.full(NODES, 10e12), seed)


def sent(row: Row) -> tuple[Sent, ...]:
    assert row.sent is not UNSET
    return row.sent


def server_round(now: RoundLoads, links: list[float], wait_for: int) -> float:
    """Down, train, up at every node; the server goes on with the first `wait_for`."""
    times = [2 * MODEL_BITS / b + FLOPS_PER_SAMPLE * SAMPLES / f for f, b in zip(now.flops, links, strict=True)]
    return sorted(times)[wait_for - 1]


def mixing_round(now: RoundLoads, row: Row) -> float:
    """Train everywhere, then send along every link of the round."""
    ready = {each.node: FLOPS_PER_SAMPLE * SAMPLES / now.flops[each.node] for each in row.by_node}
    arrivals = [ready[each.source] + each.bits / now.bandwidth[each.source][each.target] for each in sent(row)]
    return max(*ready.values(), *arrivals)


def feddc_round(now: RoundLoads, row: Row) -> float:
    """Train everywhere, then send; the answers to what was gathered follow what came last."""
    if row.round % 10:
        return mixing_round(now, row)
    ready = [FLOPS_PER_SAMPLE * SAMPLES / f for f in now.flops]
    middle = sent(row)[0].target
    links = now.bandwidth[middle]
    others = [node for node in range(NODES) if node != middle]
    gathered = max(ready[middle], *(ready[node] + MODEL_BITS / links[node] for node in others))
    return gathered + max(MODEL_BITS / links[node] for node in others)


def cmfd_round(now: RoundLoads, row: Row) -> float:
    """Train, predict, exchange outputs, distil."""
    once = [FLOPS_PER_SAMPLE * 100 / f for f in now.flops]
    ready = [FLOPS_PER_SAMPLE * SAMPLES / f + seconds / 3 for f, seconds in zip(now.flops, once, strict=True)]
    arrived = list(ready)
    for each in sent(row):
        assert each.bits == 100 * 10 * 32
        came = ready[each.source] + each.bits / now.bandwidth[each.source][each.target]
        arrived[each.target] = max(arrived[each.target], came)
    return max(a + o for a, o in zip(arrived, once, strict=True))


CLOCKS: dict[str, Callable[[RoundLoads, Row], float]] = {
    "fedavg": lambda now, row: server_round(now, now.bandwidth[0], NODES),
    "fedavg-m-of-n": lambda now, row: server_round(now, now.bandwidth[0], 3),
    "fedprox": lambda now, row: server_round(now, now.bandwidth[0], NODES),
    "cyclic": lambda now, row: (
        FLOPS_PER_SAMPLE * SAMPLES / now.flops[row.node or 0]
        + (0.0 if row.holder == row.node else MODEL_BITS / now.bandwidth[row.holder][row.node or 0])
    ),
    "gossip": mixing_round,
    "gossip-ring": mixing_round,
    "gossip-pairs": mixing_round,
    "gossip-m-of-n": mixing_round,
    "feddc": feddc_round,
    "feddc-load-aware": feddc_round,
    "pdmm": mixing_round,
    "admm": mixing_round,
    "cmfd": cmfd_round,
}
"""Each barrier method's round, from the loads alone; the asynchronous one is in test_arena_learning."""


@pytest.mark.parametrize("method", CLOCKS)
def test_the_clock_follows_from_the_loads_alone(method: str) -> None:
    source, total = loads(), 0.0
    for row in play(method):
        total += CLOCKS[method](source.at(row.round), row)
        assert row.total_seconds == pytest.approx(total, rel=1e-12)
        parts = row.compute_seconds + row.transfer_seconds + row.idle_seconds
        assert parts == pytest.approx(row.decision.predicted_seconds, rel=1e-12)


def test_every_method_in_which_nodes_keep_models_has_its_clock_checked() -> None:
    assert set(KEPT) - set(CLOCKS) == {"fedavg-beside", "gossip-async"}


def test_a_server_beside_the_nodes_has_links_of_its_own() -> None:
    beside = load_source(LoadModel(), NODES + 1, 2**31)
    total = 0.0
    for row in play("fedavg-beside"):
        total += server_round(loads().at(row.round), beside.at(row.round).bandwidth[NODES][:NODES], NODES)
        assert row.total_seconds == pytest.approx(total, rel=1e-12)
        assert {each.source for each in sent(row)} | {each.target for each in sent(row)} == set(range(NODES + 1))


def test_in_slots_work_runs_through_the_slots_that_it_lasts() -> None:
    settings = {"loads.clock": "slot", "loads.slot_seconds": 0.25}
    (row,) = play("gossip-pairs", 1, settings=settings)
    source = loads()

    def lasts(work: float, begin: float, rate: Callable[[RoundLoads], float]) -> float:
        now = begin
        while work > 0:
            slot = math.floor(now / 0.25 + 1e-9) + 1
            speed, end = rate(source.at(slot)), slot * 0.25
            if speed * (end - now) >= work:
                return now + work / speed
            work, now = work - speed * (end - now), end
        return now

    ready = [lasts(FLOPS_PER_SAMPLE * SAMPLES, 0.0, lambda at, n=n: at.flops[n]) for n in range(NODES)]  # type: ignore[misc]
    ends = [
        lasts(MODEL_BITS, ready[s.source], lambda at, s=s: at.bandwidth[s.source][s.target])  # type: ignore[misc]
        for s in sent(row)
    ]
    assert row.total_seconds == pytest.approx(max(*ready, *ends), rel=1e-9)


@pytest.mark.parametrize("method", KEPT)
def test_rows_say_who_trained_what_and_every_sample_is_used_as_often_as_any_other(method: str) -> None:
    rows = play(method, 30)
    held = np.array(tramfl.simulate(SCENARIO, rounds=1, train=False).held)
    used = np.zeros_like(held)
    for row in rows:
        assert tuple(map(sum, zip(*(each.samples for each in row.by_node), strict=True))) == row.samples
        for each in row.by_node:
            assert sum(each.samples) == SAMPLES
            used[each.node] += each.samples
        assert row.sent_bits == sum(each.bits for each in sent(row))
    assert tuple(used.sum(axis=0).tolist()) == rows[-1].used
    for node in range(NODES):
        due = held[node] * used[node].sum() / held[node].sum()
        assert np.abs(used[node] - due).max() <= 1.5


@pytest.mark.parametrize("method", KEPT)
def test_a_schedule_that_stopped_anywhere_goes_on_as_if_it_had_not(method: str, tmp_path: Path) -> None:
    whole = play(method, 7)
    play(method, 4, out=tmp_path)
    assert tramfl.simulate(tmp_path / "config.toml", rounds=7, train=False, out=tmp_path, resume=True).rows == whole
    assert tuple(RunFolder(tmp_path).rows()) == whole


def test_a_round_is_skipped_where_nobody_reports_and_an_absent_node_takes_no_part() -> None:
    class Quiet:
        def at(self, round_: int) -> RoundLoads:
            now = loads().at(round_)
            silent = range(NODES) if round_ == 2 else (3,)
            flops: list[Any] = [None if n in silent else f for n, f in enumerate(now.flops)]
            return RoundLoads(flops, now.bandwidth)

    for method in ("gossip", "fedavg", "pdmm", "gossip-async", "feddc"):
        rows = play(method, 4, loads=Quiet())
        assert all(each.node != 3 for row in rows for each in row.by_node)
        assert all(3 not in (each.source, each.target) for row in rows for each in sent(row))
        if method != "gossip-async":
            assert [row.node is None for row in rows] == [False, True, False, False]
            assert rows[1].idle_seconds == 1.0


@pytest.mark.parametrize("method", ["gossip", "gossip-ring", "pdmm", "gossip-async"])
def test_a_link_without_a_bandwidth_between_nodes_that_report_is_refused_where_something_is_sent(method: str) -> None:
    class Torn:
        def at(self, round_: int) -> RoundLoads:
            now = loads().at(round_)
            links: list[list[Any]] = [list(row) for row in now.bandwidth]
            links[0][1] = links[1][0] = None
            return RoundLoads(now.flops, links)

    with pytest.raises(
        BadInput, match=r"has no bandwidth from node (0 to node 1|1 to node 0), where the method sends"
    ):
        play(method, 20, loads=Torn())


def test_settings_that_a_method_cannot_follow_are_refused_in_one_sentence() -> None:
    for method, settings, words in (
        ("pdmm", {"exchange.topology": "matching"}, "choose full or ring"),
        ("pdmm", {"exchange.local_steps": 1}, "at least 2 steps"),
        ("gossip", {"exchange.rule": "swarm"}, "choose one of fedavg, cyclic"),
        ("fedavg-beside", {"loads.flops": [1e12] * 5}, 'choose "node"'),
    ):
        with pytest.raises(BadInput, match=words):
            play(method, 1, settings=settings)
    with pytest.raises(BadInput, match="has none, for every node keeps a model"):
        tramfl.simulate(SCENARIO, policy=LoadAware, train=False, settings={"exchange.rule": "gossip"})


def test_nodes_that_train_in_processes_of_their_own_come_to_the_same_models(tmp_path: Path) -> None:
    base = scenario_named("digits-3")
    short = replace(base, budget=replace(base.budget, rounds=2, targets=(1.0,)))
    found = [
        play_request(
            Request(
                scenario=with_method(short, method_named("pdmm")),
                out=tmp_path / str(processes),
                threads=1,
                processes=processes,
            )
        ).rows
        for processes in (1, 2)
    ]
    assert found[0] == found[1]
    one, other = ((tmp_path / name / MODEL_FILE).read_bytes() for name in ("1", "2"))
    assert one == other


def test_a_run_that_trains_is_taken_up_from_its_saved_models(tmp_path: Path) -> None:
    for method in ("gossip-async", "pdmm", "cmfd"):
        keys: dict[str, Any] = {"method": method, "targets": 1.0}
        whole = tramfl.simulate("digits-3", rounds=4, **keys)
        tramfl.simulate("digits-3", rounds=2, out=tmp_path / method, **keys)
        again = tramfl.simulate("digits-3", rounds=4, out=tmp_path / method, resume=True, **keys)
        assert again.rows == whole.rows
        models = whole.rows[-1].models
        assert models is not UNSET
        assert models.headline == "nodes"
        assert models.mean == pytest.approx(np.mean([a for a in models.nodes if a is not None]))
        assert models.worst == min(a for a in models.nodes if a is not None)
        assert whole.rows[-1].test_accuracy == models.mean
        assert (models.consensus is None) == (method == "cmfd")

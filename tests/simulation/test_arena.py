"""Runs in which every node keeps a model: the clock of every method from the loads alone, records, resuming."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace

import tramfl
from tests.simulation.hand_clock import HandClock
from tramfl.config import Budget, LoadModel, Partition
from tramfl.learning.data.datasets import load_dataset
from tramfl.learning.threads import threads_as_they_were
from tramfl.learning.training.peers import PeerLearner
from tramfl.methods import method_named, method_names, with_method
from tramfl.notation import BadInput
from tramfl.record import MODEL_FILE, Row, RunFolder, Sent
from tramfl.scheduling.load_aware import LoadAware
from tramfl.simulation.arena import Arena
from tramfl.simulation.loads import RoundLoads, UniformLoads, load_source
from tramfl.simulation.play import Request
from tramfl.simulation.play import play as play_request
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only, with_training

SCENARIO, NODES = "digits-5", 5
FLOPS_PER_SAMPLE, MODEL_BITS, SAMPLES = 71.57e6, 38.42e6, 8 * 32
FLOPS = FLOPS_PER_SAMPLE * SAMPLES
KEPT = [name for name in method_names() if "exchange.rule" in method_named(name).settings]


def play(method: str, rounds: int = 12, **keys: Any) -> tuple[Row, ...]:
    settings = {"exchange.local_steps": 8, **keys.pop("settings", {})}
    return tramfl.simulate(SCENARIO, method=method, rounds=rounds, train=False, settings=settings, **keys).rows


def loads(seed: int = 0) -> UniformLoads:
    return UniformLoads(LoadModel(), np.full(NODES, 10e12), seed)


def sent(row: Row) -> tuple[Sent, ...]:
    assert row.sent is not UNSET
    return row.sent


class Beside:
    """The nodes' loads and the links of a server beside them, each from the draws of its own."""

    def at(self, round_: int) -> RoundLoads:
        nodes, server = loads().at(round_), load_source(LoadModel(), NODES + 1, 2**31).at(round_).bandwidth[NODES]
        links = [[*row, server[node]] for node, row in enumerate(nodes.bandwidth)]
        return RoundLoads([*nodes.flops, math.nan], [*links, list(server)])


def server_round(clock: HandClock, row: Row, begin: float, server: int = 0, wait_for: int = NODES) -> float:
    """Down, train, up at every node; the server goes on with the first `wait_for`."""
    ends = []
    for node in range(NODES):
        there = begin if node == server else clock.sent(MODEL_BITS, server, node, row.round, begin)
        trained = clock.trained(FLOPS, node, row.round, there)
        ends.append(trained if node == server else clock.sent(MODEL_BITS, node, server, row.round, trained))
    return sorted(ends)[wait_for - 1]


def cyclic_round(clock: HandClock, row: Row, begin: float) -> float:
    """One transfer, unless the model is there, then one training."""
    assert row.node is not None
    there = begin if row.holder == row.node else clock.sent(MODEL_BITS, row.holder, row.node, row.round, begin)
    return clock.trained(FLOPS, row.node, row.round, there)


def mixing_round(clock: HandClock, row: Row, begin: float) -> float:
    """Train everywhere, then send along every link of the round."""
    ready = {each.node: clock.trained(FLOPS, each.node, row.round, begin) for each in row.by_node}
    arrivals = [clock.sent(each.bits, each.source, each.target, row.round, ready[each.source]) for each in sent(row)]
    return max(*ready.values(), *arrivals)


def feddc_round(clock: HandClock, row: Row, begin: float) -> float:
    """Train everywhere, then send; the answers to what was gathered follow what came last."""
    if row.round % 10:
        return mixing_round(clock, row, begin)
    ready = [clock.trained(FLOPS, node, row.round, begin) for node in range(NODES)]
    middle = sent(row)[0].target
    others = [node for node in range(NODES) if node != middle]
    arrivals = [clock.sent(MODEL_BITS, node, middle, row.round, ready[node]) for node in others]
    gathered = max(ready[middle], *arrivals)
    return max(clock.sent(MODEL_BITS, middle, node, row.round, gathered) for node in others)


def cmfd_round(clock: HandClock, row: Row, begin: float) -> float:
    """Train, predict, exchange outputs, distil."""
    once = FLOPS_PER_SAMPLE * 100
    trained = [clock.trained(FLOPS, node, row.round, begin) for node in range(NODES)]
    ready = [clock.trained(once / 3, node, row.round, at) for node, at in enumerate(trained)]
    arrived = list(ready)
    for each in sent(row):
        assert each.bits == 100 * 10 * 32
        came = clock.sent(each.bits, each.source, each.target, row.round, ready[each.source])
        arrived[each.target] = max(arrived[each.target], came)
    return max(clock.trained(once, node, row.round, at) for node, at in enumerate(arrived))


CLOCKS: dict[str, Callable[[HandClock, Row, float], float]] = {
    "fedavg": server_round,
    "fedavg-m-of-n": partial(server_round, wait_for=3),
    "fedavg-beside": partial(server_round, server=NODES),
    "fedprox": server_round,
    "cyclic": cyclic_round,
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
"""When each barrier method's round ends, from the loads alone; the asynchronous one is in test_arena_learning."""


@pytest.mark.parametrize("slot", [None, 0.25])
@pytest.mark.parametrize("method", CLOCKS)
def test_the_clock_follows_from_the_loads_alone(method: str, slot: float | None) -> None:
    in_slots = {} if slot is None else {"loads.clock": "slot", "loads.slot_seconds": slot}
    clock, total = HandClock(Beside() if method == "fedavg-beside" else loads(), slot), 0.0
    for row in play(method, settings=in_slots):
        total = CLOCKS[method](clock, row, total)
        assert row.total_seconds == pytest.approx(total, rel=1e-12 if slot is None else 1e-9)
        parts = row.compute_seconds + row.transfer_seconds + row.idle_seconds
        assert parts == pytest.approx(row.decision.predicted_seconds, rel=1e-12)


def test_every_method_in_which_nodes_keep_models_has_its_clock_checked() -> None:
    assert set(KEPT) - set(CLOCKS) == {"gossip-async"}


@pytest.mark.parametrize("slot", [None, 0.25])
def test_load_aware_feddc_ends_its_rounds_as_soon_as_any_permutation_could(slot: float | None) -> None:
    in_slots = {} if slot is None else {"loads.clock": "slot", "loads.slot_seconds": slot}
    clock, begin = HandClock(loads(), slot), 0.0
    places = [order for order in permutations(range(NODES)) if all(i != j for i, j in enumerate(order))]
    for row in play("feddc-load-aware", 9, settings={**in_slots, "exchange.local_steps": 100}):
        ready = [clock.trained(FLOPS_PER_SAMPLE * 3200, node, row.round, begin) for node in range(NODES)]
        ends = [
            [clock.sent(MODEL_BITS, i, j, row.round, ready[i]) if i != j else math.inf for j in range(NODES)]
            for i in range(NODES)
        ]
        best = min(max(ends[i][j] for i, j in enumerate(order)) for order in places)
        assert row.total_seconds == pytest.approx(best, rel=1e-9)
        begin = row.total_seconds


def test_feddc_passes_models_on_and_averages_them_as_often_as_it_is_asked_to() -> None:
    rows = play("feddc", settings={"exchange.permute_every": 3, "exchange.average_every": 4})
    counts = {row.round: len(sent(row)) for row in rows}
    assert counts == {k: 2 * (NODES - 1) if k % 4 == 0 else NODES if k % 3 == 0 else 0 for k in range(1, 13)}
    ways = {tuple((each.source, each.target) for each in sent(row)) for row in play("feddc", 9)}
    assert len(ways) > 6


def test_pairs_are_drawn_anew_in_every_round() -> None:
    met: set[tuple[int, int]] = set()
    for row in play("gossip-pairs", 30):
        pairs = {(each.source, each.target) for each in sent(row)}
        assert len(pairs) == len({node for pair in pairs for node in pair}) == NODES - 1
        assert pairs == {(other, one) for one, other in pairs}
        met |= pairs
    assert len(met) == NODES * (NODES - 1)


@pytest.mark.parametrize("ring", [False, True])
def test_an_asynchronous_node_averages_with_each_of_its_neighbours_and_with_no_other(ring: bool) -> None:
    rows = play("gossip-async", 30, settings={"exchange.topology": "ring"} if ring else {})
    met = {(each.source, each.target) for row in rows for each in sent(row)}
    apart = (1, NODES - 1) if ring else range(1, NODES)
    assert met == {(node, (node + way) % NODES) for node in range(NODES) for way in apart}


def test_a_server_beside_the_nodes_sends_to_every_node_and_hears_from_it() -> None:
    ways = [(NODES, node) for node in range(NODES)] + [(node, NODES) for node in range(NODES)]
    for row in play("fedavg-beside"):
        assert [(each.source, each.target) for each in sent(row)] == ways


@pytest.mark.parametrize("method", ["gossip-m-of-n", "fedavg-m-of-n", "feddc", "pdmm", "cmfd"])
def test_a_round_goes_on_with_the_nodes_that_are_first_by_their_loads(method: str) -> None:
    clock, begin = HandClock(loads()), 0.0
    for row in play(method, settings={"exchange.wait_for": 0.5}):

        def ready(node: int, round_: int = row.round, begin: float = begin) -> float:
            there = begin
            over_links = method == "fedavg-m-of-n" and node != 0
            if over_links:
                there = clock.sent(MODEL_BITS, 0, node, round_, begin)
            trained = clock.trained(FLOPS, node, round_, there)
            return clock.sent(MODEL_BITS, node, 0, round_, trained) if over_links else trained

        assert [each.node for each in row.by_node] == sorted(sorted(range(NODES), key=ready)[:3])
        begin = row.total_seconds


@pytest.mark.parametrize("method", sorted({*KEPT} - {"pdmm", "admm"}))
def test_models_that_no_step_reads_again_are_forgotten(method: str) -> None:
    base = scenario_named("mnist-10")
    many = replace(base, partition=Partition(layout="iid", nodes=12), budget=Budget(rounds=80))
    scenario = with_method(many, method_named(method))
    arena = Arena(scenario, scheduling_only(scenario), keep_rows=False)
    for _ in arena.rounds():
        pass
    assert len(arena.live) <= 4 * 12


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
def test_short_rows_of_many_nodes_say_the_same_as_whole_ones(method: str) -> None:
    many = {"partition": {"layout": "iid", "nodes": 60}}
    short, whole = (play(method, 2, settings={**many, "record.rows": rows}) for rows in ("short", "whole"))
    for one, other in zip(short, whole, strict=True):
        assert one.sent is UNSET
        assert other.sent_to is UNSET
        assert other.transfers == sent(other)
        assert Counter(one.transfers) == Counter(other.transfers)
        assert one.sent_bits == other.sent_bits == pytest.approx(sum(each.bits for each in one.transfers))
        assert len(msgspec.json.encode(one.sent_to)) < 60 * 2 * 40
        assert one.by_node == other.by_node


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


def test_an_asynchronous_node_waits_in_a_cycle_in_which_it_does_not_report() -> None:
    class Pausing:
        def at(self, round_: int) -> RoundLoads:
            now = loads().at(round_)
            flops: list[Any] = [None] * NODES if round_ == 2 else now.flops
            return RoundLoads(flops, now.bandwidth)

    rows = play("gossip-async", 20, loads=Pausing())
    assert sum(len(row.by_node) for row in rows) == 20 * NODES - NODES  # of every node, the second cycle
    assert sum(row.idle_seconds for row in rows) > 0
    assert sum(row.idle_seconds for row in play("gossip-async", 20)) == 0


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
        ("gossip", {"transit.codec": "int8"}, 'with gossip every node keeps a model: leave it at "float32"'),
        ("cmfd", {"evaluation.readout": "average"}, 'leave it at "last"'),
    ):
        with pytest.raises(BadInput, match=words):
            play(method, 1, settings=settings)
    with pytest.raises(BadInput, match="has none, for every node keeps a model"):
        tramfl.simulate(SCENARIO, policy=LoadAware, train=False, settings={"exchange.rule": "gossip"})


def test_the_test_set_is_never_shared(tmp_path: Path) -> None:
    digits = load_dataset("digits", tmp_path)
    parts: dict[str, Any] = {"test_images": digits.test_images, "test_labels": digits.test_labels}
    mixed = np.concatenate([digits.train_images[:200], digits.test_images[:20]])
    labels = np.concatenate([digits.train_labels[:200], digits.test_labels[:20]])
    np.savez(tmp_path / "mixed.npz", train_images=mixed, train_labels=labels, **parts)
    np.savez(tmp_path / "apart.npz", train_images=mixed[:200], train_labels=labels[:200], **parts)

    def shares(source: str) -> tuple[Row, ...]:
        return tramfl.simulate(SCENARIO, method="cmfd", rounds=1, settings={"exchange.shared": source}).rows

    with pytest.raises(BadInput, match=r"has 20 of the [\d,]+ test inputs .* name other data, or held-back"):
        shares(f"npz:{tmp_path / 'mixed.npz'}")
    with pytest.raises(BadInput, match=r"exchange\.shared: dataset = 'test': use digits"):
        shares("test")
    (row,) = shares(f"npz:{tmp_path / 'apart.npz'}")
    assert row.sent_bits == 20 * 100 * 10 * 32


@pytest.mark.parametrize("method", ["gossip", "gossip-async", "feddc", "pdmm", "cmfd"])
def test_only_what_an_interrupt_may_go_back_to_stays_in_memory(method: str) -> None:
    scenario = with_method(replace(scenario_named("digits-3"), budget=Budget(rounds=4)), method_named(method))
    setting, learner = with_training(scenario, threads=None)
    assert isinstance(learner, PeerLearner)
    arena, before = Arena(scenario, setting), {setting.initial}
    for _ in arena.rounds():
        now = set(arena.live)
        assert set(learner._values) - {"the mean of the nodes' models"} == before | now | {setting.initial}
        before = now


def test_a_process_that_trains_has_as_many_threads_as_the_run() -> None:
    scenario = with_method(scenario_named("digits-3"), method_named("gossip"))
    with threads_as_they_were():
        torch.set_num_threads(3)
        _, learner = with_training(scenario, threads=None, processes=2)
        assert isinstance(learner, PeerLearner)
        assert learner.crew is not None
        assert learner.crew._pool.submit(torch.get_num_threads).result() == 3
        learner.close()


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

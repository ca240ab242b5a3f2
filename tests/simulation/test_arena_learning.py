"""Each method's update on a linear model, against a few lines of NumPy; and where they lead on a convex problem.

Node i has copies of one sample (x_i, y_i), so that every batch has the gradient 2 (x_i w - y_i) x_i, whatever is
drawn. The loss is the mean squared error, and SGD has no momentum.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET

import tramfl
from tests.simulation.hand_clock import HandClock
from tramfl.config import LoadModel, Scenario, settings_from
from tramfl.learning.training.learner import Learner
from tramfl.learning.training.peers import PeerLearner
from tramfl.notation import Reals
from tramfl.record import Row, Sent
from tramfl.simulation.arena import Arena
from tramfl.simulation.loads import UniformLoads
from tramfl.simulation.setting import with_training

NODES, COPIES, WIDTH, RATE = 4, 12, 3, 0.05
X = np.array([[1.0, 0.25, -0.25], [0.125, 0.875, 0.5], [-0.25, 0.25, 1.125], [0.625, -0.5, 0.25]])
Y = np.array([1.0, -2.0, 0.5, 3.0])


class Line(torch.nn.Module):
    """w, begun at (1, -1, 0.5)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.w).sum(1)


FIRST = np.array([1.0, -1.0, 0.5])
GRAPHS: dict[str, dict[int, tuple[int, ...]]] = {
    "full": {0: (1, 2, 3), 1: (0, 2, 3), 2: (0, 1, 3), 3: (0, 1, 2)},
    "ring": {0: (1, 3), 1: (0, 2), 2: (1, 3), 3: (0, 2)},
}
"""The neighbours of every node."""


def data(copies: Sequence[int]) -> tramfl.Data:
    inputs, node = np.repeat(X, copies, axis=0), np.repeat(np.arange(NODES), copies)
    return tramfl.Data(
        (inputs, np.repeat(Y, copies)),
        (X, Y),
        strata=node,
        classes=[str(n) for n in range(NODES)],
        node_of_sample=node,
    )


def play(
    rounds: int, copies: Sequence[int] = (COPIES,) * NODES, slot: float | None = None, **exchange: Any
) -> tuple[Arena, Reals]:
    """The run, and every node's w after it."""
    table: dict[str, Any] = {
        "exchange": exchange,
        "partition": {"layout": "own", "validation_share": 0.0},
        "cost": {"flops_per_sample": 1e6, "model_bits": 1e6},
        "training": {"learning_rate": RATE, "momentum": 0.0, "batch_size": 5, "network": "own"},
        "budget": {"rounds": rounds, "metric": "loss"},
        "loads": {} if slot is None else {"clock": "slot", "slot_seconds": slot},
    }
    scenario = settings_from(table, Scenario, "test")
    app = tramfl.App(model=Line, data=data(copies), loss=torch.nn.functional.mse_loss)
    setting, learner = with_training(scenario, app=app, threads=1)
    arena = Arena(scenario, setting)
    for _ in arena.rounds():
        pass
    return arena, np.array([weights(learner, arena.value((node, "w"))) for node in range(NODES)])


def weights(learner: Learner, digest: str) -> Reals:
    """The only weights of a model."""
    (found,) = learner.module(digest).parameters()
    return np.asarray(found.detach().numpy())


def sent(row: Row) -> tuple[Sent, ...]:
    assert row.sent is not UNSET
    return row.sent


def consensus(arena: Arena) -> Reals:
    learner = arena.setting.learner
    assert isinstance(learner, PeerLearner)
    return weights(learner, arena.weights)


def descend(
    w: Reals, node: int, steps: int, anchor: Reals | None = None, share: float = 0.0, rate: float = RATE
) -> Reals:
    for _ in range(steps):
        w = w - rate * 2 * (X[node] @ w - Y[node]) * X[node]
        if anchor is not None:
            w = w + share * (anchor - w)
    return w


@pytest.mark.parametrize(("proximal", "rate"), [(0.0, 1.0), (4.0, 0.5)])
def test_fedavg_and_fedprox_average_what_the_nodes_trained(proximal: float, rate: float) -> None:
    copies = [12, 6, 18, 24]
    arena, _ = play(2, copies, rule="fedavg", local_steps=3, proximal=proximal, rate=rate)
    share = RATE * rate * proximal / (1 + RATE * rate * proximal)
    w = FIRST
    for _ in range(2):
        trained = [descend(w, node, 3, w, share, RATE * rate) for node in range(NODES)]
        w = np.average(trained, axis=0, weights=copies)
    assert consensus(arena) == pytest.approx(w, rel=1e-9)


def test_cyclic_descends_at_one_node_after_the_other_and_visits_each_once_a_cycle() -> None:
    arena, _ = play(6, rule="cyclic", local_steps=2)
    visited = [row.node for row in arena.rows]
    assert sorted(visited[:4]) == [0, 1, 2, 3]  # type: ignore[type-var]
    w = FIRST
    for node in visited:
        assert node is not None
        w = descend(w, node, 2)
    assert consensus(arena) == pytest.approx(w, rel=1e-9)


@pytest.mark.parametrize("beside", [False, True])
def test_fedavg_that_waits_for_half_averages_the_first_by_what_they_hold(beside: bool) -> None:
    copies = [12, 6, 18, 24]
    arena, _ = play(3, copies, rule="fedavg", local_steps=2, wait_for=0.5, server="beside" if beside else "node")
    w = FIRST
    for row in arena.rows:
        chosen = [each.node for each in row.by_node]
        assert len(chosen) == 2
        w = np.average([descend(w, n, 2) for n in chosen], axis=0, weights=[copies[n] for n in chosen])
    assert consensus(arena) == pytest.approx(w, rel=1e-9)


def mixing_matrix(graph: Mapping[int, Sequence[int]]) -> Reals:
    """W_ij = 1 / (1 + max(d_i, d_j)) between neighbours, W_ii what is left to 1."""
    found = np.zeros((NODES, NODES))
    for i, others in graph.items():
        for j in others:
            found[i, j] = 1 / (1 + max(len(others), len(graph[j])))
        found[i, i] = 1 - found[i].sum()
    return found


@pytest.mark.parametrize("topology", ["full", "ring", "matching"])
def test_gossip_mixes_with_metropolis_weights(topology: str) -> None:
    arena, found = play(3, rule="gossip", local_steps=2, topology=topology)
    w = np.tile(FIRST, (NODES, 1))
    for row in arena.rows:
        graph = {n: tuple(s.target for s in sent(row) if s.source == n) for n in range(NODES)}
        if topology != "matching":
            assert graph == GRAPHS[topology]
        w = mixing_matrix(graph) @ np.array([descend(w[node], node, 2) for node in range(NODES)])
    assert found == pytest.approx(w, rel=1e-9)
    assert consensus(arena) == pytest.approx(w.mean(axis=0), rel=1e-9)


def test_gossip_on_a_full_mesh_is_averaging_with_equal_weights() -> None:
    _, mesh = play(3, rule="gossip", local_steps=2)
    server, _ = play(3, rule="fedavg", local_steps=2)  # all nodes hold as many samples
    assert mesh == pytest.approx(np.tile(consensus(server), (NODES, 1)), rel=1e-9)


def test_gossip_that_waits_for_half_mixes_those_that_trained_and_leaves_the_others_as_they_were() -> None:
    arena, found = play(1, rule="gossip", local_steps=2, wait_for=0.5)
    (row,) = arena.rows
    chosen = [each.node for each in row.by_node]
    assert len(chosen) == 2
    mean = np.mean([descend(FIRST, node, 2) for node in chosen], axis=0)
    for node in range(NODES):
        assert found[node] == pytest.approx(mean if node in chosen else FIRST, rel=1e-9)


@pytest.mark.parametrize("slot", [None, 0.004])
def test_asynchronous_gossip_adds_up_its_events_in_the_order_of_time(slot: float | None) -> None:
    arena, _ = play(6, slot=slot, rule="gossip-async", local_steps=2)
    partner = partners(arena)
    clock = HandClock(UniformLoads(LoadModel(), np.full(NODES, 10e12), 0), slot)
    now: list[tuple[float, int, str, int]] = [(0.0, node, "begin", node) for node in range(NODES)]
    order, ended, cycle = NODES, 0, [0] * NODES
    w = np.tile(FIRST, (NODES, 1))
    snapshots: dict[int, tuple[Reals, Reals]] = {}
    free: dict[tuple[int, int], float] = {}
    while ended < 2 * NODES:
        at, _, what, node = heapq.heappop(now)
        other = partner[node, cycle[node] + (what == "begin")]
        if what == "begin":
            cycle[node] += 1
            snapshots[node] = w[node].copy(), w[other].copy()
            for link in ((node, other), (other, node)):  # a link carries one transfer at a time in each direction
                free[link] = clock.sent(1e6, node, other, cycle[node], max(at, free.get(link, 0.0)))
            arrival = max(free[node, other], free[other, node])
            end = max(arrival, clock.trained(1e6 * 10, node, cycle[node], at))
            heapq.heappush(now, (arrival, order + 1, "arrived", node))
            heapq.heappush(now, (end, order + 2, "end", node))
            order += 2
        elif what == "arrived":
            mine, theirs = snapshots[node]
            w[node] += (theirs - mine) / 2
            w[other] += (mine - theirs) / 2
        else:
            mine = snapshots[node][0]
            w[node] += descend(mine, node, 2) - mine
            ended += 1
            order += 1
            heapq.heappush(now, (at, order, "begin", node))
    short, found = play(2, slot=slot, rule="gossip-async", local_steps=2)
    assert short.rows[-1].total_seconds == pytest.approx(at, rel=1e-9)
    assert found == pytest.approx(w, rel=1e-9)


def partners(arena: Arena) -> dict[tuple[int, int], int]:
    """Whom each node averaged with in each of its cycles, as the rows say."""
    found: dict[tuple[int, int], int] = {}
    cycles = [0] * NODES
    for row in arena.rows:
        ways = sent(row)
        for trained, way in zip(row.by_node, ways[::2], strict=True):
            assert way.source == trained.node
            cycles[trained.node] += 1
            found[trained.node, cycles[trained.node]] = way.target
    return found


def test_feddc_passes_models_on_and_averages_them_when_it_is_due() -> None:
    arena, found = play(3, rule="feddc", local_steps=2, average_every=3)
    w = np.tile(FIRST, (NODES, 1))
    for row in arena.rows:
        trained = np.array([descend(w[node], node, 2) for node in range(NODES)])
        w = np.empty_like(trained)
        if row.round % 3 == 0:
            w[:] = trained.mean(axis=0)
        else:
            for each in sent(row):
                assert each.source != each.target
                w[each.target] = trained[each.source]
    assert found == pytest.approx(w, rel=1e-9)


@pytest.mark.parametrize("topology", ["full", "ring"])
@pytest.mark.parametrize(("dual", "pull"), [("pdmm", None), ("admm", None), ("pdmm", 2.0)])
def test_pdmm_follows_its_equations(topology: str, dual: str, pull: float | None) -> None:
    steps = 3
    keys: dict[str, Any] = {} if pull is None else {"pull": pull}
    _, found = play(3, rule="pdmm", local_steps=steps, topology=topology, dual_update=dual, **keys)
    graph = GRAPHS[topology]
    w = np.tile(FIRST, (NODES, 1))
    u = {(i, j): FIRST for i in graph for j in graph[i]}
    for _ in range(3):
        for i, others in graph.items():
            degree = len(others)
            eta = 1 / (RATE * degree * (steps - 1)) if pull is None else pull
            for _ in range(steps):
                gradient = 2 * (X[i] @ w[i] - Y[i]) * X[i]
                total = sum(u[i, j] for j in others)
                w[i] = (w[i] - RATE * gradient + RATE * eta * total) / (1 + RATE * eta * degree)
        message = {(i, j): 2 * w[i] - u[i, j] for i, j in u}
        u = {(i, j): message[j, i] if dual == "pdmm" else (u[i, j] + message[j, i]) / 2 for i, j in u}
    assert found == pytest.approx(w, rel=1e-9)


@pytest.mark.parametrize("dual", ["pdmm", "admm"])
@pytest.mark.parametrize(
    ("rounds", "keys", "within"),
    [(150, {"pull": 0.5}, 1e-3), pytest.param(100, {"rate": 4.0}, 1e-8, id="variance-reduced")],
)
def test_pdmm_comes_to_the_optimum_of_all_data_together(
    dual: str, rounds: int, keys: dict[str, Any], within: float
) -> None:
    _, found = play(rounds, rule="pdmm", local_steps=4, topology="ring", dual_update=dual, **keys)
    best = np.linalg.lstsq(X, Y, rcond=None)[0]
    assert found == pytest.approx(np.tile(best, (NODES, 1)), abs=within)


def softmax(logits: Reals) -> Reals:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def test_cmfd_mixes_soft_outputs_and_distils_them() -> None:
    kept, classes = 3, np.array([0, 1, 1, 0])
    whole = tramfl.Data(
        (np.repeat(X, kept + COPIES, axis=0), np.repeat(classes, kept + COPIES)),
        (X, classes),
        strata=np.repeat(np.arange(NODES), kept + COPIES),
        classes=[str(n) for n in range(NODES)],
        node_of_sample=np.repeat(np.arange(NODES), kept + COPIES),
    )
    table: dict[str, Any] = {
        "exchange": {"rule": "cmfd", "local_steps": 1, "topology": "ring", "shared_samples": kept * NODES}
        | {"rate": 10.0},  # models that differ much: else KL(h || p) and KL(p || h) have the same gradient
        "partition": {"layout": "own", "validation_share": kept / (kept + COPIES)},
        "cost": {"flops_per_sample": 1e6, "model_bits": 1e6},
        "training": {"learning_rate": RATE, "momentum": 0.0, "batch_size": kept * NODES, "network": "own"},
        "budget": {"rounds": 2},
    }
    scenario = settings_from(table, Scenario, "test")
    layer = torch.nn.Linear(WIDTH, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(np.array([FIRST, -FIRST])))
    setting, learner = with_training(scenario, app=tramfl.App(model=layer, data=whole), threads=1)
    arena = Arena(scenario, setting)
    rows = list(arena.rounds())
    found = [weights(learner, arena.value((node, "w"))) for node in range(NODES)]
    mix = mixing_matrix(GRAPHS["ring"])
    w = np.tile(np.array([FIRST, -FIRST]), (NODES, 1, 1))
    for _ in range(2):
        for i in range(NODES):
            p = softmax(X[i : i + 1] @ w[i].T)
            w[i] = w[i] - 10 * RATE * (p - np.eye(2)[classes[i : i + 1]]).T @ X[i : i + 1]
        p = np.array([softmax(X @ w[i].T) for i in range(NODES)])
        h = np.einsum("ij,jxc->ixc", mix, p)
        w = np.array([w[i] - 10 * RATE * (p[i] - h[i]).T @ X / NODES for i in range(NODES)])
    assert np.array(found) == pytest.approx(w, rel=1e-5)  # float32; X_s holds as many copies of every node's sample
    assert {each.bits for each in sent(rows[0])} == {kept * NODES * 2 * 32}

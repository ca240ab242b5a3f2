"""Steps that stand for many: the same values, moments and transfers as the single steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tramfl.exchange import Combine, Cross, Mix, Send, Step, Trade, TrainStep
from tramfl.exchange.topology import metropolis, neighbours
from tramfl.notation import BadInput, ModelCost
from tramfl.simulation.load_clock import RoundClock
from tramfl.simulation.loads import RoundLoads
from tramfl.simulation.stage import Moment, Stage

NODES = 5
COST = ModelCost(1e6, 1e6)
RING = neighbours("ring", range(NODES))
MESH = neighbours("full", range(NODES))


class Drawn:
    """Loads in which many transfers take equally long, so that ties are decided, too."""

    def at(self, round_: int) -> RoundLoads:
        rng = np.random.default_rng(round_)
        links = rng.choice([1e5, 2e5, 3e5], (NODES, NODES))
        return RoundLoads(rng.choice([1e7, 2e7], NODES).tolist(), links.tolist())


def stage() -> Stage:
    duals = [(node, f"u/{other}") for node in range(NODES) for other in range(NODES) if other != node]
    held = np.full((NODES, 2), 50)
    return Stage(held, COST, RoundClock(Drawn(), COST), "w0", duals, outputs_bits=1.0, shared_samples=10)


def mixed_one_by_one(mix: Mix) -> list[Step]:
    steps: list[Step] = []
    for node, weights in mix.weights.items():
        if len(weights) > 1:
            steps.append(Send(node, tuple(weights)[1:], mix.name, f"{mix.name}/{node}"))
    for node, weights in mix.weights.items():
        (_, own), *others = weights.items()
        parts = ((mix.name, own), *((f"{mix.name}/{other}", weight) for other, weight in others))
        steps.append(Combine(node, mix.into, parts))
    return steps


def played(steps: Sequence[Step], rounds: int) -> tuple[list[Moment], list[object]]:
    """The end of every round, and all that is known after it."""
    found = stage()
    ends, known, at = [], [], 0.0
    for round_ in range(1, rounds + 1):
        found.begin()
        ends.append(found.run([*(TrainStep(node, 10) for node in range(NODES)), *steps], round_, at))
        at = ends[-1][0]
        trained, sent = found.take_record()
        pairs = [(source, target, bits) for source, targets, bits in sent for target in targets]
        names = ["w", "h", *(f"u/{node}" for node in range(NODES))]
        values = [found._values.get(name) for name in names]
        known += [trained, pairs, values, found.work.copy()]
    return ends, known


def test_a_node_computes_one_thing_at_a_time() -> None:
    found = stage()
    once = found.run([TrainStep(0, 10)], 1, 0.0)[0]
    again = stage().run([TrainStep(0, 10, into="one"), TrainStep(0, 10, into="other")], 1, 0.0)[0]
    apart = stage().run([TrainStep(0, 10), TrainStep(1, 10)], 1, 0.0)[0]
    assert again == pytest.approx(2 * once)
    assert apart == max(once, stage().run([TrainStep(1, 10)], 1, 0.0)[0])


@pytest.mark.parametrize("graph", [MESH, RING, {0: (), 1: (2,), 2: (1,)}], ids=["mesh", "ring", "pair"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice in a round"])
def test_a_mix_is_what_its_sends_and_combines_are(graph: dict[int, tuple[int, ...]], twice: bool) -> None:
    mix = Mix(metropolis(graph), "w", "w")
    assert played([mix] * (1 + twice), 4) == played(mixed_one_by_one(mix) * (1 + twice), 4)


@pytest.mark.parametrize("graph", [MESH, RING, {1: (2,), 2: (1,)}], ids=["mesh", "ring", "pair"])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice in a round"])
def test_a_cross_is_what_its_steps_are(graph: dict[int, tuple[int, ...]], share: float, twice: bool) -> None:
    cross = Cross(graph, share)
    assert played([cross] * (1 + twice), 4) == played(list(cross.steps()) * (1 + twice), 4)


@pytest.mark.parametrize("times", [1, 2])
def test_a_trade_is_what_its_steps_are(times: int) -> None:
    trade = Trade(1, 3, "w", ("mine", "theirs"))
    mean = Combine(3, "w", (("mine", 0.5), ("theirs", 0.5)))
    assert played([trade, mean] * times, 4) == played([*trade.steps(), mean] * times, 4)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_every_value_of_a_cross_is_dropped_once_no_variable_has_it(share: float) -> None:
    found, dropped = stage(), list[str]()
    for round_ in range(1, 4):
        found.begin()
        found.run([Cross(MESH, share)], round_, 0.0)
        dropped += found.dropped()
    made = {work.child for work in found.work}
    assert made == set(dropped) | (set(found.live) - {"w0"})
    assert len(dropped) == len(set(dropped))


def test_a_schedule_that_nobody_computes_has_the_same_moments_and_transfers_and_notes_no_work() -> None:
    steps: list[Step] = [
        *(TrainStep(node, 10) for node in range(NODES)),
        Mix(metropolis(MESH), "w", "w"),
        Cross(MESH, 0.5),
    ]
    played = []
    for notes_work in (True, False):
        found = stage()
        found.notes_work = notes_work
        for round_ in range(1, 4):
            found.begin()
            played.append((found.run(steps, round_, 0.0), found.take_record(), found._values))
        assert bool(found.work) == notes_work
    assert played[:3] == played[3:]


def test_an_exchange_of_duals_that_a_node_does_not_have_is_refused_in_one_sentence() -> None:
    lacking = Stage(
        np.full((NODES, 2), 50), COST, RoundClock(Drawn(), COST), "w0", [], outputs_bits=1.0, shared_samples=10
    )
    for lacking.notes_work in (True, False):
        with pytest.raises(BadInput, match="u/"):
            lacking.run([Cross(MESH)], 1, 0.0)

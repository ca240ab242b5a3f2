"""Every built-in rule passes the contract, and each of its tests finds a rule that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tramfl.config import ExchangeSettings
from tramfl.exchange import MEAN, Combine, Reading, RoundPlan, RoundView, TrainStep, rule_named, rule_names
from tramfl.exchange.gossip import Gossip
from tramfl.exchange.plans import AsynchronousRule, BarrierRule
from tramfl.exchange.topology import metropolis, neighbours, quickest_permutation
from tramfl.notation import BadInput
from tramfl.testing import RuleContract, views

CONTRACT = [name for name in dir(RuleContract) if name.startswith("test_")]
VARIANTS: dict[str, dict[str, Any]] = {name: {} for name in rule_names()} | {
    "gossip, ring": {"topology": "ring"},
    "gossip, pairs": {"topology": "matching"},
    "fedavg, beside": {"server": "beside"},
    "fedavg, proximal": {"proximal": 0.5},
    "feddc, load-aware": {"matching": "load-aware"},
    "feddc, averages": {"average_every": 1},
    "pdmm, ring": {"topology": "ring", "dual_update": "admm", "pull": 0.1},
    "gossip-async, ring": {"topology": "ring"},
}


def contract(changes: dict[str, Any], rule: Callable[[ExchangeSettings, int], object]) -> RuleContract:
    class Contract(RuleContract):
        def settings(self, given: ExchangeSettings) -> ExchangeSettings:
            return structs.replace(given, **changes)

        def rule(self, settings: ExchangeSettings, nodes: int) -> BarrierRule | AsynchronousRule:
            return rule(settings, nodes)  # type: ignore[return-value]

    return Contract()


@pytest.mark.parametrize("test", CONTRACT)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_built_in_rule_passes_the_contract(variant: str, test: str) -> None:
    changes = {**VARIANTS[variant], "rule": variant.partition(",")[0]}
    getattr(contract(changes, rule_named), test)()


class Broken(Gossip):
    """Gossip with one fault."""

    calls = 0

    def plan(self, view: RoundView) -> RoundPlan | None:
        return self.spoil(super().plan(view), view)

    def spoil(self, plan: RoundPlan | None, view: RoundView) -> RoundPlan | None:
        return plan


class ReadsAfar(Broken):
    def spoil(self, plan: RoundPlan | None, view: RoundView) -> RoundPlan | None:
        if plan is None:
            return None
        return structs.replace(plan, steps=(*plan.steps, Combine(view.trainers[0], "w", (("afar", 1.0),))))


class TestsNothing(Broken):
    __test__ = False

    def reading(self, view: RoundView) -> Reading:
        return Reading(((0, "never"),), None, "nodes")


class WakesTheSilent(Broken):
    def spoil(self, plan: RoundPlan | None, view: RoundView) -> RoundPlan | None:
        return None if plan is None else RoundPlan(tuple(TrainStep(n, 8) for n in range(view.nodes)), "All train.")


class NeverRests(Broken):
    def spoil(self, plan: RoundPlan | None, view: RoundView) -> RoundPlan | None:
        return plan or RoundPlan((TrainStep(0, 8),), "Node 0 trains.")


class Remembers(Broken):
    def spoil(self, plan: RoundPlan | None, view: RoundView) -> RoundPlan | None:
        self.calls += 1
        if plan is None:
            return None
        return structs.replace(plan, steps=plan.steps[: self.calls])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ReadsAfar, "test_steps_read_only_what_their_place_has"),
        (TestsNothing, "test_what_is_tested_is_there_after_a_round"),
        (WakesTheSilent, "test_only_nodes_that_report_and_have_samples_train"),
        (NeverRests, "test_nobody_trains_where_nobody_reports"),
        (Remembers, "test_the_same_view_gives_the_same_plan_whatever_was_planned_before"),
    ],
)
def test_the_contract_finds_a_rule_that_breaks_it(broken: type[Broken], test: str) -> None:
    with pytest.raises((AssertionError, BadInput)):
        getattr(contract({}, broken), test)()


@pytest.mark.parametrize("rule", rule_names())
def test_a_rule_is_judged_by_the_mean_over_the_nodes_models_unless_there_is_one_model(rule: str) -> None:
    view = next(view for view in views() if view.nodes > 2)
    reading = rule_named(ExchangeSettings(rule=rule), view.nodes).reading(view)
    if rule in ("fedavg", "cyclic"):
        assert (reading.headline, reading.nodes) == ("consensus", ())
        assert isinstance(reading.consensus, tuple)
    else:
        assert (reading.headline, reading.nodes) == ("nodes", tuple((n, "w") for n in range(view.nodes)))
        assert reading.consensus == (None if rule == "cmfd" else MEAN)


@pytest.mark.parametrize("topology", ["full", "ring", "matching"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 6, 7])
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(topology: str, nodes: int) -> None:
    weights = metropolis(neighbours(topology, range(nodes), np.random.default_rng(nodes)))
    mix = np.array([[weights[i].get(j, 0.0) for j in range(nodes)] for i in range(nodes)])
    assert mix == pytest.approx(mix.T)
    assert mix.sum(axis=1) == pytest.approx(1)
    assert (mix >= 0).all()


def test_every_node_has_its_neighbours_and_no_others() -> None:
    assert neighbours("full", [0, 2, 5]) == {0: (2, 5), 2: (0, 5), 5: (0, 2)}
    assert neighbours("ring", [0, 2, 5, 7]) == {0: (2, 7), 2: (0, 5), 5: (2, 7), 7: (0, 5)}
    assert neighbours("ring", [3, 4]) == {3: (4,), 4: (3,)}
    pairs = neighbours("matching", range(7), np.random.default_rng(0))
    assert sorted(map(len, pairs.values())) == [0, *[1] * 6]
    assert all(pairs[other] == (node,) for node, others in pairs.items() for other in others)


def test_metropolis_weights_go_by_the_neighbour_that_has_more_of_them() -> None:
    path = metropolis({0: (1,), 1: (0, 2, 3), 2: (1,), 3: (1,)})
    assert path[0] == pytest.approx({0: 3 / 4, 1: 1 / 4})
    assert path[1] == pytest.approx({1: 1 / 4, 0: 1 / 4, 2: 1 / 4, 3: 1 / 4})


def test_the_quickest_permutation_is_as_quick_as_the_best_of_all() -> None:
    from itertools import permutations

    for seed in range(20):
        table = np.random.default_rng(seed).random((5, 5))
        found = quickest_permutation(range(5), table)
        assert sorted(found.values()) == list(range(5))
        assert all(i != j for i, j in found.items())
        best = min(
            max(table[i, j] for i, j in enumerate(order))
            for order in permutations(range(5))
            if all(i != j for i, j in enumerate(order))
        )
        assert max(table[i, j] for i, j in found.items()) == pytest.approx(best)

"""The contracts of a policy and of an exchange rule as tests: what a simulation and a site rely on.

    from tramfl.testing import PolicyContract

    class TestMine(PolicyContract):
        def policy(self, settings):
            return Mine(settings)

pytest then runs every test of the contract on the policy. The federations it decides for are drawn from a fixed seed:
silent nodes, silent holders, empty nodes, labels that no node holds, and histories far above V are among them.

A rule of methods in which every node keeps a model (`tramfl.exchange`) has a contract of its own:

    from tramfl.testing import RuleContract

    class TestMine(RuleContract):
        def rule(self, settings, nodes):
            return Mine(settings, nodes)

Nothing here imports pytest, and nothing else of tramfl imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from tramfl.config import ExchangeSettings
from tramfl.exchange import Cross, Mix, RoundView, Send, Step, Trade, TrainStep
from tramfl.exchange.plans import AsynchronousRule, BarrierRule
from tramfl.exchange.rules import is_asynchronous
from tramfl.notation import Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import Policy, PolicySettings, check_decision
from tramfl.scheduling.timing import compute_seconds, transfer_seconds
from tramfl.simulation.load_clock import RoundClock
from tramfl.simulation.loads import RoundLoads
from tramfl.simulation.stage import Stage

FEDERATIONS = 200
"""How many are drawn."""
ROUNDS = 30
"""A run that skips this many rounds in a row, while a node could train within V, has come to a halt."""


class Situation(Struct, frozen=True, eq=False):
    """What a policy decides on: the arguments of `decide`, and the operator's settings."""

    ledger: Ledger
    loads: Loads
    held: NDArray[np.int64]
    holder: NodeId = 0
    cost: ModelCost = ModelCost(1e6, 1e6)
    settings: PolicySettings = PolicySettings()

    def decide(self, policy: Policy, seed: int = 0) -> Decision:
        """The policy's decision."""
        rng = np.random.default_rng(seed)
        return policy.decide(self.ledger, self.loads, self.held, self.holder, self.cost, rng)

    def after(self, decision: Decision) -> Situation:
        """The same federation one round later, with the model where it was trained."""
        holder = self.holder if decision.node is None else decision.node
        bandwidth = tuple(
            math.inf if node == holder else 1e6 if math.isinf(bits) else bits
            for node, bits in enumerate(self.loads.bandwidth)
        )
        ledger = self.ledger.after(decision.samples, decision.round_seconds)
        return Situation(ledger, Loads(self.loads.flops, bandwidth), self.held, holder, self.cost, self.settings)

    @property
    def unreachable_labels(self) -> tuple[int, ...]:
        """Labels that no reporting node holds."""
        within = np.asarray(self.held[list(self.loads.reporting)].any(axis=0))
        return tuple(label for label, there in enumerate(within.tolist()) if not there)


SILENT = Situation(Ledger((1, 2)), Loads((math.nan,) * 2, (math.inf, math.nan)), np.array([[5, 5], [5, 5]]))
"""No node reported."""
EMPTY = Situation(Ledger((1, 2)), Loads((1e6, 1e6), (math.inf, 1e6)), np.zeros((2, 2), dtype=np.int64))
"""No node has samples."""
HALF_LOST = Situation(
    Ledger((200, 5, 202), 100.0, 40),
    Loads((1e9, math.nan), (math.inf, math.nan)),
    np.array([[60, 0, 60], [0, 60, 0]]),
    settings=PolicySettings(16.0),
)
"""The only site with label 1 is gone: counted with that label, whatever the other site trains raises the variance."""


def federations(count: int = FEDERATIONS) -> Iterator[Situation]:
    """The special cases above, and `count` federations drawn from a fixed seed."""
    yield from (SILENT, EMPTY, HALF_LOST)
    for number in range(count):
        yield _drawn(np.random.default_rng((2026, number)))


def _drawn(rng: np.random.Generator) -> Situation:
    nodes, labels = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    held = rng.integers(0, rng.choice([2, 60, 5000]), (nodes, labels)) * (rng.random((nodes, labels)) < 0.7)
    used = tuple(rng.integers(0, rng.choice([1, 300, 10**6]), labels).tolist())
    holder = int(rng.integers(nodes))
    flops = np.where(rng.random(nodes) < 0.8, 10.0 ** rng.uniform(4, 12, nodes), math.nan)
    bandwidth = np.where(np.isnan(flops), math.nan, 10.0 ** rng.uniform(4, 9, nodes))
    bandwidth[holder] = math.inf
    ledger = Ledger(used, float(rng.choice([0.0, 1e2, 1e5])), int(rng.integers(0, 1000)))
    cost = ModelCost(10.0 ** rng.uniform(4, 8), 10.0 ** rng.uniform(4, 8))
    settings = PolicySettings(float(rng.choice([0.0, 10.0, 10_000.0])), float(rng.choice([0.5, 1.0, 30.0])))
    loads = Loads(tuple(flops.tolist()), tuple(bandwidth.tolist()))
    return Situation(ledger, loads, held.astype(np.int64), holder, cost, settings)


class PolicyContract:
    """Tests that every policy passes; see the top of this module."""

    def policy(self, settings: PolicySettings) -> Policy:
        """A new policy with these settings; every subclass has its own."""
        raise NotImplementedError(f"{type(self).__name__} must say which policy it tests: def policy(self, settings)")

    def test_every_decision_can_be_carried_out(self) -> None:
        """Only nodes that reported, only samples that they hold, and a wait where nobody trains."""
        for now in federations():
            check_decision(now.decide(self.policy(now.settings)), now.loads, now.held)

    def test_the_same_arguments_give_the_same_decision_whatever_was_decided_before(self) -> None:
        """Else a run could be neither repeated nor resumed, and a site that takes over would decide otherwise."""
        for now in federations():
            old = self.policy(now.settings)
            for other in (HALF_LOST, EMPTY):
                if other.held.shape == now.held.shape:
                    other.decide(old)
            first, again, fresh = now.decide(old), now.decide(old), now.decide(self.policy(now.settings))
            assert first == again == fresh, f"three decisions on the same arguments differ: {now}"

    def test_the_arguments_stay_as_they_were(self) -> None:
        """`held` is the caller's."""
        for now in federations():
            before = now.held.copy()
            now.decide(self.policy(now.settings))
            assert (now.held == before).all(), f"`held` was changed: {now}"

    def test_nobody_trains_where_nobody_reported_or_nobody_has_samples(self) -> None:
        """Such a round is skipped, with a wait, and is no error."""
        for now in (SILENT, EMPTY):
            decision = now.decide(self.policy(now.settings))
            assert decision.node is None, f"nobody can train, and the policy chose node {decision.node}"
            assert decision.idle_seconds == now.settings.wait_seconds, "a skipped round waits for H"

    def test_labels_that_no_reporting_node_holds_are_named(self) -> None:
        """The record, and its readers, must know that they left the balance."""
        for now in federations():
            found = now.decide(self.policy(now.settings)).unreachable_labels
            assert tuple(found) == now.unreachable_labels, (
                f"unreachable_labels is {found}, and no reporting node holds {now.unreachable_labels}: {now}"
            )

    def test_a_lost_label_does_not_stop_the_run(self) -> None:
        """Where the only site with a label is gone, the others go on, balanced over the labels that are left."""
        now = HALF_LOST
        for _ in range(ROUNDS):
            decision = now.decide(self.policy(now.settings))
            if decision.node is not None:
                return
            now = now.after(decision)
        raise AssertionError(
            f"nobody trained in {ROUNDS} rounds: labels that no reporting node holds must leave the balance"
        )

    def test_predicted_seconds_are_those_of_the_equations(self) -> None:
        """Deadlines come from them: a node that takes far longer than predicted is given up."""
        for now in federations():
            decision = now.decide(self.policy(now.settings))
            node, samples = decision.node, sum(decision.samples)
            if node is None:
                expected = (0.0, 0.0, now.settings.wait_seconds)
            else:
                sent = 0.0 if node == now.holder else transfer_seconds(now.cost, now.loads.bandwidth[node])
                expected = (compute_seconds(samples, now.cost, now.loads.flops[node]), sent, 0.0)
            found = (decision.compute_seconds, decision.transfer_seconds, decision.idle_seconds)
            close = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(found, expected, strict=True))
            assert close, f"compute, transfer and idle seconds are {found}; the equations give {expected}"

    def test_the_reason_is_one_sentence(self) -> None:
        """It is what the record, the report and the live view show."""
        for now in federations():
            reason = now.decide(self.policy(now.settings)).reason
            plain = reason[:1].isupper() and reason.endswith(".") and ". " not in reason and "\n" not in reason
            assert plain, f"the reason is not one sentence: {reason!r}"


def views(count: int = 40) -> Iterator[RoundView]:
    """What a rule plans from: federations drawn from a fixed seed, with silent and with empty nodes."""
    for number in range(count):
        rng = np.random.default_rng((2027, number))
        nodes = int(rng.integers(1, 7))
        held = np.where(rng.random(nodes) < 0.8, rng.integers(1, 500, nodes), 0)
        held[int(rng.integers(nodes))] = 100
        silent = rng.random(nodes) < (0.0 if number % 2 else 0.3)
        compute, links = rng.uniform(0.1, 9.0, nodes), rng.uniform(0.1, 9.0, (nodes + 1, nodes + 1))
        yield RoundView(
            round=int(rng.integers(1, 40)),
            held=tuple(held.tolist()),
            reporting=tuple(np.flatnonzero(~silent).tolist()),
            settings=ExchangeSettings(wait_for=float(rng.choice([0.5, 1.0]))),
            samples=64,
            learning_rate=0.1,
            training_seconds=partial(_seconds, compute),
            sending_to=partial(_seconds_to, links),
            draw=partial(_generator, number),
        )


def _seconds(table: NDArray[np.float64], *place: float) -> float:
    """The time of a node, or of a link; what else is given, amounts and moments, does not matter here."""
    return float(table[tuple(int(part) for part in place[: table.ndim])])


def _seconds_to(table: NDArray[np.float64], one: int, others: Sequence[int], after: float) -> list[float]:
    return [_seconds(table, one, other) for other in others]


def _generator(number: int, *place: int) -> np.random.Generator:
    return np.random.default_rng((number, *place))


class _Even:
    """Every node and link has the same load."""

    def at(self, round_: int) -> RoundLoads:
        return RoundLoads([1e9] * 8, [[1e6] * 8] * 8)


class RuleContract:
    """Tests that every exchange rule passes; see the top of this module."""

    def rule(self, settings: ExchangeSettings, nodes: int) -> BarrierRule | AsynchronousRule:
        """A new rule with these settings; every subclass has its own."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which rule it tests: def rule(self, settings, nodes)"
        )

    def settings(self, given: ExchangeSettings) -> ExchangeSettings:
        """The settings of a drawn federation; a subclass changes what its rule cannot follow."""
        return given

    def test_steps_read_only_what_their_place_has(self) -> None:
        """What another place has must be sent first, and sending takes time."""
        for view, rule in self._cases():
            stage = self._stage(rule, view)
            for steps in self._planned(rule, view):
                stage.run(steps, 1, 0.0)

    def test_what_is_tested_is_there_after_a_round(self) -> None:
        """Else a run could not be judged."""
        for view, rule in self._cases():
            stage = self._stage(rule, view)
            plans = self._planned(rule, view)
            for steps in plans:
                stage.run(steps, 1, 0.0)
            reading = rule.reading(view)
            wanted = [*reading.nodes, *([reading.consensus] if isinstance(reading.consensus, tuple) else [])]
            for variable in wanted if plans else ():
                stage.value(variable)
            assert reading.headline == "nodes" or reading.consensus is not None, "the headline is of no model"

    def test_only_nodes_that_report_and_have_samples_train(self) -> None:
        """A node that does not answer cannot train, and one without data has nothing to train on."""
        for view, rule in self._cases():
            for step in (step for steps in self._planned(rule, view) for step in steps):
                if isinstance(step, TrainStep):
                    assert step.node in view.trainers, f"node {step.node} trains; {view.trainers} could"
                used: set[int] = set()
                if isinstance(step, Send):
                    targets = set(step.target if isinstance(step.target, tuple) else (step.target,))
                    assert step.source not in targets, f"place {step.source} sends to itself"
                    used = {step.source, *targets}
                if isinstance(step, Trade):
                    assert step.one != step.other, f"place {step.one} sends to itself"
                    used = {step.one, step.other}
                if isinstance(step, Mix):
                    used = {*step.weights, *(node for weights in step.weights.values() for node in weights)}
                if isinstance(step, Cross):
                    used = {*step.links, *(node for others in step.links.values() for node in others)}
                silent = used - {*view.reporting, view.nodes}
                assert not silent, f"places {sorted(silent)} send or are sent to and do not report"

    def test_nobody_trains_where_nobody_reports(self) -> None:
        """Such a round is skipped."""
        for view, rule in self._cases():
            silent = structs.replace(view, reporting=())
            assert not self._planned(rule, silent), "nobody reports, and steps were planned"

    def test_the_same_view_gives_the_same_plan_whatever_was_planned_before(self) -> None:
        """Else a run could be neither repeated nor resumed: what lasts belongs in variables."""
        for view, rule in self._cases():
            first = self._planned(rule, view)
            self._planned(rule, structs.replace(view, round=view.round + 1))
            again = self._planned(rule, view)
            fresh = self._planned(self.rule(view.settings, view.nodes), view)
            assert first == again == fresh, f"three plans from the same view differ: {view}"

    def _cases(self) -> Iterator[tuple[RoundView, BarrierRule | AsynchronousRule]]:
        for view in views():
            settings = self.settings(view.settings)
            yield structs.replace(view, settings=settings), self.rule(settings, view.nodes)

    def _stage(self, rule: BarrierRule | AsynchronousRule, view: RoundView) -> Stage:
        held, cost = np.array(view.held)[:, None], ModelCost(1e6, 1e6)
        return Stage(held, cost, RoundClock(_Even(), cost), "w0", rule.start(), outputs_bits=1e3, shared_samples=10)

    def _planned(self, rule: BarrierRule | AsynchronousRule, view: RoundView) -> list[tuple[Step, ...]]:
        """The steps of a round, or of one cycle of every node that reports."""
        if is_asynchronous(rule):
            cycles = [rule.cycle(node, view) for node in view.reporting]
            return [steps for cycle in cycles for steps in (cycle.begin, cycle.arrived, cycle.end)]
        plan = cast("BarrierRule", rule).plan(view)
        return [] if plan is None else [plan.steps]

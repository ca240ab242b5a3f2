"""The contract of a policy as tests: what a scheduler, a simulation and a site rely on, whoever wrote the policy.

    from tramfl.testing import PolicyContract

    class TestMine(PolicyContract):
        def policy(self, settings):
            return Mine(settings)

pytest then runs every test of the contract on the policy. The federations it decides for are drawn from a fixed seed:
silent nodes, silent holders, empty nodes, labels that no node holds, and histories far above V are among them.
Nothing here imports pytest, and nothing else of tramfl imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tramfl.notation import Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import Policy, PolicySettings, check_decision
from tramfl.scheduling.timing import compute_seconds, transfer_seconds

FEDERATIONS = 200
"""How many are drawn."""
ROUNDS = 30
"""A run that skips so many rounds in a row, while a node could train within V, has come to a halt."""


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
        """The record, and whoever reads it, must know that they left the balance."""
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

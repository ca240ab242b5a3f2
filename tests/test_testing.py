"""The contract of policies: every built-in one passes it, and each of its tests finds a policy that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tramfl.notation import Decision
from tramfl.scheduling import Policy, PolicySettings, policy_named, policy_names
from tramfl.scheduling.load_aware import LoadAware
from tramfl.testing import FEDERATIONS, PolicyContract, federations

CONTRACT = [name for name in dir(PolicyContract) if name.startswith("test_")]


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize("test", CONTRACT)
def test_every_built_in_policy_passes_the_contract(name: str, test: str) -> None:
    class Contract(PolicyContract):
        def policy(self, settings: PolicySettings) -> Policy:
            return policy_named(name, settings)

    getattr(Contract(), test)()


class Broken(LoadAware):
    """Load-aware with one fault."""

    def decide(self, *arguments: Any) -> Decision:
        return self.spoil(super().decide(*arguments), arguments)

    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        raise NotImplementedError


class TakesOneMore(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        held = arguments[2]
        return (
            decision
            if decision.node is None
            else replace(decision, samples=tuple((held[decision.node] + 1).tolist()))
        )


class Remembers(Broken):
    calls = 0

    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        self.calls += 1
        return replace(decision, reason=f"Call {self.calls}.")


class Empties(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        arguments[2][:] = 0
        return decision


class Rushes(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        return replace(decision, idle_seconds=0.25) if decision.node is None else decision


class SaysNothing(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        return replace(decision, unreachable_labels=())


class WaitsForLostLabels(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        if not decision.unreachable_labels or decision.node is None:
            return decision
        labels = tuple(0 for _ in decision.samples)
        return Decision(
            "waits", None, labels, 0.0, 0.0, self.settings.wait_seconds, "No.", (), decision.unreachable_labels
        )


class Hopes(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        return replace(decision, compute_seconds=decision.compute_seconds / 2)


class Talks(Broken):
    def spoil(self, decision: Decision, arguments: Any) -> Decision:
        return replace(decision, reason=decision.reason + " And so on.")


FAULTS: dict[str, Callable[[PolicySettings], Policy]] = {
    "test_every_decision_can_be_carried_out": TakesOneMore,
    "test_the_same_arguments_give_the_same_decision_whatever_was_decided_before": Remembers,
    "test_the_arguments_stay_as_they_were": Empties,
    "test_nobody_trains_where_nobody_reported_or_nobody_has_samples": Rushes,
    "test_labels_that_no_reporting_node_holds_are_named": SaysNothing,
    "test_a_lost_label_does_not_stop_the_run": WaitsForLostLabels,
    "test_predicted_seconds_are_those_of_the_equations": Hopes,
    "test_the_reason_is_one_sentence": Talks,
}


@pytest.mark.parametrize("test", CONTRACT)
def test_each_test_of_the_contract_finds_a_policy_that_breaks_it(test: str) -> None:
    class Contract(PolicyContract):
        def policy(self, settings: PolicySettings) -> Policy:
            return FAULTS[test](settings)

    with pytest.raises((AssertionError, ValueError)):
        getattr(Contract(), test)()


def test_a_contract_without_a_policy_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="def policy"):
        PolicyContract().test_the_reason_is_one_sentence()


def test_the_federations_are_the_same_every_time_and_have_what_goes_wrong() -> None:
    found, again = list(federations()), list(federations())
    assert len(found) == FEDERATIONS + 3
    assert all(a.ledger == b.ledger and np.array_equal(a.held, b.held) for a, b in zip(found, again, strict=True))
    assert sum(bool(now.unreachable_labels) for now in found) > 20
    assert sum(not now.loads.reporting for now in found) > 3
    assert sum(now.holder not in now.loads.reporting for now in found) > 20
    assert sum(now.ledger.label_variance > now.settings.variance_limit for now in found) > 50

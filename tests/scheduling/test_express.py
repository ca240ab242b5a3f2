"""Express: when it waits, where it moves, and what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tramfl.notation import Decision, Habit, Ledger, Loads, ModelCost, Outlook
from tramfl.scheduling.policy import PolicySettings, policy_named

HELD = np.array([[4000] * 3 + [0] * 6, [0] * 3 + [4000] * 3 + [0] * 3, [0] * 6 + [4000] * 3])
COST = ModelCost(flops_per_sample=1.0, model_bits=1.0)
BEHIND = Ledger((1200, 1200, 1200, 1150, 1150, 1150, 950, 950, 950), seconds=100.0, round=40)
"""Node 2's labels are behind: it alone can add many samples."""


def outlook(flops: float, persistence: float, step_seconds: float = 0.0) -> Outlook:
    compute = Habit(flops, 100.0, 1.0, persistence, 1000.0)
    link = Habit(1.0, 1.0, 0.1, persistence, 2.0)
    return Outlook(compute, (link, link, link), step_seconds)


def decided(persistence: float | None, slow: float = 5.0, step_seconds: float = 0.0) -> Decision:
    """Node 2 is slow now; how long that lasts is what the outlooks say."""
    flops = (100.0, 100.0, slow)
    outlooks = () if persistence is None else tuple(outlook(f, persistence, step_seconds) for f in flops)
    loads = Loads(flops, (np.inf, 1.0, 1.0), outlooks)
    policy = policy_named("express", PolicySettings(10_000.0, 1.0))
    return policy.decide(BEHIND, loads, HELD, 0, COST, np.random.default_rng(0))


def test_it_waits_where_loads_are_drawn_anew_and_says_what_that_brings() -> None:
    decision = decided(0.0)
    assert decision.node is None
    assert "waits 1 s, as another draw is expected to bring" in decision.reason


def test_it_never_waits_for_what_cannot_change() -> None:
    assert decided(1.0).node is not None


def test_it_never_waits_where_work_runs_on_through_the_changes() -> None:
    assert decided(0.0, step_seconds=1.0).node is not None


def test_without_an_outlook_it_takes_loads_as_lasting() -> None:
    assert decided(None).node is not None


@pytest.mark.parametrize("persistence", [0.0, 0.5, 0.9, 0.99])
def test_the_longer_loads_last_the_worse_a_round_it_takes(persistence: float) -> None:
    def slowest_taken(phi: float) -> float:
        speeds: list[float] = np.geomspace(0.01, 100.0, 40).tolist()
        return min(slow for slow in speeds if decided(phi, slow).node is not None)

    assert slowest_taken(min(1.0, persistence + 0.3)) <= slowest_taken(persistence)


def test_the_same_arguments_give_the_same_decision() -> None:
    assert decided(0.7) == decided(0.7)


@pytest.mark.filterwarnings("error")
def test_a_node_that_is_left_alone_decides_without_a_link_to_look_at() -> None:
    loads = Loads((100.0, np.nan, np.nan), (np.inf, np.nan, np.nan), (outlook_alone(), None, None))
    policy = policy_named("express", PolicySettings(10_000.0, 1.0))
    assert policy.decide(BEHIND, loads, HELD, 0, COST, np.random.default_rng(0)).node == 0


def outlook_alone() -> Outlook:
    return Outlook(Habit(100.0, 100.0, 1.0, 0.9, 1000.0), (None, None, None), 1.0)

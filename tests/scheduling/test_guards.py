from __future__ import annotations

import numpy as np
import pytest

from tramfl.notation import Decision, Ledger, Loads, ModelCost
from tramfl.scheduling.guards import guarded
from tramfl.scheduling.policy import PolicySettings, policy_named
from tramfl.scheduling.weighing import most_samples, thinned

COST = ModelCost(1e6, 1e6)
LOADS = Loads((1e9, 1e9, 1e9), (np.inf, 1e8, 1e8))
HELD = np.array([[400, 100, 0, 40], [400, 400, 0, 0], [20, 30, 500, 60]])
POLICIES = ("load-aware", "random", "time-first", "variance-first", "tram", "express")
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES)


def played(policy: str, rounds: int, held: np.ndarray = HELD, **keys: object) -> list[Decision]:
    """Rounds in which all nodes report the same loads."""
    settings = PolicySettings(**keys)  # type: ignore[arg-type]
    decides = guarded(policy_named(policy, settings), settings)
    ledger, made = Ledger.empty(held.shape[1]), []
    for number in range(rounds):
        decision = decides.decide(ledger, LOADS, held, 0, COST, np.random.default_rng(number))
        ledger = ledger.after(decision.samples, decision.round_seconds)
        made.append(decision)
    return made


@EVERY_POLICY
def test_no_round_trains_more_than_the_most_samples(policy: str) -> None:
    free = played(policy, 12)
    made = played(policy, 12, max_samples=25)
    assert max(sum(d.samples) for d in free) > 25, "the limit would not be tried"
    assert max(sum(d.samples) for d in made) == 25
    for decision in made:
        weighed = [c for c in decision.candidates if c.node == decision.node]
        assert decision.node is None or (weighed[0].samples, weighed[0].compute_seconds) == (
            sum(decision.samples),
            decision.compute_seconds,
        )


@EVERY_POLICY
def test_no_round_trains_longer_than_its_hops_or_h(policy: str) -> None:
    # A hop takes 10 ms and a sample 1 ms: three hops are 30 samples, unless H is longer.
    free = played(policy, 12, wait_seconds=0.001)
    assert max(sum(d.samples) for d in free) > 40, "the limit would not be tried"
    made = played(policy, 12, wait_seconds=0.001, max_hops=3.0)
    assert max(sum(d.samples) for d in made) == 30
    assert max(sum(d.samples) for d in played(policy, 12, wait_seconds=0.04, max_hops=3.0)) == 40
    assert max(sum(d.samples) for d in played(policy, 12, wait_seconds=0.04, max_hops=3.0, max_samples=25)) == 25


def test_a_round_is_as_long_as_the_quickest_hop_and_the_fastest_node_say() -> None:
    settings = PolicySettings(max_hops=2.0, wait_seconds=1e-6)
    # Node 3 has the weights already, node 4 does not report: the quickest hop is the 20 ms to node 2.
    loads = Loads((1e9, 1e9, 4e9, 1e9, np.nan), (np.inf, 1e7, 5e7, np.inf, np.nan))
    assert most_samples(settings, loads, 0, COST) == 160
    assert most_samples(settings, Loads((1e9,), (np.inf,)), 0, COST) is None, "one node alone has no hop to save"
    assert most_samples(PolicySettings(), loads, 0, COST) is None


@EVERY_POLICY
def test_without_the_keys_a_policy_is_itself(policy: str) -> None:
    found = policy_named(policy)
    assert guarded(found, PolicySettings()) is found


@EVERY_POLICY
def test_every_node_is_visited_in_time(policy: str) -> None:
    made = played(policy, 24, visit_every=6)
    for first in range(0, 19):
        assert {d.node for d in made[first : first + 6]} >= {0, 1, 2}
    assert any("its visit is due" in d.reason for d in made)


def test_one_rare_label_does_not_pin_the_run_to_the_site_that_has_it() -> None:
    held = np.array([[300, 300, 300, 0], [300, 300, 300, 0], [0, 0, 0, 1]])

    def of_sixty(**keys: object) -> tuple[int, int]:
        """Rounds at node 1, and samples of all labels but the rare one."""
        made = played("load-aware", 60, held, variance_limit=4.0, **keys)
        return sum(d.node == 1 for d in made), sum(sum(d.samples[:3]) for d in made)

    never, few = of_sixty()
    assert never == 0, "without the keys node 0 and the rare label's node take turns"
    assert of_sixty(visit_every=4)[0] >= 15
    assert of_sixty(shares="population")[1] > 3 * few


@pytest.mark.parametrize("policy", ["load-aware", "variance-first", "express"])
def test_the_labels_follow_the_shares_within_v(policy: str) -> None:
    held = np.full((3, 3), 200)
    shares = (0.5, 0.3, 0.2)
    made = played(policy, 30, held, shares=shares, variance_limit=50.0)
    used = np.sum([d.samples for d in made], axis=0)
    assert used / used.sum() == pytest.approx(shares, abs=0.02)
    relative = used / (3 * np.array(shares))
    variance = float((np.array(shares) * (relative - used.sum() / 3) ** 2).sum())
    assert made[-1].label_variance == pytest.approx(variance)
    assert variance <= 50.0 * (1 + 1e-9)


def test_a_mix_of_the_population_lets_a_site_train_what_it_has() -> None:
    held = np.array([[900, 90, 10], [900, 90, 10], [900, 90, 10]])
    uniform = sum(sum(d.samples) for d in played("load-aware", 5, held, variance_limit=100.0))
    population = sum(sum(d.samples) for d in played("load-aware", 5, held, variance_limit=100.0, shares="population"))
    assert population > 5 * uniform


def test_what_is_cut_keeps_its_proportions() -> None:
    samples = np.array([[60, 30, 10], [5, 5, 5], [0, 0, 0]])
    assert thinned(samples, 10).tolist() == [[6, 3, 1], [4, 3, 3], [0, 0, 0]]


def test_a_node_that_does_not_report_is_not_visited() -> None:
    settings = PolicySettings(visit_every=3)
    decides = guarded(policy_named("load-aware", settings), settings)
    loads = Loads((1e9, float("nan"), 1e9), (np.inf, float("nan"), 1e8))
    for number in range(6):
        ledger = Ledger((0,) * 4, 0.0, number)
        assert decides.decide(ledger, loads, HELD, 0, COST, np.random.default_rng(0)).node != 1

"""One contract for every built-in policy, then each policy's own rule against a reference written here.

References use Python integers and fractions and none of the code under test.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tramfl.notation import BadInput, Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling import PolicySettings, policy_named, policy_names
from tramfl.scheduling.policy import as_policy, check_decision, with_names

NAN, INF = math.nan, math.inf
BUILT_IN = ("load-aware", "random", "time-first", "variance-first", "tram", "express")
EXACT = 1e-12
"""Relative: what a handful of float operations may be off by."""


UNHURRIED = settings(max_examples=30, deadline=None)
"""Two cores are shared: a slow example is no fault."""

UNIT_COST = ModelCost(flops_per_sample=1.0, model_bits=1.0)


@dataclass(frozen=True)
class State:
    """What `decide` is given, and the operator's settings."""

    ledger: Ledger
    loads: Loads
    held: list[list[int]]
    holder: NodeId = 0
    cost: ModelCost = UNIT_COST
    limit: float = 10_000.0
    wait: float = 1.0

    @property
    def stock(self) -> NDArray[np.int64]:
        return np.array(self.held, dtype=np.int64)

    @property
    def nodes(self) -> range:
        return range(len(self.held))

    def reported(self, node: NodeId) -> bool:
        return not (math.isnan(self.loads.flops[node]) or math.isnan(self.loads.bandwidth[node]))

    @property
    def reachable(self) -> list[int]:
        labels = range(len(self.ledger.used))
        return [c for c in labels if any(self.held[n][c] for n in self.nodes if self.reported(n))]

    def decide(self, policy: str, seed: int = 0) -> Decision:
        chosen = policy_named(policy, PolicySettings(self.limit, self.wait))
        rng = np.random.default_rng(seed)
        return chosen.decide(self.ledger, self.loads, self.stock, self.holder, self.cost, rng)

    def after(self, decision: Decision) -> State:
        """The same nodes and loads one round later; the model is where it was trained."""
        holder = self.holder if decision.node is None else decision.node
        ledger = self.ledger.after(decision.samples, decision.round_seconds)
        bandwidth = tuple(INF if n == holder else 1.0 for n in self.nodes)
        return State(ledger, Loads(self.loads.flops, bandwidth), self.held, holder, self.cost, self.limit, self.wait)

    # The paper's equations once more.

    def t_comp(self, node: NodeId, samples: int) -> float:
        return self.cost.flops_per_sample * samples / self.loads.flops[node]

    def t_comm(self, node: NodeId) -> float:
        return 0.0 if node == self.holder else self.cost.model_bits / self.loads.bandwidth[node]

    def o3(self, node: NodeId | None, samples: int) -> float:
        skipped = node is None or samples == 0
        t_round = self.wait if skipped else self.t_comp(node or 0, samples) + self.t_comm(node or 0)
        return (samples + sum(self.ledger.used)) / (t_round + self.ledger.seconds + 1)


def variance(counts: Sequence[int]) -> Fraction:
    mean = Fraction(sum(counts), len(counts))
    return Fraction(sum((c - mean) ** 2 for c in counts)) / len(counts)


def added(used: Sequence[int], samples: Sequence[int]) -> list[int]:
    return [a + s for a, s in zip(used, samples, strict=True)]


@st.composite
def states(draw: st.DrawFn, everybody_reports: bool = False) -> State:
    """Any federation: silent nodes (the holder too), empty ones, labels nobody holds, histories far above V."""
    nodes, labels = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    count = st.just(0) | st.integers(0, 60) | st.integers(0, 5000)
    held = draw(st.lists(st.lists(count, min_size=labels, max_size=labels), min_size=nodes, max_size=nodes))
    used = draw(st.lists(st.integers(0, 300) | st.integers(0, 10**9), min_size=labels, max_size=labels))
    holder = draw(st.integers(0, nodes - 1))
    silence = st.nothing() if everybody_reports else st.just(NAN)
    flops = draw(st.lists(st.floats(1e9, 1e13) | silence, min_size=nodes, max_size=nodes))
    links = draw(st.lists(st.floats(1e6, 1e9) | silence, min_size=nodes, max_size=nodes))
    links[holder] = INF
    return State(
        Ledger(tuple(used), draw(st.floats(0, 1e6)), draw(st.integers(0, 10**4))),
        Loads(tuple(flops), tuple(links)),
        held,
        holder,
        ModelCost(draw(st.floats(1e6, 1e10)), draw(st.floats(1e6, 1e9))),
        draw(st.sampled_from([0.0, 0.25, 50.0, 10_000.0, 1e15, INF])),
        draw(st.floats(0.01, 100.0)),
    )


SILENT = State(Ledger((1, 2)), Loads((NAN, NAN), (INF, NAN)), [[5, 5], [5, 5]])
EMPTY = State(Ledger((1, 2)), Loads((1.0, 1.0), (INF, 1.0)), [[0, 0], [0, 0]])
HALF_LOST = State(Ledger((100, 0, 3)), Loads((1.0, NAN), (INF, NAN)), [[60, 0, 60], [0, 60, 0]], limit=4.0)


@pytest.mark.parametrize("policy", BUILT_IN)
class TestEveryPolicy:
    """What holds for every policy."""

    @UNHURRIED
    @given(state=states(), seed=st.integers(0, 2**32))
    @example(state=SILENT, seed=0)
    @example(state=EMPTY, seed=0)
    @example(state=HALF_LOST, seed=0)
    def test_a_decision_can_be_carried_out(self, policy: str, state: State, seed: int) -> None:
        decision = state.decide(policy, seed)
        check_decision(decision, state.loads, state.stock)
        assert decision.policy == policy
        if decision.node is None:
            assert not any(decision.samples)
        else:
            assert state.reported(decision.node)
            assert sum(decision.samples) >= 1
        assert all(state.reported(c.node) for c in decision.candidates)

    @UNHURRIED
    @given(state=states(), seed=st.integers(0, 2**32))
    def test_predicted_times_and_scores_are_the_equations(self, policy: str, state: State, seed: int) -> None:
        decision = state.decide(policy, seed)
        for c in decision.candidates:
            assert c.compute_seconds == pytest.approx(state.t_comp(c.node, c.samples), rel=EXACT)
            assert c.transfer_seconds == pytest.approx(state.t_comm(c.node), rel=EXACT)
            assert c.score == pytest.approx(state.o3(c.node, c.samples), rel=EXACT)
            assert c.score_of_waiting == pytest.approx(state.o3(None, 0), rel=EXACT)
        times = (decision.compute_seconds, decision.transfer_seconds, decision.idle_seconds)
        if decision.node is None:
            assert times == (0.0, 0.0, state.wait)
        else:
            total = sum(decision.samples)
            (chosen,) = (c for c in decision.candidates if c.node == decision.node)
            assert chosen.samples == total
            assert times == pytest.approx(
                (state.t_comp(decision.node, total), state.t_comm(decision.node), 0.0), rel=EXACT
            )

    @UNHURRIED
    @given(state=states(), seed=st.integers(0, 2**32))
    def test_the_same_inputs_and_seed_give_the_same_decision(self, policy: str, state: State, seed: int) -> None:
        assert state.decide(policy, seed) == state.decide(policy, seed)

    @UNHURRIED
    @given(state=states(), seed=st.integers(0, 2**32))
    @example(state=HALF_LOST, seed=0)
    def test_labels_out_of_reach_are_listed_and_leave_the_balance(self, policy: str, state: State, seed: int) -> None:
        decision = state.decide(policy, seed)
        reachable = state.reachable
        assert set(decision.unreachable_labels) == set(range(len(state.ledger.used))) - set(reachable)
        if decision.node is not None:
            (chosen,) = (c for c in decision.candidates if c.node == decision.node)
            y = added(state.ledger.used, decision.samples)
            balance = variance([y[c] for c in reachable])
            assert chosen.label_variance == pytest.approx(float(balance), rel=1e-9, abs=1e-9)
            assert chosen.feasible == (chosen.label_variance <= state.limit * (1 + 1e-9))

    @UNHURRIED
    @given(state=states(), seed=st.integers(0, 2**32))
    def test_every_candidate_has_finite_scores(self, policy: str, state: State, seed: int) -> None:
        for c in state.decide(policy, seed).candidates:
            figures = (c.score, c.score_of_waiting, c.compute_seconds, c.transfer_seconds, c.label_variance)
            assert all(math.isfinite(figure) and figure >= 0 for figure in figures)

    @UNHURRIED
    @given(state=states(), seed=st.integers(0, 2**32))
    @example(state=SILENT, seed=0)
    @example(state=EMPTY, seed=0)
    @example(state=HALF_LOST, seed=0)
    def test_the_reason_is_one_sentence(self, policy: str, state: State, seed: int) -> None:
        reason = state.decide(policy, seed).reason
        assert reason.endswith(".")
        assert reason[0].isupper()
        assert ". " not in reason
        assert "\n" not in reason

    def test_the_reason_names_the_labels_out_of_reach(self, policy: str) -> None:
        assert "; label 1 is left out of the balance" in HALF_LOST.decide(policy).reason

    def test_nobody_trains_when_nobody_reports(self, policy: str) -> None:
        decision = SILENT.decide(policy)
        assert decision.node is None
        assert decision.reason == "Nobody trains: no node reported its load."

    def test_nobody_trains_when_nobody_holds_a_sample(self, policy: str) -> None:
        assert EMPTY.decide(policy).node is None

    def test_the_inputs_stay_as_they_were(self, policy: str) -> None:
        held = HALF_LOST.stock
        held.flags.writeable = False
        chosen = policy_named(policy, PolicySettings(4.0))
        chosen.decide(HALF_LOST.ledger, HALF_LOST.loads, held, 0, HALF_LOST.cost, np.random.default_rng(0))


# Load-aware: P2 by brute force.


@st.composite
def tiny_states(draw: st.DrawFn) -> State:
    """Few enough samples to try every allotment; seconds and samples of one magnitude, so that both matter."""
    nodes, labels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    held = draw(
        st.lists(st.lists(st.integers(0, 4), min_size=labels, max_size=labels), min_size=nodes, max_size=nodes)
    )
    holder = draw(st.integers(0, nodes - 1))
    figure = st.integers(1, 8).map(float) | st.floats(0.1, 10.0)
    links = draw(st.lists(figure, min_size=nodes, max_size=nodes))
    links[holder] = INF
    return State(
        Ledger(
            tuple(draw(st.lists(st.integers(0, 6), min_size=labels, max_size=labels))), draw(st.just(0.0) | figure)
        ),
        Loads(tuple(draw(st.lists(figure, min_size=nodes, max_size=nodes))), tuple(links)),
        held,
        holder,
        ModelCost(draw(figure), draw(figure)),
        draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 6.0])),
        draw(figure),
    )


def every_allotment(state: State, node: NodeId) -> dict[tuple[int, ...], Fraction]:
    """All whole allotments of a node, with the variance over the labels within reach that each leaves."""
    ranges = (range(count + 1) for count in state.held[node])
    left = {}
    for samples in itertools.product(*ranges):
        y = added(state.ledger.used, samples)
        left[samples] = variance([y[c] for c in state.reachable])
    return left


@given(state=tiny_states())
@settings(max_examples=250, deadline=None)
def test_load_aware_attains_the_highest_o3_that_s_star_or_0_can(state: State) -> None:
    assume(state.reachable)
    left = {n: every_allotment(state, n) for n in state.nodes}
    s_star = {n: max((sum(s) for s, v in left[n].items() if v <= state.limit), default=None) for n in state.nodes}
    decision = state.decide("load-aware")
    total = sum(decision.samples)
    if all(s is None for s in s_star.values()):
        least = min(v for each in left.values() for v in each.values())
        now = variance([state.ledger.used[c] for c in state.reachable])
        assert (now if decision.node is None else left[decision.node][decision.samples]) == least
        return
    trained = [state.o3(n, s) for n, s in s_star.items() if s]
    waiting = state.o3(None, 0)
    assert state.o3(decision.node, total) == pytest.approx(max([waiting, *trained]), rel=EXACT)
    if decision.node is not None:
        assert left[decision.node][decision.samples] <= state.limit
        assert total == s_star[decision.node]
    best = max(trained, default=-INF)
    if best > waiting * (1 + EXACT):
        assert decision.node is not None
    if best < waiting * (1 - EXACT):
        assert decision.node is None


@given(state=tiny_states())
@settings(max_examples=60, deadline=None)
def test_load_aware_reports_s_star_of_every_node_that_reported(state: State) -> None:
    assume(state.reachable)
    candidates = state.decide("load-aware").candidates
    assert [c.node for c in candidates] == list(state.nodes)
    for c in candidates:
        left = every_allotment(state, c.node)
        within = [sum(s) for s, v in left.items() if v <= state.limit]
        assert c.feasible == bool(within)
        if within:
            assert c.samples == max(within)


@pytest.mark.parametrize("holder", [0, 1, 2])
def test_load_aware_breaks_ties_in_favour_of_the_holder(holder: NodeId) -> None:
    # Every link is free, so that all three nodes score the same.
    alike = State(Ledger((5, 5)), Loads((20.0,) * 3, (INF,) * 3), [[4, 4]] * 3, holder)
    assert alike.decide("load-aware").node == holder


@pytest.mark.parametrize("holder", [0, 1, 2])
def test_load_aware_above_v_breaks_ties_in_favour_of_the_holder(holder: NodeId) -> None:
    alike = State(Ledger((500, 0)), Loads((2.0,) * 3, (INF,) * 3), [[4, 4]] * 3, holder, limit=10.0)
    assert alike.decide("load-aware").node == holder


def test_load_aware_trains_when_s_star_scores_as_much_as_waiting() -> None:
    # O3(0) = 2 / (0 + 1 + 1). Node 1 takes 3 s for three samples and 1 s for the hop: O3 = (3 + 2) / (4 + 0 + 1).
    # The holder has nothing to train and so scores as much as waiting: it must not win the tie and stop the round.
    tie = State(Ledger((2,)), Loads((1.0, 1.0), (INF, 1.0)), [[0], [3]])
    decision = tie.decide("load-aware")
    assert [c.score for c in decision.candidates] == [1.0, 1.0]
    assert decision.node == 1


def test_load_aware_waits_when_waiting_scores_higher() -> None:
    slow = State(Ledger((100, 100), seconds=1.0), Loads((0.01, 0.01), (INF, 0.01)), [[4, 4], [4, 4]])
    decision = slow.decide("load-aware")
    assert decision.node is None
    assert decision.reason.startswith("Nobody trains: the best, node 0, would bring 0.259")
    # The longer it waits the less waiting brings: such a round does not last for ever.
    late = State(Ledger((100, 100), seconds=1e6), slow.loads, slow.held)
    assert late.decide("load-aware").node is not None


def test_load_aware_says_when_nobody_may_add_a_sample() -> None:
    full = State(Ledger((10, 10)), Loads((1.0, 1.0), (INF, 1.0)), [[5, 0], [0, 5]], limit=0.0)
    decision = full.decide("load-aware")
    assert decision.node is None
    assert "no reporting node can add a sample" in decision.reason


@pytest.mark.parametrize("policy", ["load-aware", "variance-first"])
@pytest.mark.parametrize("used", [(1000, 0, 0, 0), (400, 900, 3, 0), (0, 0, 0, 700)])
def test_a_history_above_v_is_brought_back_under_it(policy: str, used: tuple[int, ...]) -> None:
    held = [[40, 40, 0, 0], [0, 40, 40, 0], [0, 0, 40, 40], [40, 0, 0, 40]]
    state = State(Ledger(used), Loads((100.0,) * 4, (INF, 1.0, 1.0, 1.0)), held, limit=100.0)
    seen = [state.ledger.label_variance]
    for _ in range(200):
        state = state.after(state.decide(policy))
        seen.append(state.ledger.label_variance)
    arrived = next(i for i, v in enumerate(seen) if v <= 100.0)
    assert all(later <= earlier for earlier, later in itertools.pairwise(seen[: arrived + 1]))
    assert max(seen[arrived:]) <= 100.0


def test_load_aware_above_v_says_who_comes_closest() -> None:
    state = State(Ledger((100, 0)), Loads((1.0, 1.0), (INF, 1.0)), [[50, 1], [50, 0]], limit=10.0)
    decision = state.decide("load-aware")
    assert (decision.node, decision.samples) == (0, (0, 1))
    assert decision.reason == (
        "No node can bring the label variance within V = 10; node 0 keeps the model and trains 1 sample"
        " and comes closest, to 2,450.25."
    )


def test_load_aware_waits_where_no_single_node_can_lower_a_variance_above_v() -> None:
    # One label raised by one leaves (1, 0, 1), as far from balance as (0, 0, 1).
    state = State(Ledger((0, 0, 1)), Loads((1.0,) * 3, (INF, 1.0, 1.0)), np.eye(3, dtype=int).tolist(), limit=0.1)
    decision = state.decide("load-aware")
    assert decision.node is None
    assert "no reporting node can lower it" in decision.reason


# Random.


def test_random_draws_every_reporting_node_equally_often() -> None:
    state = State(Ledger.empty(2), Loads((1.0, NAN, 1.0, 1.0), (INF, NAN, 1.0, 1.0)), [[1000, 1000]] * 4)
    rng = np.random.default_rng(7)
    policy = policy_named("random")
    drawn = [policy.decide(state.ledger, state.loads, state.stock, 0, state.cost, rng).node for _ in range(1500)]
    chi_square = sum((drawn.count(n) - 500) ** 2 / 500 for n in (0, 2, 3))
    assert drawn.count(1) == 0
    assert chi_square < 13.8  # 2 degrees of freedom, one in a thousand


def test_random_draws_the_part_of_each_label_uniformly_up_to_a_tenth() -> None:
    state = State(Ledger.empty(3), Loads((1.0,), (INF,)), [[100_000] * 3])
    rng = np.random.default_rng(8)
    policy = policy_named("random")
    decisions = [policy.decide(state.ledger, state.loads, state.stock, 0, state.cost, rng) for _ in range(1000)]
    parts = np.array([d.samples for d in decisions]) / 100_000
    assert parts.min() >= 0.0
    assert parts.max() <= 0.1
    for label in range(3):
        counts, _ = np.histogram(parts[:, label], bins=10, range=(0.0, 0.1))
        assert ((counts - 100) ** 2 / 100).sum() < 27.9  # 9 degrees of freedom, one in a thousand
    assert np.abs(np.corrcoef(parts.T) - np.eye(3)).max() < 0.11  # 3.5 standard errors


def test_random_waits_when_its_draw_comes_to_no_whole_sample() -> None:
    state = State(Ledger.empty(1), Loads((1.0,), (INF,)), [[4]])
    decision = state.decide("random")
    assert decision.node is None
    assert "node 0 was drawn" in decision.reason


# Time-first and Tram, which fix x = 0.1.


def a_tenth(counts: Sequence[int]) -> list[int]:
    return [round(Fraction(count, 10)) for count in counts]


@UNHURRIED
@given(state=states())
def test_time_first_takes_the_shortest_round_at_a_tenth_of_the_data(state: State) -> None:
    decision = state.decide("time-first")
    totals = {n: sum(a_tenth(state.held[n])) for n in state.nodes if state.reported(n)}
    rounds = {n: state.t_comp(n, s) + state.t_comm(n) for n, s in totals.items() if s}
    if decision.node is None:
        assert not rounds
    else:
        assert list(decision.samples) == a_tenth(state.held[decision.node])
        assert decision.round_seconds == pytest.approx(min(rounds.values()), rel=EXACT)


@UNHURRIED
@given(state=states())
def test_tram_leaves_the_least_variance_that_a_tenth_of_any_nodes_data_can(state: State) -> None:
    decision = state.decide("tram")
    offers = {n: a_tenth(state.held[n]) for n in state.nodes if state.reported(n)}
    left = {}
    for n, samples in offers.items():
        if any(samples):
            y = added(state.ledger.used, samples)
            left[n] = variance([y[c] for c in state.reachable])
    if decision.node is None:
        assert not left
    else:
        assert list(decision.samples) == offers[decision.node]
        assert float(left[decision.node]) == pytest.approx(float(min(left.values())), rel=EXACT)


@pytest.mark.parametrize("policy", ["time-first", "tram"])
@pytest.mark.parametrize("holder", [0, 1, 2])
def test_policies_of_a_tenth_break_ties_in_favour_of_the_holder(policy: str, holder: NodeId) -> None:
    alike = State(Ledger((5, 5)), Loads((2.0,) * 3, (INF,) * 3), [[40, 40]] * 3, holder)
    assert alike.decide(policy).node == holder


@UNHURRIED
@given(
    counts=st.lists(st.integers(0, 9000), min_size=2, max_size=12).filter(lambda counts: max(counts) > 5),
    rng=st.randoms(use_true_random=False),
)
def test_tram_sees_a_tie_between_nodes_that_hold_the_same_counts_of_other_labels(
    counts: list[int], rng: Random
) -> None:
    # Summed as floats in another order the same deviations differ in the last digit, and that digit would decide.
    held = [rng.sample(counts, len(counts)) for _ in range(5)]
    every_label = [[count + 10 for count in row] for row in held]
    state = State(Ledger.empty(len(counts)), Loads((1.0,) * 5, (INF,) * 5), every_label, holder=4)
    assert state.decide("tram").node == 4


@pytest.mark.parametrize("policy", ["time-first", "tram"])
def test_policies_of_a_tenth_pass_over_a_node_with_less_than_one_sample(policy: str) -> None:
    state = State(Ledger((0, 0)), Loads((1.0, 1.0), (INF, 1.0)), [[4, 4], [40, 40]])
    assert state.decide(policy).node == 1
    nobody = State(Ledger((0, 0)), Loads((1.0, 1.0), (INF, 1.0)), [[4, 4], [4, 4]])
    assert nobody.decide(policy).node is None


# Variance-first.


@UNHURRIED
@given(state=states(everybody_reports=True))
def test_variance_first_gives_every_node_its_turn_by_the_rounds_number(state: State) -> None:
    assume(state.reachable)
    decision = state.decide("variance-first")
    turn = state.ledger.round % len(state.held)
    assert [c.node for c in decision.candidates] == [turn]
    assert decision.node in (turn, None)


def test_variance_first_passes_the_turn_of_a_silent_node_to_the_next() -> None:
    loads = Loads((1.0, NAN, NAN, 1.0), (INF, NAN, NAN, 1.0))
    turns = [State(Ledger((0, 0), round=k), loads, [[9, 9]] * 4).decide("variance-first").node for k in range(5)]
    assert turns == [0, 3, 3, 3, 0]


@UNHURRIED
@given(state=states(everybody_reports=True))
def test_variance_first_keeps_a_variance_that_is_within_v_there(state: State) -> None:
    reachable = state.reachable
    assume(reachable and variance([state.ledger.used[c] for c in reachable]) <= state.limit)
    y = added(state.ledger.used, state.decide("variance-first").samples)
    assert float(variance([y[c] for c in reachable])) <= state.limit * (1 + 1e-9)


def test_variance_first_is_not_stopped_by_a_node_with_nothing_to_add() -> None:
    # Node 1 holds only the label that is ahead: its turn is a skipped round, and the cycle goes on.
    held = [[6, 6, 6], [50, 0, 0], [6, 6, 6]]
    state = State(Ledger((12, 0, 0)), Loads((1.0,) * 3, (INF, 1.0, 1.0)), held, limit=32.0)
    nodes = []
    for _ in range(6):
        decision = state.decide("variance-first")
        nodes.append(decision.node)
        state = state.after(decision)
        assert state.ledger.label_variance <= 32.0
    assert nodes[0] == 0
    assert nodes[2] == 2
    assert nodes[3] == 0
    assert nodes[5] == 2
    blocked = State(Ledger((12, 0, 0), round=1), state.loads, held, limit=32.0).decide("variance-first")
    assert blocked.node is None
    assert blocked.reason.startswith("Nobody trains: it is node 1's turn")


@UNHURRIED
@given(state=states(everybody_reports=True), speed=st.floats(1e-3, 1e3))
def test_variance_first_ignores_the_loads(state: State, speed: float) -> None:
    other = Loads(tuple(f * speed for f in state.loads.flops), tuple(b * speed for b in state.loads.bandwidth))
    slower = State(state.ledger, other, state.held, state.holder, state.cost, state.limit, state.wait)
    first, second = state.decide("variance-first"), slower.decide("variance-first")
    assert (first.node, first.samples) == (second.node, second.samples)


# What cannot be carried out is refused, whichever policy decided it.


GOOD = Decision("mine", 1, (2, 0), 1.0, 1.0, 0.0, "So.")
SKIP = Decision("mine", None, (0, 0), 0.0, 0.0, 1.0, "So.")
HALF: Any = 1.5


@pytest.mark.parametrize("decision", [GOOD, SKIP])
def test_a_decision_that_can_be_carried_out_passes(decision: Decision) -> None:
    check_decision(decision, Loads((1.0, 1.0, NAN), (INF, 1.0, NAN)), np.array([[5, 5], [2, 0], [5, 5]]))


@pytest.mark.parametrize(
    ("decision", "complaint"),
    [
        (Decision("mine", 1, (2,), 1.0, 1.0, 0.0, "So."), "it takes 2 ints"),
        (Decision("mine", 1, (2, 0, 0), 1.0, 1.0, 0.0, "So."), "it takes 2 ints"),
        (Decision("mine", 1, (2, -1), 1.0, 1.0, 0.0, "So."), "none below 0"),
        (Decision("mine", 1, (HALF, 0), 1.0, 1.0, 0.0, "So."), "it takes 2 ints"),
        (Decision("mine", HALF, (1, 0), 1.0, 1.0, 0.0, "So."), "it takes 2 ints"),
        (Decision("mine", 1, (2, 0), None, 1.0, 0.0, "So."), "must be a number of at least 0"),  # type: ignore[arg-type]
        (Decision("mine", 2, (1, 1), 1.0, 1.0, 0.0, "So."), "for node 2, which did not report; [0, 1] did"),
        (Decision("mine", 3, (1, 1), 1.0, 1.0, 0.0, "So."), "for node 3, which did not report"),
        (Decision("mine", -1, (1, 1), 1.0, 1.0, 0.0, "So."), "for node -1, which did not report"),
        (Decision("mine", 1, (3, 0), 1.0, 1.0, 0.0, "So."), "which holds [2, 0]"),
        (Decision("mine", 1, (0, 1), 1.0, 1.0, 0.0, "So."), "which holds [2, 0]"),
        (Decision("mine", 1, (0, 0), 1.0, 1.0, 0.0, "So."), "to skip, node must be None"),
        (Decision("mine", None, (1, 0), 0.0, 0.0, 1.0, "So."), "that nobody trains, but gave samples"),
        (Decision("mine", None, (0, 0), 0.0, 0.0, 0.0, "So."), "no idle_seconds to wait"),
        (Decision("mine", 1, (2, 0), NAN, 1.0, 0.0, "So."), "must be a number of at least 0"),
        (Decision("mine", 1, (2, 0), 1.0, INF, 0.0, "So."), "must be a number of at least 0"),
        (Decision("mine", None, (0, 0), 0.0, 0.0, -1.0, "So."), "must be a number of at least 0"),
    ],
)
def test_a_decision_that_cannot_be_carried_out_is_refused(decision: Decision, complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_decision(decision, Loads((1.0, 1.0, NAN), (INF, 1.0, NAN)), np.array([[5, 5], [2, 0], [5, 5]]))
    assert str(caught.value).startswith("policy `mine` decided ")
    assert complaint in str(caught.value)
    assert str(caught.value).endswith(".")


def test_numpys_whole_numbers_in_a_decision_become_pythons_own() -> None:
    numpys: Any = (np.int64(2), np.int32(0))
    node: Any = np.int64(1)
    given = Decision("mine", node, numpys, np.float64(1.0), np.float32(1.0), 0, "So.")  # type: ignore[arg-type]
    found = check_decision(given, Loads((1.0, 1.0), (INF, 1.0)), np.array([[5, 5], [2, 0]]))
    assert found == GOOD
    assert {type(value) for value in (found.node, *found.samples)} == {int}
    assert type(found.idle_seconds) is float


@pytest.mark.parametrize(("returned", "what"), [(None, "returned None"), (3, "returned a int")])
def test_a_policy_that_returns_no_decision_is_refused(returned: object, what: str) -> None:
    with pytest.raises(BadInput, match=rf"{what}; decide must return a tramfl\.notation\.Decision"):
        check_decision(returned, Loads((1.0,), (INF,)), np.array([[5, 5]]))


# By name.


def test_the_built_in_policies_are_named_first() -> None:
    assert policy_names()[: len(BUILT_IN)] == list(BUILT_IN)


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(BadInput) as caught:
        policy_named("greedy")
    names = ", ".join(policy_names())
    assert str(caught.value) == (
        f"there is no policy `greedy`; choose one of {names}, or name a class as module:Class."
    )


Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make as if a package `acme-policies` were installed, with these entry points and this module."""

    def make(entry_points: str, module: str) -> None:
        info = tmp_path / "acme_policies-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-policies\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tramfl.policies]\n{entry_points}\n")
        (tmp_path / "acme_policies.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "acme_policies", raising=False)

    return make


STAY = """
from tramfl.notation import Decision

class Stay:
    def __init__(self, settings):
        self.settings = settings

    def decide(self, ledger, loads, held, holder, cost, rng):
        wait = self.settings.wait_seconds
        return Decision("stay", None, (0,) * held.shape[1], 0.0, 0.0, wait, "Nobody trains: on principle.")

no_policy = 3
"""


def test_a_policy_of_another_package_is_found_and_given_the_settings(install: Install) -> None:
    install("stay = acme_policies:Stay", STAY)
    assert policy_names() == [*BUILT_IN, "stay"]
    state = State(Ledger((0, 0)), Loads((1.0,), (INF,)), [[5, 5]], wait=7.0)
    decision = state.decide("stay")
    assert decision.idle_seconds == 7.0
    check_decision(decision, state.loads, state.stock)


def test_another_package_cannot_take_a_built_in_name(install: Install) -> None:
    install("tram = acme_policies:Stay", STAY)
    assert policy_names() == list(BUILT_IN)
    assert type(policy_named("tram")).__module__ == "tramfl.scheduling.baselines"


@pytest.mark.parametrize(
    ("value", "module", "cause"),
    [
        (
            "acme_policies:Stay",
            "import a_module_nobody_has",
            "ModuleNotFoundError: No module named 'a_module_nobody_has'",
        ),
        ("acme_policies:Go", STAY, "AttributeError: "),
        ("acme_elsewhere:Stay", STAY, "ModuleNotFoundError: No module named 'acme_elsewhere'"),
        ("acme_policies:Stay", "1 / 0", "ZeroDivisionError: division by zero"),
        ("acme_policies:Stay", "def", "SyntaxError: "),
        ("acme_policies:no_policy", STAY, "is no policy: it must be a callable that takes PolicySettings"),
    ],
)
def test_a_broken_policy_is_named_with_its_package_and_entry(
    install: Install, value: str, module: str, cause: str
) -> None:
    install(f"stay = {value}", module)
    with pytest.raises(BadInput) as caught:
        policy_named("stay")
    assert str(caught.value).startswith(f"policy `stay`, entry point `{value}` of acme-policies, ")
    assert cause in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "stay" in policy_names()


# By reference, or as the user's own object.


REFERENCES = {
    "Stay": "a class that takes the settings",
    "Plain": "a class that takes nothing",
    "made": "an object",
    "stay": "the function itself",
    "make": "a function that makes one",
}


@pytest.mark.parametrize("attribute", REFERENCES)
def test_a_policy_is_found_by_module_and_attribute(
    attribute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rules.py").write_text(
        STAY
        + """
class Plain(Stay):
    def __init__(self):
        from tramfl.scheduling import PolicySettings
        self.settings = PolicySettings()

made = Plain()
stay = made.decide
def make(settings):
    return Stay(settings)
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    state = State(Ledger((0, 0)), Loads((1.0,), (INF,)), [[5, 5]])
    assert state.decide(f"own_rules:{attribute}").reason == "Nobody trains: on principle."


@pytest.mark.parametrize(
    ("thing", "complaint"),
    [
        (3, "is no policy: it needs a method decide(ledger, loads, held, holder, cost, rng); it is a int."),
        (dict, "calling it gave a dict."),
        (lambda a, b, c: None, "or must be callable with PolicySettings or nothing."),
    ],
)
def test_what_is_no_policy_is_refused(thing: Any, complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        as_policy(thing, PolicySettings())
    assert complaint in str(caught.value)


def test_a_reason_has_the_names_of_the_nodes_and_not_their_numbers() -> None:
    said = with_names("Node 1 trains 5 samples, against 3 at node 0; label 1 and node 12 stay.", ("north", "south"))
    assert said == "south trains 5 samples, against 3 at north; label 1 and node 12 stay."

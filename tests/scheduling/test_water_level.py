"""P4's solver against brute force, exact integers and three general solvers.

Every claim about a variance is checked with Python integers and fractions, never with the solver's own figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, minimize

from tramfl.notation import BadInput
from tramfl.scheduling import water_level
from tramfl.scheduling.water_level import Allotment, largest_allotment

Counts = list[int]
BILLION = 10**9
TOLERANCE = Fraction(1, 10**9)
MARGIN = Fraction(1, 10**12)


@pytest.fixture(autouse=True)
def _floating_point_faults_are_errors() -> Iterator[None]:
    with np.errstate(all="raise", under="ignore"):
        yield


# Exact references.


def scaled_variance(y: Sequence[int] | Sequence[Fraction]) -> Any:
    """C^2 Var, exactly."""
    return len(y) * sum(v * v for v in y) - sum(y) ** 2


def exact_variance(used: Sequence[Any], samples: Sequence[Any]) -> Fraction:
    y = [Fraction(a) + Fraction(s) for a, s in zip(used, samples, strict=True)]
    return Fraction(scaled_variance(y), len(y) ** 2)


def brute_force(used: Counts, held: Counts, limit: Fraction) -> tuple[int | None, Fraction]:
    """Over every integer allotment: the largest total within `limit` (None if there is none), the least variance."""
    labels = len(used)
    grid = np.indices([count + 1 for count in held]).reshape(labels, -1)
    y = grid + np.array(used)[:, None]
    scaled = labels * (y * y).sum(axis=0) - y.sum(axis=0) ** 2
    totals = grid.sum(axis=0)[scaled <= math.floor(limit * labels**2)]
    return (int(totals.max()) if totals.size else None), Fraction(int(scaled.min()), labels**2)


def exact_by_bisection(used: Counts, held: Counts, limit: Fraction) -> tuple[int | None, Fraction]:
    """The same for counts of any size: bisect for the whole level, then for how many labels may rise by one."""
    labels = len(used)
    scaled_limit = limit * labels**2

    def fill(level: int) -> Counts:
        return [min(max(level, a), a + h) for a, h in zip(used, held, strict=True)]

    def last_true(low: int, high: int, holds: Any) -> int:
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if holds(middle) else (low, middle - 1)
        return low

    def meets(level: int) -> bool:
        return bool(scaled_variance(fill(level)) <= scaled_limit)

    highest = max(a + h for a, h in zip(used, held, strict=True))
    turn = last_true(min(used), highest, lambda level: labels * level <= sum(fill(level)))
    least = min(scaled_variance(fill(turn)), scaled_variance(fill(turn + 1)))
    if least > scaled_limit:
        return None, Fraction(least, labels**2)
    level = last_true(turn + 1, max(highest, turn + 1), meets) if meets(turn + 1) else turn
    y = fill(level)
    at_level = [c for c in range(labels) if used[c] <= level < used[c] + held[c]]

    def may_rise(number: int) -> bool:
        return bool(scaled_variance([v + (c in at_level[:number]) for c, v in enumerate(y)]) <= scaled_limit)

    return sum(y) - sum(used) + last_true(0, len(at_level), may_rise), Fraction(least, labels**2)


def check_whole(used: Counts, held: Counts, limit: float, reference: Any) -> Allotment:
    """Within the box, within V, and neither short of the exact optimum nor of the least variance."""
    got = largest_allotment(used, held, limit)
    samples = [int(s) for s in got.samples]
    variance = exact_variance(used, samples)
    assert all(0 <= s <= h for s, h in zip(samples, held, strict=True))
    assert got.total == sum(samples)
    assert abs(Fraction(float(got.variance)) - variance) <= TOLERANCE * variance
    best, least = reference(used, held, Fraction(limit))
    if got.feasible:
        assert variance <= Fraction(limit) * (1 + TOLERANCE)
        assert best is None or got.total >= best
        if best is None or got.total > best:  # only inside the margin that V is read with
            assert variance <= Fraction(limit) * (1 + 2 * MARGIN)
    else:
        assert best is None
        assert abs(variance - least) <= TOLERANCE * least
    return got


# Whole samples.


def small_cases(number: int, seed: int) -> Iterator[tuple[Counts, Counts, float]]:
    rng = np.random.default_rng(seed)
    for _ in range(number):
        labels = int(rng.integers(1, 6))
        used = rng.integers(0, rng.choice([1, 4, 12]), labels).tolist()
        held = rng.integers(0, 5, labels).tolist()
        # Half of the limits are variances that some allotment has: V then decides by a hair.
        y = np.array(used) + rng.integers(0, np.array(held) + 1)
        exact = float(Fraction(scaled_variance(y.tolist()), labels**2))
        yield used, held, exact if rng.random() < 0.5 else float(rng.choice([0.0, 0.1, 0.5, 1, 3, 20]) * rng.random())


def test_brute_force_never_beats_a_whole_allotment() -> None:
    feasible = [bool(check_whole(*case, brute_force).feasible) for case in small_cases(4000, seed=1)]
    assert 500 < sum(feasible) < 3500  # both kinds of history are among them


def test_the_bisection_reference_agrees_with_brute_force() -> None:
    for used, held, limit in small_cases(1000, seed=2):
        exact = Fraction(limit)
        assert exact_by_bisection(used, held, exact) == brute_force(used, held, exact)


@st.composite
def cases_of_any_size(draw: st.DrawFn) -> tuple[Counts, Counts, float]:
    labels = draw(st.integers(1, 12))
    base = draw(st.sampled_from([0, 10, 10**4, BILLION]))
    width = draw(st.sampled_from([0, 1, 7, 1000, 10**6, BILLION]))
    used = draw(st.lists(st.integers(base, base + width), min_size=labels, max_size=labels))
    some = st.integers(0, draw(st.sampled_from([0, 3, 1000, BILLION])))
    held = draw(st.lists(some, min_size=labels, max_size=labels))
    if draw(st.booleans()):
        return used, held, draw(st.sampled_from([0.0, 0.25, 2 / 3, 1.0, 1e4, 1e12, 1e18, math.inf]))
    # A variance that occurs on the way up, give or take the last digits: where rounding could cost a sample.
    level = draw(st.integers(min(used), max(a + h for a, h in zip(used, held, strict=True))))
    y = [min(max(level, a), a + h) for a, h in zip(used, held, strict=True)]
    factor = draw(st.sampled_from([1.0, 1.0, 1 - 2e-16, 1 + 1e-13, 1 - 1e-11]))
    return used, held, scaled_variance(y) / labels**2 * factor


@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(cases_of_any_size())
def test_exact_integers_never_beat_a_whole_allotment(case: tuple[Counts, Counts, float]) -> None:
    used, held, limit = case
    check_whole(used, held, min(limit, 1e300), exact_by_bisection)


@pytest.mark.parametrize("magnitude", [10**6, BILLION, 10**12, 10**14])
def test_huge_counts_cost_no_sample_even_where_the_variance_is_flat(magnitude: int) -> None:
    rng = np.random.default_rng(magnitude)
    for _ in range(150):
        labels = int(rng.integers(2, 9))
        used = rng.integers(0, magnitude, labels).tolist()
        held = rng.integers(0, [magnitude if rng.random() < 0.6 else 10 for _ in range(labels)]).tolist()
        _, least = exact_by_bisection(used, held, Fraction(0))
        # Just above the least reachable variance its graph is flat: a wide interval of levels is nearly as good.
        for factor in (1.0, 1 + 1e-15, 1 + 1e-9, 1.5):
            check_whole(used, held, float(least) * factor, exact_by_bisection)


def test_a_small_v_on_top_of_a_billion_is_resolved_exactly() -> None:
    rng = np.random.default_rng(3)
    for _ in range(400):
        labels = int(rng.integers(2, 12))
        used = (BILLION + rng.integers(0, 6, labels)).tolist()
        held = (rng.integers(0, 2, labels) * rng.integers(0, [12, BILLION][int(rng.integers(2))], labels)).tolist()
        y = np.array(used) + rng.integers(0, np.minimum(held, 8) + 1)
        check_whole(used, held, float(Fraction(scaled_variance(y.tolist()), labels**2)), exact_by_bisection)


def test_a_thousand_labels_of_a_billion_lose_no_sample() -> None:
    rng = np.random.default_rng(4)
    for limit in (0.3, 1e4, 1e16, 3e17):
        used = (BILLION + rng.integers(0, max(2, math.isqrt(int(limit))), 1000)).tolist()
        check_whole(used, rng.integers(0, BILLION, 1000).tolist(), limit, exact_by_bisection)


def test_the_largest_counts_let_in_are_solved_exactly_and_larger_ones_refused() -> None:
    most = 2**52 // (2 * 3) - 1
    used, held = [most, most - 1, 0], [most - 3, most, most]
    for limit in (0.0, 0.25, 1e30):
        check_whole(used, held, limit, exact_by_bisection)
    with pytest.raises(BadInput, match="used must hold counts from 0 to"):
        largest_allotment([most + 2, 0, 0], held, 1.0)
    with pytest.raises(BadInput, match="held must hold counts from 0 to"):
        largest_allotment(used, [most + 2, 0, 0], 1.0)


def test_a_v_that_fractions_meet_and_whole_samples_cannot_is_infeasible() -> None:
    # Between a label stuck at 0 and one stuck at 1 the third does best half-way: 1/6, in whole samples 2/9.
    used, held = [0, 1, 0], [0, 0, 1]
    fractions = largest_allotment(used, held, 0.2, whole=False)
    assert fractions.feasible
    assert 0.5 < float(fractions.total) < 1.0
    whole = largest_allotment(used, held, 0.2)
    assert not whole.feasible
    assert float(whole.variance) == pytest.approx(2 / 9)


@pytest.mark.parametrize("limit", [0.6666666666666666, 2 / 3, 0.6666666666663, 0.6666666666667])
def test_a_limit_rounded_in_its_last_digits_admits_the_counts_it_means(limit: float) -> None:
    # Var(0, 1, 2) is 2/3, which no float is.
    got = largest_allotment([0, 1, 0], [0, 0, 2], limit)
    assert got.feasible
    assert got.samples.tolist() == [0, 0, 2]
    assert largest_allotment([0, 1, 2], [0, 0, 0], limit, whole=False).feasible


def test_a_limit_short_by_a_billionth_does_not() -> None:
    assert largest_allotment([0, 1, 0], [0, 0, 2], 2 / 3 * (1 - 1e-9)).samples.tolist() == [0, 0, 1]


# Special shapes of the problem.


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("limit", [0, 0.0, 1.0, 1e300, math.inf])
def test_a_single_label_is_taken_whole(limit: float, whole: bool) -> None:
    got = largest_allotment([7], [5], limit, whole=whole)
    assert (got.samples.tolist(), float(got.total), float(got.variance), bool(got.feasible)) == ([5], 5, 0, True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_node_that_holds_nothing_is_feasible_exactly_when_the_history_is(whole: bool) -> None:
    for limit, feasible in ((1.0, True), (0.99, False)):  # Var(1, 3) = 1
        got = largest_allotment([1, 3], [0, 0], limit, whole=whole)
        assert got.feasible == feasible
        assert got.total == 0
        assert float(got.variance) == 1.0


@pytest.mark.parametrize("whole", [True, False])
def test_v_zero_fills_every_label_to_the_one_common_height(whole: bool) -> None:
    level = largest_allotment([3, 5, 0], [9, 2, 8], 0, whole=whole)
    assert level.feasible
    assert level.samples.tolist() == [4, 2, 7]
    apart = largest_allotment([3, 5, 0], [9, 2, 4], 0, whole=whole)
    assert not apart.feasible
    assert float(apart.total) in ({5, 6} if whole else {5.5})


@pytest.mark.parametrize("whole", [True, False])
def test_an_infinite_v_takes_everything(whole: bool) -> None:
    held = np.random.default_rng(5).integers(0, BILLION, (4, 6))
    got = largest_allotment(np.arange(6), held, math.inf, whole=whole)
    np.testing.assert_array_equal(got.samples, held)
    assert got.feasible.all()


def random_states(number: int, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
    rng = np.random.default_rng(seed)
    for _ in range(number):
        nodes, labels = rng.integers(1, 9, 2)
        used = rng.integers(0, 10 ** rng.integers(1, 6), labels)
        held = rng.integers(0, 10 ** rng.integers(1, 6), (nodes, labels)) * rng.integers(0, 2, (nodes, labels))
        yield used, held, float(rng.choice([0.0, 1.0, 1e4]) + used.var() * rng.random() * 1.2)


@pytest.mark.parametrize("whole", [True, False])
def test_all_nodes_at_once_give_what_each_gives_alone(whole: bool) -> None:
    mixed = 0
    for used, held, limit in random_states(300, seed=6):
        together = largest_allotment(used, held, limit, whole=whole)
        mixed += bool(together.feasible.any() and not together.feasible.all())
        for i, row in enumerate(held):
            alone = largest_allotment(used, row, limit, whole=whole)
            np.testing.assert_array_equal(together.samples[i], alone.samples)
            assert (together.total[i], together.variance[i], together.feasible[i]) == (
                alone.total,
                alone.variance,
                alone.feasible,
            )
    assert mixed > 20  # an infeasible node beside feasible ones is among them


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("labels", [3, 1000, water_level._BLOCK + 1])
def test_rows_are_solved_alike_on_either_side_of_a_block(labels: int, whole: bool) -> None:
    rng = np.random.default_rng(labels)
    per_block = max(1, water_level._BLOCK // labels)
    used = rng.integers(0, 300, labels)
    held = rng.integers(0, 600, (2 * per_block + 1, labels)) * rng.integers(0, 2, (2 * per_block + 1, 1))
    assert held.size > water_level._BLOCK
    got = largest_allotment(used, held, 6000.0, whole=whole)
    for i in (0, per_block - 1, per_block, 2 * per_block - 1, 2 * per_block):
        alone = largest_allotment(used, held[i], 6000.0, whole=whole)
        np.testing.assert_array_equal(got.samples[i], alone.samples)
        assert (got.total[i], got.variance[i], got.feasible[i]) == (alone.total, alone.variance, alone.feasible)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.4])
def test_few_held_labels_are_solved_to_the_bit_as_among_all(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    sparse = 0
    for _ in range(150):
        labels, most = int(rng.integers(20, 120)), int(10 ** rng.uniform(0, 7))
        used = rng.integers(0, most + 1, labels)
        held = rng.integers(0, most + 1, (6, labels)) * (rng.random((6, labels)) < share)
        for limit in (0.0, 1.0, 1e4, float(used.var()), 0.9 * float(used.var())):
            found = largest_allotment(used, held, limit)
            with monkeypatch.context() as patch:
                patch.setattr(water_level, "_MANY", math.inf)
                among_all = largest_allotment(used, held, limit)
            for name in ("samples", "total", "variance", "feasible"):
                np.testing.assert_array_equal(getattr(found, name), getattr(among_all, name))
        a, top = used.astype(float), (used + held).astype(float)
        sparse += water_level._that_rise(a, top)[1].shape[1] < labels
    assert sparse > 50


def test_whole_samples_never_exceed_fractions_and_stay_within_one_level_of_them() -> None:
    for used, held, limit in random_states(300, seed=7):
        whole = largest_allotment(used, held, limit)
        fractions = largest_allotment(used, held, limit, whole=False)
        assert not (whole.feasible & ~fractions.feasible).any()
        both = whole.feasible
        assert (whole.total[both] <= fractions.total[both] * (1 + 1e-9)).all()
        assert (whole.total[both] >= fractions.total[both] - used.size).all()


@pytest.mark.parametrize("whole", [True, False])
def test_a_larger_v_never_gives_fewer_samples(whole: bool) -> None:
    for used, held, limit in random_states(100, seed=8):
        limits = [limit, limit * 1.001 + 0.001, limit * 1.1 + 0.1, limit * 2 + 1, limit * 50 + 50]
        for tighter, looser in pairwise(largest_allotment(used, held, v, whole=whole) for v in limits):
            assert not (tighter.feasible & ~looser.feasible).any()
            more = looser.total >= tighter.total * (1 - 1e-12)
            assert more[tighter.feasible].all()


@pytest.mark.parametrize("whole", [True, False])
def test_a_larger_stock_never_gives_fewer_samples(whole: bool) -> None:
    rng = np.random.default_rng(9)
    for used, held, limit in random_states(200, seed=9):
        before = largest_allotment(used, held, limit, whole=whole)
        after = largest_allotment(used, held + rng.integers(0, 50, held.shape), limit, whole=whole)
        assert not (before.feasible & ~after.feasible).any()
        assert (after.total >= before.total * (1 - 1e-12))[before.feasible].all()
        assert (after.variance <= before.variance * (1 + 1e-12))[~after.feasible].all()


# Fractions.


@pytest.mark.parametrize("magnitude", [10, 10**4, 10**6, BILLION])
def test_fractions_never_violate_v_by_a_billionth_nor_leave_the_box(magnitude: int) -> None:
    rng = np.random.default_rng(magnitude)
    for _ in range(250):
        labels = int(rng.integers(1, 12))
        used = rng.integers(0, magnitude) + rng.integers(0, rng.choice([2, 100, magnitude]), labels)
        held = rng.integers(0, rng.choice([2, 100, magnitude]), labels)
        limit = float(rng.choice([1e-3, 1.0, 1e4, magnitude**2 * rng.random()]))
        got = largest_allotment(used, held, limit, whole=False)
        assert ((got.samples >= 0) & (got.samples <= held)).all()
        if got.feasible:
            variance = exact_variance(used.tolist(), got.samples.tolist())
            assert variance <= Fraction(limit) * (1 + TOLERANCE)


def test_fractional_counts_stay_in_the_box_and_within_v() -> None:
    rng = np.random.default_rng(10)
    for _ in range(400):
        labels = int(rng.integers(1, 12))
        used, held = rng.uniform(0, 100, labels), rng.uniform(0, 3000, labels) * rng.integers(0, 2, labels)
        limit = float(rng.choice([1e-3, 1.0, used.var() * rng.uniform(0.5, 1.5)]))
        got = largest_allotment(used, held, limit, whole=False)
        assert ((got.samples >= 0) & (got.samples <= held)).all()
        if got.feasible:
            variance = exact_variance(used.tolist(), got.samples.tolist())
            assert variance <= Fraction(limit) * (1 + TOLERANCE)


@pytest.mark.parametrize(
    ("used", "held", "total"),
    [
        ([0.1, 0.2, 0.3], [0.4, 0.3, 0.2], 0.9),
        ([0.1] * 6, [0.2, 0.2, 0.2, 0.2, 0.2, 0.9], 1.2),  # 6 times 0.1 is more than the sum of six
        ([0.1 + 0.2, 0.3], [0.0, 0.0], 0.0),
    ],
)
def test_equal_fractions_meet_v_zero_in_spite_of_their_last_digit(
    used: list[float], held: list[float], total: float
) -> None:
    got = largest_allotment(used, held, 0.0, whole=False)
    assert got.feasible
    assert float(got.total) == pytest.approx(total)


def continuous_cases(number: int, seed: int) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], float]]:
    """Feasible histories: V is at least the variance of `used`, so that every solver has a point to start from."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        labels = int(rng.integers(2, 11))
        used = rng.integers(0, 400, labels).astype(np.float64)
        held = (rng.integers(1, 3000, labels) * (rng.random(labels) < 0.7)).astype(np.float64)
        yield used, held, float(used.var() * rng.uniform(1.0, 1.5) + rng.choice([1.0, 100.0, 1e4]))


def best_share_within(used: NDArray[np.float64], held: NDArray[np.float64], x: Any, limit: float) -> float:
    """What of a rival's answer counts: its total where it meets V up to its tolerance of 1e-6, else nothing."""
    samples = np.clip(x, 0.0, 1.0) * held
    return float(samples.sum()) if (used + samples).var() <= limit * (1 + 1e-6) else 0.0


def check_rival(used: NDArray[np.float64], held: NDArray[np.float64], limit: float, x: Any) -> float:
    """A rival may gain what its own violation of V buys, and no more; returns its total relative to ours."""
    ours = largest_allotment(used, held, limit, whole=False)
    assert ours.feasible
    allowed = largest_allotment(used, held, limit * (1 + 2e-6), whole=False)
    theirs = best_share_within(used, held, x, limit)
    assert theirs <= float(allowed.total) * (1 + 1e-9) + 1e-9
    return theirs / max(float(ours.total), 1e-9)


def test_slsqp_never_finds_more() -> None:
    shares = []
    for used, held, limit in continuous_cases(120, seed=11):
        labels, scale = used.size, held.sum() or 1.0

        def room(x: Any, used: Any = used, held: Any = held, limit: float = limit) -> float:
            return float(1.0 - (used + x * held).var() / limit)

        def room_gradient(x: Any, used: Any = used, held: Any = held, limit: float = limit) -> Any:
            y = used + x * held
            return -2.0 * held * (y - y.mean()) / (used.size * limit)

        found = minimize(
            lambda x, held=held, scale=scale: -(x @ held) / scale,
            np.zeros(labels),
            jac=lambda x, held=held, scale=scale: -held / scale,
            bounds=[(0.0, 1.0)] * labels,
            constraints={"type": "ineq", "fun": room, "jac": room_gradient},
            method="SLSQP",
            options={"maxiter": 300, "ftol": 1e-10},
        )
        shares.append(check_rival(used, held, limit, found.x))
    assert np.median(shares) > 1 - 1e-4  # it does find our optimum: the comparison is not empty


def test_clarabel_never_finds_more() -> None:
    shares = []
    for used, held, limit in continuous_cases(60, seed=12):
        x = cvxpy.Variable(used.size)
        y = (used + cvxpy.multiply(held, x)) / math.sqrt(limit * used.size)
        within = cvxpy.sum_squares(y - cvxpy.sum(y) / used.size) <= 1.0
        problem = cvxpy.Problem(cvxpy.Maximize(held @ x / max(held.sum(), 1.0)), [within, x >= 0, x <= 1])
        with np.errstate(all="warn", under="ignore"):
            problem.solve(solver=cvxpy.CLARABEL)
        shares.append(check_rival(used, held, limit, x.value))
    assert np.median(shares) > 1 - 1e-4


def test_cobyqa_never_finds_more() -> None:
    shares = []
    for used, held, limit in continuous_cases(3, seed=13):
        used, held = used[:4], held[:4] + 1.0  # noqa: PLW2901  it takes seconds for ten labels
        limit = max(limit, float(used.var()))  # noqa: PLW2901

        def spread(x: Any, used: Any = used, held: Any = held) -> float:
            return float((used + x * held).var())

        with np.errstate(all="warn", under="ignore"):
            found = minimize(
                lambda x, held=held: -float(x @ held),
                np.zeros(used.size),
                bounds=[(0.0, 1.0)] * used.size,
                constraints=NonlinearConstraint(spread, -np.inf, limit),
                method="COBYQA",
                options={"maxfev": 200},  # the best it finds comes sooner; its own limit of 2,000 takes 15 s
            )
        shares.append(check_rival(used, held, limit, found.x))
    assert max(shares) > 0.95


# What comes in and what goes out.


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4), (0, 4)])
def test_the_answer_has_the_shape_of_held(shape: tuple[int, ...], whole: bool) -> None:
    got = largest_allotment(np.zeros(4, dtype=int), np.full(shape, 2), 1.0, whole=whole)
    assert got.samples.shape == shape
    assert got.total.shape == got.variance.shape == got.feasible.shape == shape[:-1]
    assert got.samples.dtype == got.total.dtype == (np.int64 if whole else np.float64)
    assert got.variance.dtype == np.float64
    assert got.feasible.dtype == np.bool_


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64, np.float32, np.float64])
def test_counts_of_any_numeric_type_give_one_answer(dtype: Any) -> None:
    used, held = [3, 100, 7], [[120, 1, 5], [0, 0, 99]]
    expected = largest_allotment(used, held, 400.0)
    got = largest_allotment(np.array(used, dtype=dtype), np.array(held, dtype=dtype), np.float64(400.0))
    np.testing.assert_array_equal(got.samples, expected.samples)
    assert got.samples.dtype == np.int64


def test_the_inputs_are_left_as_they_were() -> None:
    used, held = np.array([5.0, 0.0]), np.array([[1.0, 9.0]])
    largest_allotment(used, held, 1.0)
    largest_allotment(used, held, 1.0, whole=False)
    assert used.tolist() == [5.0, 0.0]
    assert held.tolist() == [[1.0, 9.0]]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("used", "held", "limit", "named"),
    [
        ([-1, 2], [1, 1], 1.0, "used"),
        ([1, 2], [1, -1], 1.0, "held"),
        ([1, 2], [[1, 1], [1, -1]], 1.0, "held"),
        ([1.0, math.nan], [1, 1], 1.0, "used"),
        ([1, 2], [math.nan, 1.0], 1.0, "held"),
        ([1, 2], [math.inf, 1.0], 1.0, "held"),
        ([1, 2], [2**60, 1], 1.0, "held"),
        ([1, 2], [2**70, 1], 1.0, "held"),
        ([1, 2], [1, 1, 1], 1.0, "held"),
        ([1, 2], [[1], [1]], 1.0, "held"),
        ([1, 2], [[[1, 1]]], 1.0, "held"),
        ([1, 2], [[1, 1], [1]], 1.0, "held"),
        ([1, 2], 3, 1.0, "held"),
        ([[1, 2]], [1, 2], 1.0, "used"),
        (3, [3], 1.0, "used"),
        ([], [], 1.0, "used"),
        (["1", "2"], [1, 1], 1.0, "used"),
        ([1, 2], [True, False], 1.0, "held"),
        ([1, 2], [1 + 0j, 1], 1.0, "held"),
        ([1, 2], [None, 1], 1.0, "held"),
        ([1, 2], [1, 1], -1e-300, "variance_limit"),
        ([1, 2], [1, 1], math.nan, "variance_limit"),
        ([1, 2], [1, 1], "1", "variance_limit"),
        ([1, 2], [1, 1], None, "variance_limit"),
    ],
)
def test_bad_input_is_refused_by_name(used: Any, held: Any, limit: Any, named: str, whole: bool) -> None:
    with pytest.raises(BadInput, match=rf"^{named} must .*\.$"):
        largest_allotment(used, held, limit, whole=whole)


@pytest.mark.parametrize(("used", "held", "named"), [([0.5, 1], [1, 1], "used"), ([1, 1], [[1, 0.5]], "held")])
def test_fractions_are_refused_where_whole_samples_are_asked_for(used: Any, held: Any, named: str) -> None:
    with pytest.raises(BadInput, match=f"^{named} must hold whole counts"):
        largest_allotment(used, held, 1.0)
    assert largest_allotment(used, held, 1.0, whole=False).feasible

"""P4 with shares against brute force, and against the solver for equal shares."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.notation import BadInput
from tramfl.scheduling.shares import filled, largest_relative_allotment, named_shares, relative_variances
from tramfl.scheduling.water_level import largest_allotment

SMALL = st.integers(2, 4).flatmap(
    lambda labels: st.tuples(
        st.lists(st.integers(0, 12), min_size=labels, max_size=labels),
        st.lists(st.integers(0, 6), min_size=labels, max_size=labels),
        st.lists(st.integers(1, 40), min_size=labels, max_size=labels),
    )
)
LIMITS = st.floats(0, 40) | st.sampled_from([0.0, 0.5, 1.0])


def scaled(counts: list[int], parts: list[int]) -> Fraction:
    """C^2 Var(u), exactly."""
    whole, total = sum(parts), sum(counts)
    return sum((Fraction(y * y * whole, part) for y, part in zip(counts, parts, strict=True)), Fraction(0)) - total**2


@given(SMALL, LIMITS)
def test_no_allotment_within_v_is_larger_and_none_comes_closer(
    case: tuple[list[int], list[int], list[int]], limit: float
) -> None:
    used, held, parts = case
    found = largest_relative_allotment(np.array(used), np.array([held]), np.array(parts) / sum(parts), limit)
    every = [
        (sum(s), scaled([a + n for a, n in zip(used, s, strict=True)], parts))
        for s in product(*(range(n + 1) for n in held))
    ]
    bound = Fraction(limit) * len(used) ** 2
    largest = max((total for total, variance in every if variance <= bound), default=None)
    samples = found.samples[0].tolist()
    assert all(0 <= s <= n for s, n in zip(samples, held, strict=True))
    variance = scaled([a + s for a, s in zip(used, samples, strict=True)], parts)
    assert float(variance) / len(used) ** 2 == pytest.approx(float(found.variance[0]), rel=1e-9, abs=1e-9)
    if largest is None:
        assert variance <= min(v for _, v in every) * (1 + Fraction(1, 10**9))
    else:
        assert variance <= bound * (1 + Fraction(1, 10**8)) + Fraction(1, 10**8)
        assert found.total[0] >= largest
        assert found.feasible[0]


@given(SMALL, st.integers(0, 20))
def test_an_allotment_of_a_given_size_leaves_the_least_variance(
    case: tuple[list[int], list[int], list[int]], total: int
) -> None:
    used, held, parts = case
    samples = filled(np.array(used), np.array(held), np.array(parts) / sum(parts), total).tolist()
    wanted = min(total, sum(held))
    assert sum(samples) == wanted
    least = min(
        scaled([a + n for a, n in zip(used, s, strict=True)], parts)
        for s in product(*(range(n + 1) for n in held))
        if sum(s) == wanted
    )
    assert scaled([a + s for a, s in zip(used, samples, strict=True)], parts) <= least * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("scale", [1, 1000, 10**7])
@pytest.mark.parametrize("seed", range(4))
def test_equal_shares_are_the_papers_problem(seed: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    used = rng.integers(0, 300, 10) * scale
    held = rng.integers(0, 600, (6, 10)) * scale
    limit = 1e4 * scale**2
    plain = largest_allotment(used, held, limit)
    found = largest_relative_allotment(used, held, np.full(10, 0.1), limit)
    assert (found.feasible == plain.feasible).all()
    assert (found.total[plain.feasible] == plain.total[plain.feasible]).all()
    assert found.variance == pytest.approx(plain.variance, rel=1e-6)


def test_counts_with_exactly_the_shares_have_no_variance() -> None:
    shares = np.array([0.7, 0.2, 0.1])
    assert relative_variances(np.array([[700, 200, 100]]), shares)[0] == pytest.approx(0.0)
    assert relative_variances(np.array([[100, 200, 700]]), shares)[0] > 100


def test_the_mix_of_a_long_run_is_the_one_aimed_for() -> None:
    shares, used = np.array([0.6, 0.3, 0.1]), np.zeros(3, dtype=np.int64)
    held = np.array([[50, 50, 50]])
    for _ in range(100):
        used = used + largest_relative_allotment(used, held, shares, 100.0).samples[0]
    assert used / used.sum() == pytest.approx(shares, abs=0.01)


def test_a_table_of_shares_names_every_label_and_no_other() -> None:
    labels = ("cat", "dog")
    assert named_shares(None, labels) is None
    assert named_shares("uniform", labels) is None
    assert named_shares("population", labels) == "population"
    assert named_shares({"dog": 1.0, "cat": 3.0}, labels) == (0.75, 0.25)
    with pytest.raises(BadInput, match="there is no label 'cow'; the labels are cat, dog"):
        named_shares({"cow": 1.0, "dog": 1.0, "cat": 1.0}, labels)
    with pytest.raises(BadInput, match="label 'dog' has no share"):
        named_shares({"cat": 1.0}, labels)

"""O3 and the rule "S* or 0", against the formula in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tramfl.notation import Ledger
from tramfl.scheduling.objective import samples_per_second, worth_training

UNHURRIED = settings(deadline=None)
"""Two cores are shared: a slow example is no fault."""
SECONDS = st.floats(0, 1e9)
LEDGERS = st.builds(Ledger, st.lists(st.integers(0, 10**9), min_size=1, max_size=5).map(tuple), SECONDS)


@UNHURRIED
@given(samples=st.integers(0, 10**9), seconds=SECONDS, ledger=LEDGERS)
def test_o3_is_all_samples_over_all_seconds_plus_one(samples: int, seconds: float, ledger: Ledger) -> None:
    exact = Fraction(samples + sum(ledger.used)) / (Fraction(seconds) + Fraction(ledger.seconds) + 1)
    assert samples_per_second(samples, seconds, ledger.samples, ledger.seconds) == pytest.approx(
        float(exact), rel=1e-14
    )


def test_before_the_first_round_waiting_scores_nothing() -> None:
    assert samples_per_second(0, 1.0, 0, 0.0) == 0.0


@UNHURRIED
@given(
    most=st.integers(2, 10**6),
    between=st.integers(1, 10**6),
    seconds_per_sample=st.floats(1e-6, 1e3),
    transfer=SECONDS,
    ledger=LEDGERS,
)
def test_between_one_sample_and_the_most_no_number_scores_higher_than_both(
    most: int, between: int, seconds_per_sample: float, transfer: float, ledger: Ledger
) -> None:
    # The paper's ground for "S* or 0": O3 is monotone in S.
    assume(between <= most)
    low, middle, high = (
        samples_per_second(s, s * seconds_per_sample + transfer, ledger.samples, ledger.seconds)
        for s in (1, between, most)
    )
    assert min(low, high) * (1 - 1e-12) <= middle <= max(low, high) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("samples", "score", "waiting", "trains"),
    [
        (5, 2.0, 1.0, True),
        (5, 1.0, 2.0, False),
        (5, 1.0, 1.0, True),  # O3(S*) = O3(0): the paper's rule takes S*
        (1, 1.0, 1.0, True),
        (0, 1.0, 1.0, False),  # S* = 0 is the skipped round itself
        (0, 2.0, 1.0, False),
    ],
)
def test_the_rule_takes_s_star_unless_waiting_scores_higher(
    samples: int, score: float, waiting: float, trains: bool
) -> None:
    assert worth_training(samples, score, waiting) is trains


def test_a_tie_computed_from_whole_numbers_is_a_tie() -> None:
    # S_total = 2, T_total = 0, H = 1: O3(0) = 2 / 2. Three samples in 4 s: (3 + 2) / (4 + 1).
    ledger = Ledger((2,))
    score, waiting = (samples_per_second(s, t, ledger.samples, ledger.seconds) for s, t in ((3, 4.0), (0, 1.0)))
    assert score == waiting == 1.0
    assert worth_training(3, score, waiting)

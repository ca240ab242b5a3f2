"""The paper's symbols: what the values themselves promise."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tramfl.notation import Decision, Ledger, Loads, label_variance

UNHURRIED = settings(deadline=None)
"""Two cores are shared: a slow example is no fault."""
NAN, INF = math.nan, math.inf
COUNTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=12)


@UNHURRIED
@given(COUNTS)
def test_the_label_variance_is_the_population_variance_to_the_last_digit(used: list[int]) -> None:
    mean = Fraction(sum(used), len(used))
    exact = sum((a - mean) ** 2 for a in used) / len(used)
    assert label_variance(used) == float(exact)


def test_a_spread_of_one_is_seen_beside_counts_of_a_billion() -> None:
    assert label_variance([10**9, 10**9 + 1]) == 0.25


@UNHURRIED
@given(COUNTS, st.data())
def test_the_ledger_is_the_sum_of_its_rounds(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(0, 10**12), min_size=len(first), max_size=len(first)))
    ledger = Ledger.empty(len(first)).after(first, 1.5).after(second, 2.25)
    assert ledger.used == tuple(a + b for a, b in zip(first, second, strict=True))
    assert ledger.samples == sum(first) + sum(second)
    assert ledger.seconds == 3.75
    assert ledger.round == 2
    assert ledger.label_variance == label_variance(ledger.used)


def test_a_skipped_round_counts_as_a_round_and_takes_its_time() -> None:
    before = Ledger((3, 4), seconds=10.0, round=6)
    assert before.after((0, 0), 1.0) == Ledger((3, 4), seconds=11.0, round=7, skipped=1)
    assert (before.trained, before.after((0, 0), 1.0).trained, before.after((0, 1), 1.0).trained) == (6, 6, 7)
    assert before == Ledger((3, 4), seconds=10.0, round=6)


def test_samples_of_other_labels_than_the_ledgers_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Ledger.empty(3).after((1, 2), 1.0)


@pytest.mark.parametrize(
    ("flops", "bandwidth", "reporting"),
    [
        ((1.0, 2.0), (INF, 3.0), (0, 1)),
        ((1.0, NAN), (INF, NAN), (0,)),
        ((NAN, 2.0), (INF, 3.0), (1,)),  # the holder itself has nothing to spare
        ((1.0, 2.0), (INF, NAN), (0,)),  # a node that no link reaches
        ((0.0, 2.0), (INF, 0.0), ()),  # nothing to compute with, nothing to be reached by
        ((), (), ()),
    ],
)
def test_only_nodes_with_something_to_work_with_count_as_reporting(
    flops: tuple[float, ...], bandwidth: tuple[float, ...], reporting: tuple[int, ...]
) -> None:
    assert Loads(flops, bandwidth).reporting == reporting


def test_a_decisions_round_takes_the_sum_of_its_three_times() -> None:
    decision = Decision("any", 0, (1,), compute_seconds=1.0, transfer_seconds=2.0, idle_seconds=4.0, reason="So.")
    assert decision.round_seconds == 7.0


@pytest.mark.parametrize("value", [Loads((1.0,), (INF,)), Ledger((1,)), Decision("any", None, (0,), 0, 0, 1, "So.")])
def test_a_value_cannot_be_changed(value: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], None)

"""Eqs. (3)-(6), written out here a second time in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tramfl.notation import Decision, ModelCost
from tramfl.scheduling.timing import compute_seconds, transfer_seconds

UNHURRIED = settings(deadline=None)
"""Two cores are shared: a slow example is no fault."""
POSITIVE = st.floats(1e-3, 1e18)
MNIST = ModelCost(71.57e6, 38.42e6)


@UNHURRIED
@given(samples=st.integers(0, 10**9), flops_per_sample=POSITIVE, flops=POSITIVE)
def test_t_comp_is_m_times_the_samples_over_r(samples: int, flops_per_sample: float, flops: float) -> None:
    exact = Fraction(flops_per_sample) * samples / Fraction(flops)
    assert compute_seconds(samples, ModelCost(flops_per_sample, 1.0), flops) == pytest.approx(float(exact), rel=1e-14)


@UNHURRIED
@given(bits=POSITIVE, bandwidth=POSITIVE)
def test_t_comm_is_the_models_bits_over_b(bits: float, bandwidth: float) -> None:
    exact = Fraction(bits) / Fraction(bandwidth)
    assert transfer_seconds(ModelCost(1.0, bits), bandwidth) == pytest.approx(float(exact), rel=1e-14)


def test_the_papers_mnist_network_trains_a_thousand_samples_in_7_ms_and_hops_in_192_ms() -> None:
    assert compute_seconds(1000, MNIST, 10e12) == pytest.approx(0.007157)
    assert transfer_seconds(MNIST, 200e6) == pytest.approx(0.1921)


def test_staying_costs_no_transfer() -> None:
    assert transfer_seconds(MNIST, math.inf) == 0.0


def test_training_nothing_takes_no_computing() -> None:
    assert compute_seconds(0, MNIST, 10e12) == 0.0


@UNHURRIED
@given(samples=st.integers(0, 10**6), flops=POSITIVE, bandwidth=POSITIVE | st.just(math.inf), wait=POSITIVE)
def test_t_round_is_the_sum_of_the_three(samples: int, flops: float, bandwidth: float, wait: float) -> None:
    parts = (
        compute_seconds(samples, MNIST, flops),
        transfer_seconds(MNIST, bandwidth),
        wait,
    )
    decision = Decision("any", 0, (samples,), *parts, "So.")
    assert decision.round_seconds == pytest.approx(math.fsum(parts), rel=1e-14)

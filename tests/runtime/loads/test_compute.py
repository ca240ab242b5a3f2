from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.runtime.loads.compute import ComputeMeter
from tramfl.scheduling.predictors import predictor_names

NAMES = pytest.mark.parametrize("name", predictor_names())
M = 1e6
"""FLOPs a sample."""


def test_before_the_first_training_the_calibration_counts_and_after_it_no_more() -> None:
    meter = ComputeMeter(M, "last")
    meter.calibrated(5e9)
    assert meter.available(0.0) == pytest.approx(5e9)
    meter.trained(1000, 1.0)
    assert meter.available(0.0) == pytest.approx(1e9)


def test_without_training_and_calibration_there_is_no_answer_to_invent() -> None:
    with pytest.raises(RuntimeError, match="nothing calibrated"):
        ComputeMeter(M, "last").available(0.0)


@NAMES
@given(flops=st.floats(1e6, 1e15), samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_on_an_idle_machine_the_predicted_seconds_are_those_of_the_trainings(
    name: str, flops: float, samples: list[int]
) -> None:
    meter = ComputeMeter(M, name)
    for count in samples:
        meter.trained(count, M * count / flops)
    assert M * 100 / meter.available(0.0) == pytest.approx(M * 100 / flops, rel=1e-6)


@NAMES
@given(busy=st.floats(0, 0.9), more=st.floats(0, 1))
def test_the_busier_the_machine_the_less_is_available_but_never_nothing(name: str, busy: float, more: float) -> None:
    found = []
    for share in (busy, busy + (1 - busy) * more):
        meter = ComputeMeter(M, name)
        meter.trained(1000, 1.0)
        found.append(meter.available(share))
    assert 0 < found[1] <= found[0] <= 1e9 * (1 + 1e-9)


def test_full_speed_is_found_from_a_training_beside_other_work() -> None:
    meter = ComputeMeter(M, "last")
    meter.trained(500, 1.0, busy_share=0.5)
    assert meter.available(0.0) == pytest.approx(1e9)


@pytest.mark.parametrize(("demand", "share"), [(0.5, 0.5), (0.5, 2 / 3), (1.0, 0.5), (1.0, 0.1), (0.3, 0.95)])
def test_how_far_others_give_way_is_learnt(demand: float, share: float) -> None:
    """Others use `demand` while we are idle, and leave us `share` of the cores while we train."""
    meter = ComputeMeter(M, "blend")
    meter.trained(1000, 1.0)
    for _ in range(30):
        predicted = meter.available(demand)
        meter.trained(1000, 1 / share, busy_share=1 - share)
    assert predicted == pytest.approx(1e9 * share, rel=0.02)


@NAMES
def test_rough_readings_of_a_crowded_machine_hardly_show_in_what_is_predicted(name: str) -> None:
    rng = np.random.default_rng(3)
    meter, found = ComputeMeter(M, name), []
    meter.calibrated(1e9)
    for _ in range(60):
        found.append(meter.available(rng.uniform(0.85, 1.0)))
        meter.trained(1000, 2.0, rng.uniform(0.85, 1.0))
    assert np.abs(np.log(np.array(found[10:]) / 0.5e9)).max() < 0.25


def test_others_may_use_the_cores_that_we_do_not_train_on() -> None:
    meter = ComputeMeter(M, "last", cores_share=0.25)
    meter.trained(1000, 1.0, busy_share=0.7)
    assert meter.available(0.75) == pytest.approx(1e9)
    assert meter.available(0.9) < 0.9e9


def test_a_training_of_few_samples_does_not_pass_for_a_slow_machine() -> None:
    meter = ComputeMeter(M, "last")
    for _ in range(5):
        meter.trained(1000, 1.01)
    before = meter.available(0.0)
    meter.trained(2, 0.012)  # a hundredth of a second for beginning and end
    assert meter.available(0.0) == before


def test_trainings_of_few_samples_count_once_they_are_usual() -> None:
    meter = ComputeMeter(M, "last")
    meter.trained(1000, 1.0)
    for _ in range(30):
        meter.trained(10, 0.02)
    assert meter.available(0.0) == pytest.approx(0.5e9, rel=0.01)


@pytest.mark.parametrize(("samples", "seconds"), [(0, 1.0), (10, 0.0), (10, -1.0), (10, math.nan)])
def test_a_training_that_says_nothing_changes_nothing(samples: int, seconds: float) -> None:
    meter = ComputeMeter(M, "last")
    meter.trained(1000, 1.0)
    meter.trained(samples, seconds)
    assert meter.available(0.0) == pytest.approx(1e9)


def test_a_report_does_not_count_as_a_round() -> None:
    meter = ComputeMeter(M, "blend")
    meter.trained(1000, 1.0)
    meter.available(0.4)
    before = meter.memory()
    assert meter.expected() == meter.expected()
    assert meter.memory() == before

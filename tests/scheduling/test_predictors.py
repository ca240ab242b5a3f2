from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.config import LoadModel
from tramfl.notation import BadInput
from tramfl.runtime.settings import SiteFile
from tramfl.scheduling.predictors import DEFAULT, Predictor, predictor_named, predictor_names
from tramfl.simulation.loads import load_source

VALUES = st.floats(1e-6, 1e15)
NAMES = pytest.mark.parametrize("name", predictor_names())


def fed(name: str, values: list[float]) -> Predictor:
    predictor = predictor_named(name)
    for value in values:
        predictor.update(value)
    return predictor


def mean_error(name: str, values: list[float]) -> float:
    predictor, found = predictor_named(name), []
    for value in values:
        predicted = predictor.predict()
        if predicted is not None:
            found.append(abs(math.log(value / predicted)))
        predictor.update(value)
    return float(np.mean(found))


def loads(kind: str, seed: int, rounds: int = 600) -> list[float]:
    source = load_source(LoadModel(kind=kind, flops=1.0, memory=0.9), 1, seed)  # type: ignore[arg-type]
    return [source.at(k).flops[0] for k in range(1, rounds + 1)]


@NAMES
def test_nobody_predicts_before_the_first_value_and_the_first_value_is_the_first_prediction(name: str) -> None:
    predictor = predictor_named(name)
    assert predictor.predict() is None
    predictor.update(7.5)
    assert predictor.predict() == pytest.approx(7.5)


@NAMES
@given(values=st.lists(VALUES, min_size=1, max_size=40))
def test_a_prediction_lies_between_the_least_and_the_greatest_value_seen(name: str, values: list[float]) -> None:
    predicted = fed(name, values).predict()
    assert predicted is not None
    assert min(values) * (1 - 1e-9) <= predicted <= max(values) * (1 + 1e-9)


@NAMES
@given(values=st.lists(st.floats(0.01, 100), min_size=1, max_size=40), scale=st.sampled_from([2.0**-30, 2.0**40]))
def test_the_unit_of_a_load_does_not_matter(name: str, values: list[float], scale: float) -> None:
    one, other = fed(name, values).predict(), fed(name, [scale * v for v in values]).predict()
    assert one is not None
    assert other == pytest.approx(scale * one, rel=1e-6)


@NAMES
def test_a_load_that_stays_the_same_is_predicted_exactly(name: str) -> None:
    assert fed(name, [3e12] * 50).predict() == pytest.approx(3e12)


@NAMES
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_an_error_and_changes_nothing(name: str, value: float) -> None:
    predictor = fed(name, [1.0, 2.0, 1.5])
    before = predictor.predict()
    with pytest.raises(ValueError, match="no observation"):
        predictor.update(value)
    assert predictor.predict() == before


@pytest.mark.parametrize("seed", range(3))
def test_the_default_beats_last_and_ewma_on_the_papers_loads(seed: int) -> None:
    values = loads("uniform", seed)
    assert mean_error(DEFAULT, values) < 0.85 * mean_error("last", values)
    assert mean_error(DEFAULT, values) < mean_error("ewma", values)


@pytest.mark.parametrize("seed", range(3))
def test_the_default_is_as_good_as_last_and_better_than_ewma_on_loads_that_stay(seed: int) -> None:
    values = loads("ar1", seed)
    assert mean_error(DEFAULT, values) < 1.03 * mean_error("last", values)
    assert mean_error(DEFAULT, values) < 0.9 * mean_error("ewma", values)


def test_a_correlation_is_found_where_there_is_one_and_not_where_there_is_none() -> None:
    lasting, drawn = loads("ar1", 5), loads("uniform", 5)
    for values, is_near in ((lasting, "last"), (drawn, "mean")):
        predicted = fed("ar1", [*values, 0.9]).predict()
        assert predicted is not None
        assert (predicted > 0.8) == (is_near == "last")


@NAMES
def test_within_ten_rounds_a_step_is_mostly_followed(name: str) -> None:
    predicted = fed(name, [0.2] * 100 + [0.8] * 10).predict()
    assert predicted == pytest.approx(0.8, abs=0.1)


def test_an_unknown_predictor_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInput, match=r"'oracle'; choose one of last, ewma, ar1, blend\."):
        predictor_named("oracle")


def test_sites_use_the_default_where_nothing_else_is_set() -> None:
    assert SiteFile(site="a").predictor == DEFAULT

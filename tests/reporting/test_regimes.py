"""Ratios of policies over kinds of load."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tramfl.reporting.regimes import as_svg, time_ratios


def run(policy: str, seed: int, seconds: float) -> Any:
    return SimpleNamespace(
        scenario="s,x", policy=policy, seed=seed, summary=SimpleNamespace(total_seconds=seconds, samples=100)
    )


def test_ratios_are_paired_by_seed_and_their_interval_holds_their_mean() -> None:
    runs = [run("a", 0, 10.0), run("a", 1, 1000.0), run("b", 0, 5.0), run("b", 1, 600.0)]
    mean, low, high = time_ratios(runs, ["a", "b"])["s,x", "b"]
    assert mean == pytest.approx(math.sqrt(0.5 * 0.6))
    assert low < mean < high


def test_one_seed_has_a_ratio_and_no_interval() -> None:
    ratios = time_ratios([run("a", 0, 10.0), run("b", 0, 5.0)], ["a", "b"])
    assert ratios["s,x", "b"][0] == pytest.approx(0.5)
    assert math.isnan(ratios["s,x", "b"][1])
    assert as_svg(ratios, ["a", "b"]).count("<circle") == 2


def test_the_figure_names_the_ratios_within_its_range_and_what_they_are() -> None:
    figure = as_svg({("s,x", "a"): (1.0, 1.0, 1.0), ("s,x", "b"): (1.1, 0.7, 1.9)}, ["a", "b"])
    ticks = [tick for tick in ("0.4", "0.5", "0.8", "1", "1.5", "2") if f">{tick}</text>" in figure]
    assert ticks == ["0.5", "0.8", "1", "1.5"]
    assert ">seconds a sample over those of a</text>" in figure


def test_a_figure_that_reaches_far_below_a_half_names_ratios_there() -> None:
    figure = as_svg({("s,x", "a"): (1.0, 1.0, 1.0), ("s,x", "b"): (0.9, 0.26, 3.2)}, ["a", "b"])
    assert [tick for tick in ("0.2", "0.3", "0.4", "0.5") if f">{tick}</text>" in figure] == ["0.3", "0.4", "0.5"]

"""What a load will be in the next round, and how it behaves, from what it was.

Sites predict their own loads with these, and the simulation predicts loads as a site does. `blend` is the default.
`benchmarks/predictors.py` prints how well each predictor does on each kind of load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tramfl.notation import BadInput, Habit, Reals

KEEP = 0.98
"""What an observation counts after the next one."""
PRIOR = 2.0
"""Observations that a persistence of 1/2 counts for, before there are any."""


class Predictor(Protocol):
    """Learns from one value a round."""

    def update(self, value: float) -> None:
        """A value was observed."""
        ...

    def predict(self) -> float | None:
        """The next value, or None before the first; between the least and the greatest observed so far."""
        ...


class Last:
    """The next round is like this one: best where loads last long."""

    def __init__(self) -> None:
        self._last: float | None = None

    def update(self, value: float) -> None:
        """Keep the value."""
        self._last = _finite(value)

    def predict(self) -> float | None:
        """The last value."""
        return self._last


class Ewma:
    """m += a (x - m): best where a load keeps its level and every observation is noisy."""

    def __init__(self, weight: float = 0.3) -> None:
        self._weight = weight
        self._mean: float | None = None

    def update(self, value: float) -> None:
        """Move towards the value."""
        _finite(value)
        self._mean = value if self._mean is None else (1 - self._weight) * self._mean + self._weight * value

    def predict(self) -> float | None:
        """The weighted mean."""
        return self._mean


class Ar1:
    """m + phi (x - m): between the mean, right for draws without memory, and the last value, right for lasting loads.

    phi is the correlation of a value with the next, `lag_correlation` of what was observed.
    """

    def __init__(self, keep: float = KEEP, prior: float = PRIOR) -> None:
        self._keep, self._prior = keep, prior
        self._weight = self._mean = self._square = self._product = 0.0
        self._last: float | None = None

    def update(self, value: float) -> None:
        """Move the mean and the correlation."""
        _finite(value)
        self._weight = self._keep * self._weight + 1
        share = 1 / self._weight
        self._mean = (1 - share) * self._mean + share * value
        if self._last is not None:
            before, after = self._last - self._mean, value - self._mean
            self._square = self._keep * self._square + before * before
            self._product = self._keep * self._product + before * after
        self._last = value

    def predict(self) -> float | None:
        """Between the mean and the last value."""
        if self._last is None:
            return None
        phi = float(lag_correlation(self._product, self._square, self._weight, self._prior))
        return (1 - phi) * self._mean + phi * self._last


def lag_correlation(
    product: float | Reals, square: float | Reals, weight: float | Reals, prior: float = PRIOR
) -> float | Reals:
    """Correlation of a value with the next, 0 to 1, from weighted sums over what was observed.

    The estimate from n values is too low by (1 + 3 phi) / n (Kendall 1954). It is drawn towards 1/2 while n is small,
    and is 1 where nothing has ever changed.
    """
    if isinstance(square, float):
        seen: float | Reals = product / square if square > 0 else 1.0
    else:
        seen = np.divide(product, square, out=np.ones_like(square), where=square > 0)
    seen = seen + (1 + 3 * seen) / weight
    drawn = (seen * weight + prior / 2) / (weight + prior)
    return min(1.0, max(0.0, drawn)) if isinstance(drawn, float) else np.clip(drawn, 0.0, 1.0)


class Behaviour:
    """How several loads behave: mean, spread and persistence of each, of their logarithms, old observations fading.

    The persistence is the model of `Ar1`.
    """

    def __init__(self, series: int, keep: float = KEEP) -> None:
        self._keep = keep
        self.weight = np.zeros(series)
        """Of all observations so far; 0 where there is none."""
        self._mean, self._square, self._product, self._last = (np.zeros(series) for _ in range(4))
        self._most = np.zeros(series)

    def update(self, values: Reals) -> None:
        """Values were observed, one of each series; NaN or 0 where there was none."""
        there = values > 0
        x = np.log(values, out=self._last.copy(), where=there)
        first = there & (self.weight == 0)
        weight = np.where(there, self._keep * self.weight + 1, self.weight)
        self._mean += np.where(there, (x - self._mean) / np.maximum(weight, 1.0), 0.0)
        before, after = self._last - self._mean, x - self._mean
        again = there & ~first
        self._square = np.where(again, self._keep * self._square + before * before, self._square)
        self._product = np.where(again, self._keep * self._product + before * after, self._product)
        self.weight, self._last = weight, np.where(there, x, self._last)
        self._most = np.where(there, np.maximum(self._most, values), self._most)

    def habits(self, now: Sequence[float]) -> list[Habit | None]:
        """What is known of each series, `now` being what each is expected to be; None where nothing is known."""
        mean = np.exp(self._mean)
        spread = np.sqrt(self._square / np.maximum(self.weight - 1.0, 1.0))
        persistence = np.asarray(lag_correlation(self._product, self._square, np.maximum(self.weight, 1.0)))
        table = zip(now, mean.tolist(), spread.tolist(), persistence.tolist(), self._most.tolist(), strict=True)
        return [
            Habit(value, middle, width, memory, max(value, most)) if most > 0 and value > 0 else None
            for value, middle, width, memory, most in table
        ]


def behaviour_of(series: Sequence[Sequence[float]]) -> Behaviour:
    """How loads behave that were observed this often each; the last observation of each series is its newest."""
    longest = max(map(len, series), default=0)
    table = np.full((longest, len(series)), math.nan)
    for column, values in enumerate(series):
        table[longest - len(values) :, column] = values
    found = Behaviour(len(series))
    for row in table:
        found.update(row)
    return found


class Blend:
    """Several predictors, weighed by how well each did lately, as the Network Weather Service (Wolski 1999) does.

    It takes the best one; a steep power of the errors does nearly that, without jumping between two that are as good.
    """

    def __init__(self, keep: float = KEEP, power: float = 16.0) -> None:
        self._members: tuple[Predictor, ...] = (Ar1(), Last(), Ewma(0.5), Ewma(0.25), Ewma(0.1))
        self._errors = [0.0] * len(self._members)
        self._keep, self._power = keep, power

    def update(self, value: float) -> None:
        """See how far off each was, then let all learn."""
        _finite(value)
        for number, member in enumerate(self._members):
            predicted = member.predict()
            if predicted is not None:
                self._errors[number] = self._keep * self._errors[number] + _distance(value, predicted)
            member.update(value)

    def predict(self) -> float | None:
        """The weighted mean of what they say."""
        least = min(self._errors)
        total = weights = 0.0
        for member, error in zip(self._members, self._errors, strict=True):
            predicted = member.predict()
            if predicted is None:
                return None
            weight = 1.0 if error <= least else (least / error) ** self._power
            total += weight * predicted
            weights += weight
        return total / weights


def _distance(a: float, b: float) -> float:
    """How far apart, from 0 to 1 for values of one sign: half the relative error where that is small."""
    size = abs(a) + abs(b)
    return abs(a - b) / size if size > 0 else 0.0


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no observation")
    return value


_BY_NAME: dict[str, Callable[[], Predictor]] = {"last": Last, "ewma": Ewma, "ar1": Ar1, "blend": Blend}
DEFAULT = "blend"


def predictor_names() -> tuple[str, ...]:
    """The names there are."""
    return tuple(_BY_NAME)


def predictor_named(name: str) -> Predictor:
    """A new predictor; BadInput lists the names there are."""
    try:
        return _BY_NAME[name]()
    except KeyError:
        raise BadInput(f"there is no predictor {name!r}; choose one of {', '.join(_BY_NAME)}.") from None

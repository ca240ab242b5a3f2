"""What a load will be in the next round, from what it was. Pure: no clock, no file.

A site predicts its own loads, a value a round. `benchmarks/predictors.py` compares the predictors on four kinds of
load. `blend` is the default: alone of them it is as good as `last` on lasting loads and better than `ewma` on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from tramfl.notation import BadInput


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

    phi is the correlation of a value with the next, estimated from what was seen, old observations fading away. The
    estimate from n values is too low by (1 + 3 phi) / n (Kendall 1954), and is drawn towards 1/2 while n is small.
    """

    def __init__(self, keep: float = 0.98, prior: float = 2.0) -> None:
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
        phi = self._correlation()
        return (1 - phi) * self._mean + phi * self._last

    def _correlation(self) -> float:
        seen = self._product / self._square if self._square > 0 else 1.0
        seen += (1 + 3 * seen) / self._weight
        drawn = (seen * self._weight + self._prior / 2) / (self._weight + self._prior)
        return min(1.0, max(0.0, drawn))


class Blend:
    """Several predictors, weighed by how well each did lately, as the Network Weather Service (Wolski 1999) does.

    It takes the best one; a steep power of the errors does nearly that, without jumping between two that are as good.
    """

    def __init__(self, keep: float = 0.98, power: float = 16.0) -> None:
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

"""Observations of one quantity in the order they came, and the prediction of the next."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from tramfl.scheduling.predictors import Predictor, predictor_named

KEPT = 200
"""Observations of one kind that a site keeps; older ones have no weight in any predictor."""

Observed = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=1e-3, le=1e9)]


class Pace:
    """The usual seconds between two observations: a geometric mean, so that one long pause counts little."""

    _WEIGHT = 0.3
    """Of the latest interval."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """None before the second observation."""
        self._at = -math.inf

    def observed(self, at: float) -> None:
        """An observation was made at this second."""
        passed, self._at = at - self._at, at
        if math.isfinite(passed):
            passed = min(max(passed, 1e-3), 1e9)
            before = passed if self.seconds is None else self.seconds
            self.seconds = before * (passed / before) ** self._WEIGHT


class ObservedSeries:
    """A predictor with the observations it has learnt from, which are enough to make it again after a restart."""

    def __init__(self, predictor: str) -> None:
        self._predictor: Predictor = predictor_named(predictor)
        self.values: deque[float] = deque(maxlen=KEPT)

    def add(self, value: float) -> None:
        """A value was observed."""
        self._predictor.update(value)
        self.values.append(value)

    def next(self) -> float | None:
        """The prediction of the next value; None before the first."""
        return self._predictor.predict()

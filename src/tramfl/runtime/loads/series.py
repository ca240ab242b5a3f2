"""Observations of one quantity in the order they came, and the prediction of the next."""

from __future__ import annotations

from collections import deque
from typing import Annotated

from msgspec import Meta

from tramfl.scheduling.predictors import Predictor, predictor_named

KEPT = 200
"""Observations of one kind that a site keeps; older ones have no weight in any predictor."""

Observed = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]


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

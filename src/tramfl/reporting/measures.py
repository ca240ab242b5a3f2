"""What a run's targets are values of, as tables and figures name it, write it and rank it.

Accuracy is written as per cent, every other metric as a plain number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tramfl.config import ACCURACY, Budget
from tramfl.notation import Reals

NAMES = {"f1": "F1", "auroc": "AUROC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}
"""How people write the metrics that have a usual name; others keep the one they have in the scenario."""


@dataclass(frozen=True)
class Measure:
    """A metric of the test samples, and which of its values are better."""

    metric: str = ACCURACY
    lower: bool = False
    """Whether lower values are better."""

    @classmethod
    def of(cls, budget: Budget) -> Measure:
        """What the targets of a budget are of."""
        return cls(budget.metric, budget.lower_is_better)

    @property
    def is_accuracy(self) -> bool:
        """Whether values are shares, written as per cent."""
        return self.metric == ACCURACY

    @property
    def name(self) -> str:
        """The metric as people write it."""
        return NAMES.get(self.metric, self.metric)

    def value(self, value: float) -> str:
        """A measured value."""
        return f"{100 * value:.1f} %" if self.is_accuracy else f"{value:.4g}"

    def target(self, target: float) -> str:
        """A target; where it is not a share of right answers, with the metric's name."""
        return percent(target) if self.is_accuracy else f"{self.name} {target:.6g}"

    def brief(self, value: float) -> str:
        """A measured value with the metric's name, for a line of progress."""
        return f"{self.name} {value:.1%}" if self.is_accuracy else f"{self.name} {value:.4g}"

    def easiest_first(self, targets: Iterable[float]) -> list[float]:
        """The targets in the order in which a run that improves reaches them."""
        return sorted(targets, reverse=self.lower)

    def best(self, values: Iterable[float]) -> float:
        """The best of some values; there is at least one."""
        return min(values) if self.lower else max(values)

    def best_so_far(self, values: Reals) -> Reals:
        """At every place of a list, the best value up to there."""
        return np.minimum.accumulate(values) if self.lower else np.maximum.accumulate(values)


@dataclass(frozen=True)
class Target:
    """One target of one metric."""

    measure: Measure
    target: float

    def __str__(self) -> str:
        return self.measure.target(self.target)


def in_order_of_difficulty(aims: Iterable[Target]) -> list[Target]:
    """Every aim once: metrics as they first appear, and of each the easiest target first."""
    targets: dict[Measure, set[float]] = {}
    for aim in aims:
        targets.setdefault(aim.measure, set()).add(aim.target)
    return [Target(measure, target) for measure, found in targets.items() for target in measure.easiest_first(found)]


def percent(share: float) -> str:
    """A share as per cent, without digits that say nothing."""
    return f"{100 * share:.4g} %"


def capital(text: str) -> str:
    """Text that begins a heading."""
    return text[:1].upper() + text[1:]

"""When a model is tested, which targets are still open, and when a run is over.

The only place with these rules: simulation, sites, replays and the summary call it. Pure: rows, ledgers and test
results arrive as arguments; no clock and no file.

    tested    after every `evaluation.every`-th round that trained; skipped rounds do not count
    open      a target of the budget that no test has reached so far
    held      a target at which the mean of the last `budget.held_for` tests has been ever since some test
    over      no target is open (with `held_for`: every target is held), or the first limit of the budget is reached
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from tramfl.config import ACCURACY, Budget, Evaluation
from tramfl.notation import Ledger


class Measured(Protocol):
    """What a test found; a row and its scores both have this."""

    def measured(self, metric: str) -> float | None:
        """The metric on the test samples; None where the round was not tested."""
        ...


class MeasuredRound(Measured, Protocol):
    """A test result with the moment it counts for."""

    @property
    def total_seconds(self) -> float:
        """T_total after the round."""
        ...


def is_test_due(evaluation: Evaluation, ledger: Ledger, *, trained: bool) -> bool:
    """Whether the weights after a round are tested; `ledger` includes the round, which `trained` or was skipped."""
    return trained and ledger.trained % evaluation.every == 0


def is_past_a_limit(budget: Budget, ledger: Ledger) -> bool:
    """Whether a run with this ledger has reached one of its limits."""
    return (
        (budget.rounds is not None and ledger.round >= budget.rounds)
        or (budget.seconds is not None and ledger.seconds >= budget.seconds)
        or (budget.samples is not None and ledger.samples >= budget.samples)
    )


class Milestones(Struct, frozen=True):
    """How far a run has come on the way to its targets: a fold over its tests, in the order of rounds."""

    targets: tuple[float, ...]
    seconds: tuple[float | None, ...]
    """T_total when a test first reached each target; None before that."""
    held_for: int | None = None
    """k: how many tests the mean is taken over."""
    held: tuple[float | None, ...] = ()
    """T_total since which the mean of the last k tests has been at each target, or None; empty without k."""
    recent: tuple[float, ...] = ()
    """The last k tests."""
    metric: str = ACCURACY
    lower: bool = False
    """Whether lower values of the metric are better."""

    @classmethod
    def of(cls, budget: Budget, rounds: Iterable[MeasuredRound] = ()) -> Milestones:
        """The milestones after these rounds, tested and untested ones; without rounds those of a run that begins."""
        nothing = (None,) * len(budget.targets)
        held = nothing if budget.held_for else ()
        found = cls(
            budget.targets,
            nothing,
            budget.held_for,
            held,
            metric=budget.metric,
            lower=budget.lower_is_better,
        )
        for each in rounds:
            found = found.after(each, each.total_seconds)
        return found

    def after(self, test: Measured, seconds: float) -> Milestones:
        """The milestones after one test more, at T_total = `seconds`."""
        value = test.measured(self.metric)
        if value is None:
            return self
        reached = tuple(
            seconds if before is None and self._at(value, target) else before
            for target, before in zip(self.targets, self.seconds, strict=True)
        )
        if self.held_for is None:
            return replace(self, seconds=reached)
        recent = (*self.recent, value)[-self.held_for :]
        mean = math.fsum(recent) / self.held_for if len(recent) == self.held_for else math.nan
        held = tuple(
            (seconds if before is None else before) if self._at(mean, target) else None
            for target, before in zip(self.targets, self.held, strict=True)
        )
        return replace(self, seconds=reached, held=held, recent=recent)

    def _at(self, value: float, target: float) -> bool:
        """Whether a value is at a target or beyond it; a NaN is at none."""
        return value <= target if self.lower else value >= target

    @property
    def open(self) -> tuple[float, ...]:
        """Targets that a test looks at more samples for: those not reached, or all where a mean must stay at them."""
        if self.held_for is not None:
            return self.targets
        return tuple(t for t, reached in zip(self.targets, self.seconds, strict=True) if reached is None)

    @property
    def all_reached(self) -> bool:
        """Whether there were targets and all are reached, and held where that was asked for."""
        return bool(self.targets) and None not in (*self.seconds, *self.held)

    def is_over(self, budget: Budget, ledger: Ledger) -> bool:
        """Whether the run ends here: at its last target, or at its first limit."""
        return self.all_reached or is_past_a_limit(budget, ledger)


def seconds_to(rounds: Iterable[MeasuredRound], target: float, budget: Budget | None = None) -> float | None:
    """T_total when a test first reached `target`, an accuracy or a value of the budget's metric; None if none did."""
    aim = Budget(targets=(target,)) if budget is None else replace(budget, targets=(target,), held_for=None)
    return Milestones.of(aim, rounds).seconds[0]

"""When a model is tested, which targets are still open, and when a run is over.

The only place with these rules: simulation, sites, replays and the summary call it. Pure: rows, ledgers and test
results arrive as arguments; no clock and no file.

    tested    after every `evaluation.every`-th round that trained; skipped rounds do not count
    open      a target of the budget that no test has reached so far
    over      no target is open, or the first limit of the budget is reached
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from tramfl.config import Budget, Evaluation
from tramfl.notation import Ledger


class Measured(Protocol):
    """What a test found; a row and its scores both have this."""

    @property
    def test_accuracy(self) -> float | None:
        """Share of right answers on the test set; None where the round was not tested."""
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
    """T_total when each target was reached; None while it is open."""

    @classmethod
    def of(cls, budget: Budget, rounds: Iterable[MeasuredRound] = ()) -> Milestones:
        """The milestones after these rounds, tested and untested ones; without rounds those of a run that begins."""
        found = cls(budget.targets, (None,) * len(budget.targets))
        for each in rounds:
            found = found.after(each, each.total_seconds)
        return found

    def after(self, test: Measured, seconds: float) -> Milestones:
        """The milestones after one test more, at T_total = `seconds`."""
        value = test.test_accuracy
        if value is None or not any(value >= target for target in self.open):
            return self
        reached = tuple(
            seconds if before is None and value >= target else before
            for target, before in zip(self.targets, self.seconds, strict=True)
        )
        return replace(self, seconds=reached)

    @property
    def open(self) -> tuple[float, ...]:
        """Targets that no test has reached: a test looks at more samples only for these."""
        return tuple(t for t, reached in zip(self.targets, self.seconds, strict=True) if reached is None)

    @property
    def all_reached(self) -> bool:
        """Whether there were targets and none is open."""
        return bool(self.targets) and None not in self.seconds

    def is_over(self, budget: Budget, ledger: Ledger) -> bool:
        """Whether the run ends here: at its last target, or at its first limit."""
        return self.all_reached or is_past_a_limit(budget, ledger)


def seconds_to(rounds: Iterable[MeasuredRound], target: float) -> float | None:
    """T_total when a test first reached `target`; None if none did."""
    return Milestones.of(Budget(targets=(target,)), rounds).seconds[0]

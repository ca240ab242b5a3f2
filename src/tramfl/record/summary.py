"""What a run came to: its totals, its time to each target, and whether it is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct, UnsetType, field

from tramfl.config import ACCURACY, Budget, Scenario
from tramfl.notation import Ledger, ModelCost
from tramfl.record.milestones import Milestones
from tramfl.record.rows import Row
from tramfl.record.schema import SCHEMA

MOST_DIVERGED = 10
"""How many rounds without a finite loss a summary names: a run that has diverged seldom comes back."""


class Regret(Struct, frozen=True):
    """How much longer a run took than with an oracle, for as many samples."""

    seconds: float
    ratio: float
    """The run's seconds over the oracle's."""


class Summary(Struct, frozen=True, kw_only=True):
    """What a run came to."""

    schema: int = 1
    """See `record.schema`."""
    scenario: str
    policy: str
    """The method's name, or the policy's where the run has no other method."""
    seed: int
    status: str
    """finished, interrupted, or stopped: ended before its budget did, for the reason below."""
    stopped_because: str | UnsetType = UNSET
    """Why the run ended before its budget did; only where its status is stopped."""
    rounds: int
    skipped_rounds: int
    samples: int
    total_seconds: float
    compute_seconds: float
    transfer_seconds: float
    idle_seconds: float
    overhead_seconds: float | UnsetType = UNSET
    """What gathering, deciding, the register and the disk took; left out in virtual time."""
    label_variance: float
    """At the end of the run."""
    largest_label_variance: float
    """Over all rounds."""
    seconds_to_target: dict[str, float | None] = field(default_factory=dict)
    """When a test first reached each target."""
    seconds_held: dict[str, float | None] | UnsetType = UNSET
    """Since when the mean of the last `budget.held_for` tests has been at each target; only where that key is set."""
    test_accuracy: float | None = None
    """As measured last."""
    measured: float | UnsetType = UNSET
    """The metric of the targets, as measured last; only where that is not accuracy."""
    diverged: tuple[int, ...] | UnsetType = UNSET
    """The first rounds whose training had no finite loss, `MOST_DIVERGED` at most; left out where there are none."""
    cost: ModelCost
    sent_bits: float | UnsetType = UNSET
    """All that was sent, where every node keeps a model."""
    regret: Regret | UnsetType = UNSET
    """Only of a finished run whose policy was given predictions of the loads."""

    @property
    def divergence(self) -> str:
        """Which rounds had no finite loss, in words; empty where all had one."""
        return diverged_text(self.diverged, all_named=len(self.diverged) < MOST_DIVERGED) if self.diverged else ""


class Tally(Struct, frozen=True, kw_only=True):
    """What a run has come to so far: a fold over its rows, so that a long run need not keep them."""

    milestones: Milestones
    ledger: Ledger
    rounds: int = 0
    compute_seconds: float = 0.0
    transfer_seconds: float = 0.0
    idle_seconds: float = 0.0
    overhead_seconds: float = 0.0
    label_variance: float = 0.0
    largest_label_variance: float = 0.0
    test_accuracy: float | None = None
    measured: float | None = None
    diverged: tuple[int, ...] = ()
    sent_bits: float | UnsetType = UNSET

    @classmethod
    def of(cls, budget: Budget, labels: int, rows: Iterable[Row] = ()) -> Tally:
        """The tally after these rows, which are all of a run from its first round on."""
        found = cls(milestones=Milestones.of(budget), ledger=Ledger.empty(labels))
        for row in rows:
            found = found.after(row)
        return found

    def after(self, row: Row) -> Tally:
        """The tally after one row more."""
        skipped = self.ledger.skipped + (row.node is None)
        value = row.measured(self.milestones.metric)
        diverged = (row.round,) if row.diverged is True and len(self.diverged) < MOST_DIVERGED else ()
        return Tally(
            milestones=self.milestones.after(row, row.total_seconds),
            ledger=Ledger(row.used, row.total_seconds, row.round, skipped),
            rounds=self.rounds + 1,
            compute_seconds=self.compute_seconds + row.compute_seconds,
            transfer_seconds=self.transfer_seconds + row.transfer_seconds,
            idle_seconds=self.idle_seconds + row.idle_seconds,
            overhead_seconds=self.overhead_seconds + row.overhead,
            label_variance=row.label_variance,
            largest_label_variance=max(self.largest_label_variance, row.label_variance),
            test_accuracy=self.test_accuracy if row.test_accuracy is None else row.test_accuracy,
            measured=self.measured if value is None else value,
            diverged=self.diverged + diverged,
            sent_bits=self.sent_bits if row.sent_bits is UNSET else row.sent_bits + (self.sent_bits or 0.0),
        )

    def summary(self, scenario: Scenario, cost: ModelCost, *, finished: bool, stopped: str | None = None) -> Summary:
        """The summary of a run that has come so far; `stopped` is why it ended before its budget did."""
        milestones, ledger = self.milestones, self.ledger
        names = [f"{target:g}" for target in milestones.targets]
        return Summary(
            schema=SCHEMA,
            scenario=scenario.name,
            policy=scenario.method_name,
            seed=scenario.seed,
            status="stopped" if stopped is not None else "finished" if finished else "interrupted",
            stopped_because=UNSET if stopped is None else stopped,
            rounds=self.rounds,
            skipped_rounds=ledger.skipped,
            samples=ledger.samples,
            total_seconds=ledger.seconds,
            compute_seconds=self.compute_seconds,
            transfer_seconds=self.transfer_seconds,
            idle_seconds=self.idle_seconds,
            overhead_seconds=self.overhead_seconds or UNSET,
            label_variance=self.label_variance,
            largest_label_variance=self.largest_label_variance,
            seconds_to_target=dict(zip(names, milestones.seconds, strict=True)),
            seconds_held=UNSET if milestones.held_for is None else dict(zip(names, milestones.held, strict=True)),
            test_accuracy=self.test_accuracy,
            measured=UNSET if self.measured is None or milestones.metric == ACCURACY else self.measured,
            diverged=self.diverged or UNSET,
            cost=cost,
            sent_bits=self.sent_bits,
        )


def diverged_text(rounds: Sequence[int], *, all_named: bool = True) -> str:
    """Which rounds had no finite loss; there is at least one. `all_named`: there are no others."""
    if len(rounds) == 1:
        return f"diverged: its loss was not a finite number in round {rounds[0]:,}"
    count = f"{len(rounds):,} rounds" if all_named else f"at least {len(rounds):,} rounds"
    return f"diverged: from round {rounds[0]:,} on, its loss was not a finite number in {count}"


def summary_of(scenario: Scenario, rows: Sequence[Row], cost: ModelCost, *, finished: bool) -> Summary:
    """What a run with these rows has come to."""
    labels = len(rows[0].used) if rows else 1
    return Tally.of(scenario.budget, labels, rows).summary(scenario, cost, finished=finished)

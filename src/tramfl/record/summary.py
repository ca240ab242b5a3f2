"""What a run came to: its totals, its time to each target, and whether it is over."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType, field

from tramfl.config import Scenario
from tramfl.notation import ModelCost
from tramfl.record.milestones import Milestones
from tramfl.record.rows import Row


class Summary(Struct, frozen=True, kw_only=True):
    """What a run came to."""

    scenario: str
    policy: str
    seed: int
    status: str
    """finished, or interrupted."""
    rounds: int
    skipped_rounds: int
    samples: int
    total_seconds: float
    compute_seconds: float
    transfer_seconds: float
    idle_seconds: float
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
    cost: ModelCost


def summary_of(scenario: Scenario, rows: Sequence[Row], cost: ModelCost, *, finished: bool) -> Summary:
    """What a run with these rows has come to."""
    measured = [row.test_accuracy for row in rows if row.test_accuracy is not None]
    milestones = Milestones.of(scenario.budget, rows)
    return Summary(
        scenario=scenario.name,
        policy=scenario.policy,
        seed=scenario.seed,
        status="finished" if finished else "interrupted",
        rounds=len(rows),
        skipped_rounds=sum(row.node is None for row in rows),
        samples=sum(rows[-1].used) if rows else 0,
        total_seconds=rows[-1].total_seconds if rows else 0.0,
        compute_seconds=sum(row.compute_seconds for row in rows),
        transfer_seconds=sum(row.transfer_seconds for row in rows),
        idle_seconds=sum(row.idle_seconds for row in rows),
        label_variance=rows[-1].label_variance if rows else 0.0,
        largest_label_variance=max((row.label_variance for row in rows), default=0.0),
        seconds_to_target={
            f"{target:g}": reached for target, reached in zip(milestones.targets, milestones.seconds, strict=True)
        },
        test_accuracy=measured[-1] if measured else None,
        cost=cost,
    )

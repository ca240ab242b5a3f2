"""Rows as the page takes them: only what it shows, in few digits."""

from __future__ import annotations

from msgspec import Struct

from tramfl.config import ACCURACY
from tramfl.record import Row


class WireRow(Struct, frozen=True, array_like=True):
    """One round, as a list; `assets/run.js` reads the same places."""

    round: int
    epoch: int
    holder: int
    node: int | None
    compute: float
    transfer: float
    idle: float
    lost: float
    total: float
    samples: tuple[int, ...]
    used: tuple[int, ...]
    variance: float
    flops: tuple[float | None, ...]
    bandwidth: tuple[float | None, ...]
    tested: float | None
    """What the run's targets are of, accuracy by default."""
    loss: float | None
    validation: float | None
    reason: str
    predicted: float
    """What the decision predicted for the whole round."""
    diverged: bool = False
    """Whether the loss of the round's training was not a finite number."""


def wire_row(row: Row, metric: str = ACCURACY) -> WireRow:
    """A row with six digits that count, the total with ten, and what was measured of `metric`."""
    loads = row.loads.in_full
    return WireRow(
        round=row.round,
        epoch=row.epoch,
        holder=row.holder,
        node=row.node,
        compute=_six(row.compute_seconds),
        transfer=_six(row.transfer_seconds),
        idle=_six(row.idle_seconds),
        lost=_six(row.lost_seconds),
        total=float(f"{row.total_seconds:.10g}"),
        samples=row.samples,
        used=row.used,
        variance=_six(row.label_variance),
        flops=tuple(_three(value) for value in loads.flops),
        bandwidth=tuple(_three(value) for value in loads.bandwidth),
        tested=row.measured(metric),
        loss=row.test_loss,
        validation=row.validation_loss,
        reason=row.decision.reason,
        predicted=_six(row.decision.predicted_seconds),
        diverged=row.diverged is True,
    )


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _three(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")

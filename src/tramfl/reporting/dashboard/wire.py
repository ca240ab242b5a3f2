"""Rows as the page takes them: only what it shows, in few digits."""

from __future__ import annotations

from msgspec import UNSET, Struct

from tramfl.config import ACCURACY
from tramfl.record import ModelScores, Row


class WireModels(Struct, frozen=True, array_like=True):
    """A round in which several nodes may train, each its own model."""

    trained: tuple[tuple[int, int], ...]
    """Who trained how many samples."""
    sent: tuple[tuple[int, int], ...]
    """From where to where; a number past the last node's is the server beside them. Of many nodes, one a sender."""
    scores: tuple[float | None, ...]
    """Of each node's model, where the round was tested."""
    worst: float | None
    consensus: float | None
    transfers: int
    """How many there were."""


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
    diverged: bool
    """Whether the loss of the round's training was not a finite number."""
    actual: tuple[float | None, float | None] | None
    """Free compute of the node that trained and the bandwidth to it, where the decision had other figures."""
    models: WireModels | None
    """Where every node keeps a model; null where one model travels."""
    overhead: float
    """What gathering, deciding, the register and the disk took at real sites."""


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
        actual=_actual(row),
        models=_models(row),
        overhead=_six(row.overhead),
    )


def _models(row: Row) -> WireModels | None:
    if row.trained is UNSET:
        return None
    trained = tuple((each.node, sum(each.samples)) for each in row.trained)
    if row.sent_to is UNSET:
        sent = tuple((each.source, each.target) for each in row.transfers)
        transfers = len(sent)
    else:
        sent = tuple((each.source, each.ranges[0]) for each in row.sent_to)
        transfers = sum(map(len, row.sent_to))
    scores = ModelScores(headline="nodes") if row.models is UNSET else row.models
    values = (tuple(map(_three, scores.nodes)), _three(scores.worst), _three(scores.consensus))
    return WireModels(trained, sent, *values, transfers)


def _actual(row: Row) -> tuple[float | None, float | None] | None:
    if row.node is None or row.actual is UNSET:
        return None
    actual = row.actual.in_full
    return _three(actual.flops[row.node]), _three(actual.bandwidth[row.node])


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _three(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")

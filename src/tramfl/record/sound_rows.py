"""Rows that others wrote: each is checked by itself, so that one bad row never hides the others."""

from __future__ import annotations

import math

import msgspec

from tramfl.record.rows import Row

MOST_COUNT = 1 << 53
MOST_SECONDS = 1e12
"""No duration is as long as this: 30,000 years."""
_decode = msgspec.json.Decoder(Row).decode


def sound_row(line: bytes) -> Row | str:
    """The row in a line; a few words about what is wrong where it is none that a site would write."""
    try:
        row = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"it cannot be read: {str(error)[:200]}"
    return fault_in_row(row) or row


def fault_in_row(row: Row) -> str | None:
    """What is wrong with a row, in a few words; None where it is sound."""
    seconds = (
        row.compute_seconds,
        row.transfer_seconds,
        row.idle_seconds,
        row.lost_seconds,
        row.overhead,
        row.total_seconds,
        row.decision.predicted_seconds,
    )
    if not all(0 <= value < MOST_SECONDS for value in seconds):
        return f"it has times that are out of range: {seconds}"
    counts = (row.round, row.epoch, row.holder, row.node or 0, *row.samples, *row.used)
    if not all(0 <= count < MOST_COUNT for count in counts) or len(row.samples) != len(row.used):
        return "it has counts that are out of range"
    scores = (row.test_accuracy, row.test_loss, row.validation_loss, row.label_variance)
    if not all(value is None or math.isfinite(value) for value in scores):
        return "it has scores that are not finite"
    return None

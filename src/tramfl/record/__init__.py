"""The run's record: rows, summary and the folder they lie in; what reports, figures and the live view read."""

from tramfl.record.files import CONFIG_FILE, MODEL_FILE, ROUNDS_FILE, SUMMARY_FILE, write_atomically, writing
from tramfl.record.milestones import Milestones, is_past_a_limit, is_test_due, seconds_to
from tramfl.record.rows import (
    Row,
    RowDecision,
    RowLoads,
    RowWriter,
    Scores,
    keep_whole_rows,
    ledger_after,
    read_rows,
    row_of,
)
from tramfl.record.summary import Summary, summary_of

__all__ = [
    "CONFIG_FILE",
    "MODEL_FILE",
    "ROUNDS_FILE",
    "SUMMARY_FILE",
    "Milestones",
    "Row",
    "RowDecision",
    "RowLoads",
    "RowWriter",
    "Scores",
    "Summary",
    "is_past_a_limit",
    "is_test_due",
    "keep_whole_rows",
    "ledger_after",
    "read_rows",
    "row_of",
    "seconds_to",
    "summary_of",
    "write_atomically",
    "writing",
]

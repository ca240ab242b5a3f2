"""The run's record: rows, summary and the folder they lie in; what reports, figures and the live view read."""

from tramfl.record.files import CONFIG_FILE, MODEL_FILE, ROUNDS_FILE, SUMMARY_FILE, write_atomically, writing
from tramfl.record.rows import Row, RowDecision, RowLoads, RowWriter, Scores, keep_whole_rows, read_rows, row_of
from tramfl.record.summary import Summary, past, seconds_to, summary_of

__all__ = [
    "CONFIG_FILE",
    "MODEL_FILE",
    "ROUNDS_FILE",
    "SUMMARY_FILE",
    "Row",
    "RowDecision",
    "RowLoads",
    "RowWriter",
    "Scores",
    "Summary",
    "keep_whole_rows",
    "past",
    "read_rows",
    "row_of",
    "seconds_to",
    "summary_of",
    "write_atomically",
    "writing",
]

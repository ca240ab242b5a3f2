"""The run's record: its rows, its summary, the folder they lie in, and the run at one moment.

All that reports, figures and the live view read.
"""

from tramfl.record.audit import AUDIT_FILE, AuditEntry, AuditFile, AuditKind, gathered, read_audit, sound_entry
from tramfl.record.files import (
    CONFIG_FILE,
    MODEL_FILE,
    ROUNDS_FILE,
    SUMMARY_FILE,
    TENSORBOARD_FOLDER,
    write_atomically,
    writing,
)
from tramfl.record.folder import (
    ClockKind,
    Resolved,
    RunFolder,
    folder_name,
    resolved_from,
    runs_inside,
    settings_to_show,
)
from tramfl.record.milestones import Milestones, is_past_a_limit, is_test_due, seconds_to
from tramfl.record.rows import (
    MANY_NODES,
    ModelScores,
    NodeTrained,
    Row,
    RowDecision,
    RowLoads,
    RowWriter,
    Scores,
    Sent,
    check_rows,
    in_columns,
    keep_whole_rows,
    ledger_after,
    lineage,
    read_rows,
    row_of,
    shortened,
)
from tramfl.record.schema import SCHEMA, check_json, read_config
from tramfl.record.snapshot import Doing, Now, RunState, SiteNow
from tramfl.record.sound_rows import sound_row
from tramfl.record.summary import Regret, Summary, Tally, diverged_text, summary_of
from tramfl.record.tail import RowTail

__all__ = [
    "AUDIT_FILE",
    "CONFIG_FILE",
    "MANY_NODES",
    "MODEL_FILE",
    "ROUNDS_FILE",
    "SCHEMA",
    "SUMMARY_FILE",
    "TENSORBOARD_FOLDER",
    "AuditEntry",
    "AuditFile",
    "AuditKind",
    "ClockKind",
    "Doing",
    "Milestones",
    "ModelScores",
    "NodeTrained",
    "Now",
    "Regret",
    "Resolved",
    "Row",
    "RowDecision",
    "RowLoads",
    "RowTail",
    "RowWriter",
    "RunFolder",
    "RunState",
    "Scores",
    "Sent",
    "SiteNow",
    "Summary",
    "Tally",
    "check_json",
    "check_rows",
    "diverged_text",
    "folder_name",
    "gathered",
    "in_columns",
    "is_past_a_limit",
    "is_test_due",
    "keep_whole_rows",
    "ledger_after",
    "lineage",
    "read_audit",
    "read_config",
    "read_rows",
    "resolved_from",
    "row_of",
    "runs_inside",
    "seconds_to",
    "settings_to_show",
    "shortened",
    "sound_entry",
    "sound_row",
    "summary_of",
    "write_atomically",
    "writing",
]

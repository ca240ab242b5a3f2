"""The last events before something broke, as files in the site's state folder: `tramfl blackbox` plays them again."""

from __future__ import annotations

from pathlib import Path

from tramfl.circulation.blackbox import Tape, encode
from tramfl.record import write_atomically
from tramfl.runtime.journal import Log

KEPT_TAPES = 3
"""Files that are kept; older ones are deleted."""


def write_tape(tape: Tape, file: Path, log: Log) -> None:
    """Write a tape, or log why it cannot be written."""
    try:
        write_atomically(file, encode(tape))
    except OSError as failed:
        log("black-box", file=str(file), reason=str(failed.strerror or failed))
        return
    log("black-box", file=str(file))
    tapes = sorted(file.parent.glob("blackbox-*.msgpack"), key=lambda tape: tape.stat().st_mtime_ns)
    for old in tapes[:-KEPT_TAPES]:
        old.unlink(missing_ok=True)

"""A run's folder as something to watch, while it is written and afterwards. Imports only record and reporting.

Nothing is ever locked or written: watching a run cannot disturb it. Rows are read once, from where the last
reading ended.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, ROUNDS_FILE, SUMMARY_FILE, Row, Summary
from tramfl.reporting.dashboard.source import Now, SiteNow, Status
from tramfl.reporting.runs import Resolved, check_rows, read_settings, runs_inside

MOST_ROWS = 1000
"""Rows of one answer: a long run begins to show before it is read to its end."""
FRESH_SECONDS = 10.0
"""A file changed less long ago is taken for one that somebody is writing, where locks do not tell."""
LOCKS = Path("/proc/locks")

Stamp = tuple[int, int, int]
"""What changes when a file is replaced: device, inode, and time of the last change."""


class _Known(Struct, frozen=True):
    """What config.toml says, as long as it is the same file."""

    stamp: Stamp
    settings: Scenario
    resolved: Resolved


class FolderSource:
    """The run in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._known: _Known | None = None
        self._begins: list[int] = [0]
        """Where each row begins in its file, and where the next will."""
        self._tail = b""
        """The last bytes that were read: they differ once the file is another."""
        self._first: Row | None = None
        self._file = (0, 0)
        self._resets = 0
        self._trouble = ""
        self._decoder = msgspec.json.Decoder(Row)
        self._check()

    def now(self) -> Now:
        """What the folder's files say."""
        self._look()
        if self._known is None:
            return Now(run=self._name(), title=self._folder.name, status="preparing")
        settings, resolved = self._known.settings, self._known.resolved
        names = [f"node {i}" for i in range(len(resolved.held))]
        if len(resolved.sites) == len(names):
            names = list(resolved.sites)
        return Now(
            run=self._name(),
            title=settings.name,
            policy=settings.policy,
            seed=settings.seed,
            status=self._status(),
            clock=resolved.clock,
            sites=tuple(SiteNow(name=name, held=held) for name, held in zip(names, resolved.held, strict=True)),
            message=self._trouble,
            labels=tuple(str(label) for label in resolved.labels),
            variance_limit=settings.variance_limit,
            targets=settings.budget.targets,
            model_bits=resolved.cost.model_bits if resolved.cost else settings.cost.model_bits,
            rounds_planned=settings.budget.rounds,
        )

    def rows(self, after: int) -> Sequence[Row]:
        """Whole rows, at most `MOST_ROWS`; none past a line that is not a row."""
        if after >= len(self._begins):
            return []
        found: list[Row] = []
        with suppress(FileNotFoundError), (self._folder / ROUNDS_FILE).open("rb") as file:
            file.seek(self._begins[after])
            for line in file:
                if not line.endswith(b"\n") or len(found) == MOST_ROWS:
                    break
                number = after + len(found)
                try:
                    row = self._decoder.decode(line)
                    self._first = self._first or row
                    check_rows([self._first, row], Path(ROUNDS_FILE))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    self._trouble = f"{ROUNDS_FILE}, line {number + 1}, is not a round's row: {error}."
                    break
                except BadInput as error:
                    self._trouble = str(error)
                    break
                found.append(row)
                if number + 1 == len(self._begins):
                    self._begins.append(self._begins[-1] + len(line))
                    self._tail = line[-64:]
        return found

    def _check(self) -> None:
        """Refuse a folder without a run, before anything is served."""
        if not self._folder.is_dir():
            raise BadInput(f"{self._folder}: there is no such folder; start a run with --out {self._folder} first.")
        if (self._folder / CONFIG_FILE).exists():
            self._known = self._read()
        elif not locked(self._folder):
            inside = runs_inside(self._folder)
            if inside:
                raise BadInput(f"{self._folder} holds {len(inside)} run(s); name one of them, such as {inside[0]}.")
            raise BadInput(
                f"{self._folder} holds no run: there is no {CONFIG_FILE} in it, which `tramfl run --out` writes."
            )

    def _look(self) -> None:
        """Notice another run in place of this one, and a run that has lost its last rows."""
        with suppress(FileNotFoundError):
            stamp = _stamp(self._folder / CONFIG_FILE)
            if self._known is None or stamp != self._known.stamp:
                try:
                    self._known = self._read()
                    self._trouble = ""
                except BadInput as error:
                    self._trouble = str(error)
        if not self._continues():
            self._begins, self._tail, self._first, self._trouble = [0], b"", None, ""
            self._resets += 1

    def _continues(self) -> bool:
        """Whether the rows file still begins with what was read of it."""
        try:
            with (self._folder / ROUNDS_FILE).open("rb") as file:
                found = os.fstat(file.fileno())
                same, self._file = (found.st_dev, found.st_ino) == self._file, (found.st_dev, found.st_ino)
                file.seek(self._begins[-1] - len(self._tail))
                return (same or len(self._begins) == 1) and file.read(len(self._tail)) == self._tail
        except FileNotFoundError:
            return len(self._begins) == 1

    def _read(self) -> _Known:
        path = self._folder / CONFIG_FILE
        return _Known(_stamp(path), *read_settings(path))

    def _name(self) -> str:
        """The same after a restart of this program, another after a restart of the run."""
        parts = (os.path.realpath(self._folder), self._known.stamp if self._known else 0, self._file, self._resets)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _status(self) -> Status:
        if locked(self._folder):
            return "running"
        with suppress(OSError, msgspec.DecodeError):
            summary = msgspec.json.decode((self._folder / SUMMARY_FILE).read_bytes(), type=Summary)
            # A run that was taken up again leaves the old summary in place until it ends.
            if summary.rounds >= len(self._begins) - 1:
                return "finished" if summary.status == "finished" else "interrupted"
        with suppress(OSError):
            if time.time() - (self._folder / ROUNDS_FILE).stat().st_mtime < FRESH_SECONDS:
                return "running"
        return "stopped"


def locked(folder: Path) -> bool:
    """Whether a process is at work in a folder, as far as this system tells without trying to lock it."""
    try:
        inode = folder.stat().st_ino
        return re.search(rf"FLOCK .*:{inode} ", LOCKS.read_text()) is not None
    except OSError:
        return False


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_mtime_ns)

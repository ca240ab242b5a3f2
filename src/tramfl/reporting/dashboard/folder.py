"""A run's folder as something to watch, while it is written and afterwards. Nothing is ever locked or written."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, Now, Resolved, Row, RowTail, RunFolder, RunState, SiteNow, Summary, runs_inside
from tramfl.reporting.summary import regret_text

FRESH_SECONDS = 10.0
"""A file changed less long ago counts as one that a process is writing, where the system shows no locks."""

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
        self._files = RunFolder(folder)
        self._folder = self._files.path
        self._tail = RowTail(self._files.rounds)
        self._known: _Known | None = None
        self._trouble = ""
        self._check()

    def now(self) -> Now:
        """What the folder's files say."""
        self._look()
        if self._known is None:
            return Now(run=self._name(), title=self._folder.name, status="preparing")
        settings, resolved = self._known.settings, self._known.resolved
        summary = self._summary()
        keeps_models = settings.exchange is not None and settings.exchange.rule is not None
        names = [f"node {i}" for i in range(len(resolved.held))]
        if len(resolved.sites) == len(names):
            names = list(resolved.sites)
        return Now(
            run=self._name(),
            title=settings.name,
            policy=settings.method_name,
            seed=settings.seed,
            status=self._status(summary),
            clock=resolved.clock,
            sites=tuple(SiteNow(name=name, held=held) for name, held in zip(names, resolved.held, strict=True)),
            message=self._tail.trouble or self._trouble or _why_stopped(summary),
            labels=tuple(str(label) for label in resolved.labels),
            variance_limit=None if keeps_models else settings.variance_limit,
            targets=settings.budget.targets,
            metric=settings.budget.metric,
            lower_is_better=settings.budget.lower_is_better,
            model_bits=resolved.cost.model_bits if resolved.cost else settings.cost.model_bits,
            rounds_planned=settings.budget.rounds,
            regret=regret_text(summary.regret) if summary and summary.regret else "",
        )

    def rows(self, after: int) -> Sequence[Row]:
        """Whole rows, some at a time; none past a line that is not a row."""
        return self._tail.rows(after)

    def _check(self) -> None:
        """Refuse a folder without a run, before anything is served."""
        if not self._folder.is_dir():
            raise BadInput(f"{self._folder}: there is no such folder; start a run with --out {self._folder} first.")
        if self._files.holds_run:
            self._known = self._read()
        elif not self._files.locked:
            if inside := [run.path for run in runs_inside(self._folder)]:
                raise BadInput(f"{self._folder} holds {len(inside)} run(s); name one of them, such as {inside[0]}.")
            raise BadInput(
                f"{self._folder} holds no run: there is no {CONFIG_FILE} in it, which `tramfl run --out` writes."
            )

    def _look(self) -> None:
        """Notice another run in place of this one, and a run that has lost its last rows."""
        with suppress(FileNotFoundError):
            stamp = _stamp(self._files.config)
            if self._known is None or stamp != self._known.stamp:
                try:
                    self._known = self._read()
                    self._trouble = self._tail.trouble = ""
                except BadInput as error:
                    self._trouble = str(error)
        self._tail.restart_if_replaced()

    def _read(self) -> _Known:
        return _Known(_stamp(self._files.config), self._files.scenario_to_show(), self._files.resolved())

    def _name(self) -> str:
        """The same after a restart of this program, another after a restart of the run."""
        parts = (os.path.realpath(self._folder), self._known.stamp if self._known else 0, *self._tail.identity)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _summary(self) -> Summary | None:
        """What the run came to, once it has ended."""
        with suppress(BadInput):
            summary = None if self._files.locked else self._files.summary()
            # A run that was taken up again leaves the old summary in place until it ends.
            return summary if summary and summary.rounds >= self._tail.count else None
        return None

    def _status(self, summary: Summary | None) -> RunState:
        if self._files.locked:
            return "running"
        if summary is not None:
            states: dict[str, RunState] = {"finished": "finished", "stopped": "stopped"}
            return states.get(summary.status, "interrupted")
        with suppress(OSError):
            if time.time() - self._files.rounds.stat().st_mtime < FRESH_SECONDS:
                return "running"
        return "stopped"


def _why_stopped(summary: Summary | None) -> str:
    return f"The run was stopped: {summary.stopped_because}" if summary and summary.stopped_because else ""


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_mtime_ns)

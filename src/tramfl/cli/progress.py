"""How a run shows itself: one steady line on a terminal, plain lines in a log, nothing when quiet."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from tramfl.record import Row
from tramfl.simulation.experiment import Experiment

LOG_SECONDS = 10.0
"""Between two plain lines, where there is no terminal."""


class RunProgress:
    """Follows one run."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._status = console.status("Preparing ...") if console.is_terminal and not quiet else None
        self._said_at = time.monotonic()
        self._accuracy: float | None = None

    def __call__(self, experiment: Experiment, row: Row) -> None:
        """A round is done."""
        if row.test_accuracy is not None:
            self._accuracy = row.test_accuracy
        if self._status is not None:
            self._status.update(self._line(experiment, row))
        elif not self._quiet and time.monotonic() - self._said_at > LOG_SECONDS:
            self._said_at = time.monotonic()
            self._console.print(self._line(experiment, row), highlight=False)

    def _line(self, experiment: Experiment, row: Row) -> str:
        limit = math.sqrt(experiment.scenario.variance_limit)
        where = f"node {row.node} trained" if row.node is not None else f"node {row.holder} waits"
        accuracy = "" if self._accuracy is None else f" · accuracy {self._accuracy:.1%}"
        balance = f"labels ± {math.sqrt(row.label_variance):,.0f} of {limit:,.0f}"
        return f"round {row.round:,} · {where} · {row.total_seconds:,.1f} s{accuracy} · {balance}"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while a run goes on."""
        if self._status is None:
            yield
            return
        with self._status:
            yield

    def downloaded(self, file: str, done: int, total: int | None) -> None:
        """A data file is on its way."""
        share = f" of {total / 1e6:.1f}" if total else ""
        if self._status is not None:
            self._status.update(f"downloading {file}: {done / 1e6:.1f}{share} MB")
        elif not self._quiet and (done == total or time.monotonic() - self._said_at > LOG_SECONDS):
            self._said_at = time.monotonic()
            self._console.print(f"downloading {file}: {done / 1e6:.1f}{share} MB", highlight=False)

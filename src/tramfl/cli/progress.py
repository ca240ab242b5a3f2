"""How a run shows itself: one steady line on a terminal, plain lines in a log, nothing when quiet."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import UNSET
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tramfl.record import Row, Summary
from tramfl.reporting.measures import Measure
from tramfl.reporting.summary import rounds_text, seconds
from tramfl.simulation.experiment import Playing
from tramfl.simulation.play import Request

LOG_SECONDS = 10.0
"""Between two plain lines, where there is no terminal."""


class RunProgress:
    """Follows one run."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._status = console.status("Preparing ...") if console.is_terminal and not quiet else None
        self._said_at = time.monotonic()
        self._measured: float | None = None

    def __call__(self, experiment: Playing, row: Row) -> None:
        """A round is done."""
        value = row.measured(experiment.scenario.budget.metric)
        self._measured = self._measured if value is None else value
        if self._status is not None:
            self._status.update(self._line(experiment, row))
        elif not self._quiet and time.monotonic() - self._said_at > LOG_SECONDS:
            self._said_at = time.monotonic()
            self._console.print(self._line(experiment, row), highlight=False, soft_wrap=True)

    def _line(self, experiment: Playing, row: Row) -> str:
        limit = math.sqrt(experiment.scenario.variance_limit)
        where = f"node {row.node} trained" if row.node is not None else f"node {row.holder} waits"
        if len(row.by_node) > 1:
            where = f"{len(row.by_node)} nodes trained"
        measure = Measure.of(experiment.scenario.budget)
        tested = "" if self._measured is None else f" · {measure.brief(self._measured)}"
        balance = f"labels ± {math.sqrt(row.label_variance):,.0f} of {limit:,.0f}"
        return f"round {row.round:,} · {where} · {seconds(row.total_seconds)} s{tested} · {balance}"

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


class GridProgress:
    """Follows many runs: a bar for all, and a line for each that ends."""

    def __init__(self, console: Console, quiet: bool, todo: Sequence[Request], already: int) -> None:
        self._console, self._quiet = console, quiet
        self._ended, self._all, self._already = 0, len(todo), already
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("runs", total=len(todo))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while the runs go on."""
        if self._already and not self._quiet:
            self._console.print(f"{self._already} runs were finished before.", highlight=False)
        with self._bar:
            yield

    def ended(self, request: Request, summary: Summary) -> bool:
        """A run has ended; whether it is finished, and not interrupted."""
        self._ended += 1
        self._bar.advance(self._task)
        if not self._quiet:
            line = f"[{self._ended}/{self._all}] {_result_line(summary, Measure.of(request.scenario.budget))}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        return summary.status != "interrupted"


def _result_line(summary: Summary, measure: Measure) -> str:
    what = f"{summary.scenario}, {summary.policy}, seed {summary.seed}"
    times = summary.seconds_to_target.items()
    found = [(measure.target(float(target)), after) for target, after in times if after is not None]
    reached = [f"{target} after {seconds(after)} s" for target, after in found]
    if summary.test_accuracy is None and summary.measured is UNSET:
        reached = [f"{summary.samples / max(summary.total_seconds, 1e-9):,.0f} samples/s"]
    diverged = f"; {summary.divergence}" if summary.divergence else ""
    stopped = f"; stopped: {summary.stopped_because}" if summary.stopped_because else ""
    return f"{what}: {', '.join(reached) or 'no target reached'} ({rounds_text(summary.rounds)}){diverged}{stopped}"

"""`tramfl up`: a whole federation of real processes on this machine, to try it out."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from tramfl.cli.federations import need_linux, run, runtime
from tramfl.cli.options import (
    AppOption,
    DataDirOption,
    Format,
    FormatOption,
    PolicyOption,
    QuietOption,
    RoundsOption,
    ScenarioArgument,
    SetOption,
    TargetOption,
    changed,
    targets_from,
)
from tramfl.cli.report import write_report
from tramfl.notation import BadInput
from tramfl.record import Row, RunFolder, Summary
from tramfl.reporting.measures import Measure
from tramfl.simulation.api import app_name
from tramfl.simulation.scenarios import scenario_for_sites

if TYPE_CHECKING:
    from tramfl.runtime.operator.federation_status import FederationStatus
    from tramfl.runtime.operator.local import LocalSites

NODE = (sys.executable, "-P", "-c", "from tramfl.cli import main; main()", "node")
"""Runs one site."""


def up(
    scenario: ScenarioArgument = None,
    sites: Annotated[int, typer.Option(min=1, max=100, help="How many sites.")] = 5,
    policy: PolicyOption = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same first model.")] = None,
    rounds: RoundsOption = None,
    target: TargetOption = None,
    set_: SetOption = None,
    app: AppOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: runs/up-SCENARIO-POLICY-SEED).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the federation's files and logs in this folder.")] = None,
    data_dir: DataDirOption = None,
    format: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Start real sites as processes on this machine, with certificates and the SQLite register, and train.

    Kill any of them (their process ids are shown): the run goes on.
    """
    need_linux()
    runtime()
    wanted = changed(
        scenario_for_sites(scenario, sites),
        scenario or "the scenario",
        set_,
        policy=policy,
        seed=seed,
        budget__rounds=rounds,
        budget__targets=targets_from(target),
        app=app,
        name=app_name(app) if app is not None and scenario is None else None,
    )
    if wanted.budget.rounds is None and wanted.budget.seconds is None and wanted.budget.samples is None:
        raise BadInput("the run has no limit: set one of budget.rounds, budget.seconds and budget.samples.")
    folder = RunFolder(out or Path("runs") / f"up-{wanted.name}-{wanted.method_name}-{wanted.seed}")
    if folder.holds_run and not overwrite:
        folder.check_free()
    console = Console(stderr=True, highlight=False, markup=False)
    from tramfl.runtime.operator.local import LocalSites

    with folder.alone(), _place(keep) as place, LocalSites(place, wanted, sites, data_dir, NODE) as started:
        measure = Measure.of(wanted.budget)
        show = _Show(console, quiet or format is Format.json, started, measure)
        summary = run(lambda: _travel(started, folder, show))
    if summary.rounds:
        write_report([folder.path], folder.path)
    if format is Format.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        _print(summary, folder.path, measure)
    if summary.status != "finished":
        raise typer.Exit(1)


@contextlib.contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise BadInput(f"--keep {keep}: the folder is not empty.")
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="tramfl-up-", ignore_cleanup_errors=True) as place:
        yield Path(place)


class _Show:
    """Progress: one steady line on a terminal, plain lines in a log, nothing when quiet."""

    def __init__(self, console: Console, quiet: bool, sites: LocalSites, measure: Measure) -> None:
        self._console, self._quiet, self._sites = console, quiet, sites
        self._status = console.status("Starting the sites ...") if console.is_terminal and not quiet else None
        self._said_at = 0.0
        self._dead: set[str] = set()
        self._epoch = 1
        self._measure = measure
        self._measured: float | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress meanwhile."""
        with self._status or contextlib.nullcontext():
            yield

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._console.print(text)

    def update(self, status: FederationStatus, rows: list[Row]) -> None:
        """The federation has moved on."""
        for name in self._sites.dead():
            if name not in self._dead:
                self._dead.add(name)
                self.say(f"site {name} is gone; the run goes on without it.")
        record = status.record
        if record is None:
            return
        names = self._sites.names
        if record.epoch > self._epoch:
            self._epoch = record.epoch
            holder = names[record.holder] if record.holder is not None else "nobody"
            self.say(f"the holder was lost: site {holder} took over (epoch {record.epoch}).")
        values = (row.measured(self._measure.metric) for row in reversed(rows))
        self._measured = next((value for value in values if value is not None), self._measured)
        tested = f" · {self._measure.brief(self._measured)}" if self._measured is not None else ""
        where = names[record.holder] if record.holder is not None else "-"
        balance = f"labels ± {math.sqrt(record.ledger.label_variance):,.0f}"
        line = f"round {record.round:,} · model at {where} · {record.ledger.samples:,} samples{tested} · {balance}"
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._said_at > 5.0:
            self._said_at = time.monotonic()
            self.say(line)


async def _travel(sites: LocalSites, folder: RunFolder, show: _Show) -> Summary:
    from tramfl.runtime.operator import trial

    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    with show.shown():
        return await trial.travel(sites, folder, show, interrupted)


def _print(summary: Summary, folder: Path, measure: Measure) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    value = summary.test_accuracy if measure.is_accuracy else summary.measured
    tested = f", test {measure.brief(value)}" if isinstance(value, float) else ""
    console.print(
        f"{summary.scenario}, {summary.policy}: {summary.rounds:,} rounds, {summary.samples:,} samples,"
        f" {summary.compute_seconds:,.2f} s of training and {summary.transfer_seconds:,.2f} s of transfer{tested}."
    )
    console.print(f"Record in {folder}; replay it: tramfl run {folder}/config.toml --loads {folder}/rounds.jsonl")

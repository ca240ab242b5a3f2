"""`tramfl up`: a whole federation of real processes on this machine, to try it out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
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
from tramfl.cli.init import scenario_for
from tramfl.cli.options import (
    DataDirOption,
    Format,
    FormatOption,
    QuietOption,
    ScenarioArgument,
    SetOption,
    changed,
    targets_from,
)
from tramfl.cli.pull import collect
from tramfl.cli.report import write_report
from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import Row, RunFolder, Summary

if TYPE_CHECKING:
    from tramfl.runtime.operator.operating import FederationStatus, Operator

LOOK_SECONDS = 0.25
READY_SECONDS = 180.0
REST_SECONDS = 10.0
HOME_SECONDS = 60.0
"""How long a register that does not give the record of an ended run is asked again."""


def up(
    scenario: ScenarioArgument = None,
    sites: Annotated[int, typer.Option(min=1, max=100, help="How many sites.")] = 5,
    policy: Annotated[str | None, typer.Option(help="Who decides: load-aware, random, time-first, ...")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same first model.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds.")] = None,
    target: Annotated[str | None, typer.Option(help="Test accuracies to reach, e.g. 0.7,0.9.")] = None,
    set_: SetOption = None,
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
        scenario_for(scenario, sites),
        scenario or "the scenario",
        set_,
        policy=policy,
        seed=seed,
        budget__rounds=rounds,
        budget__targets=targets_from(target),
    )
    if wanted.budget.rounds is None and wanted.budget.seconds is None and wanted.budget.samples is None:
        raise BadInput("the run has no limit: set one of budget.rounds, budget.seconds and budget.samples.")
    folder = RunFolder(out or Path("runs") / f"up-{wanted.name}-{wanted.policy}-{wanted.seed}")
    if folder.holds_run and not overwrite:
        folder.check_free()
    console = Console(stderr=True, highlight=False, markup=False)
    with folder.alone(), _place(keep) as place, _Street(place, wanted, sites, data_dir) as street:
        show = _Show(console, quiet or format is Format.json, street)
        summary = run(lambda: _travel(street, folder.path, show))
    if summary.rounds:
        write_report([folder.path], folder.path)
    if format is Format.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        _print(summary, folder.path)
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


class _Street:
    """The sites' processes."""

    def __init__(self, place: Path, scenario: Scenario, sites: int, data_dir: Path | None) -> None:
        from tramfl.runtime.operator import founding
        from tramfl.runtime.settings import RegisterSettings, SiteEntry

        self.names = [chr(ord("a") + n) if sites <= 26 else f"s{n + 1}" for n in range(sites)]
        entries = tuple(
            SiteEntry(name=name, address=f"127.0.0.1:{port}")
            for name, port in zip(self.names, _free_ports(sites), strict=True)
        )
        run_ = founding.run_for(scenario, sites)
        founding.found(founding.Plan(name="up", site=entries, register=RegisterSettings(), run=run_), place)
        self.federation = place / founding.FEDERATION_FILE
        self._files = {name: founding.site_folder(place, name) / founding.SITE_FILE for name in self.names}
        for file in self._files.values():
            # Sites that share a machine share its cores.
            extra = [f"threads = {max(1, (os.cpu_count() or 1) // sites)}"]
            if data_dir is not None:
                extra.append(f"data_dir = {json.dumps(str(data_dir.absolute()))}")
            file.write_text(file.read_text() + "\n".join(extra) + "\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> _Street:
        for name, file in self._files.items():
            with (file.parent / "log.jsonl").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-c", "from tramfl.cli import main; main()", "node", str(file), "--with-parent"],
                    stdin=subprocess.PIPE,  # when this process is gone, however, the sites end too
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # an interrupt is for this process, which then ends the sites
                )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def dead(self) -> list[str]:
        """Sites whose process has ended."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def last_words(self, name: str) -> str:
        """The end of a site's log."""
        lines = (self._files[name].parent / "log.jsonl").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no word"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class _Show:
    """Progress: one steady line on a terminal, plain lines in a log, nothing when quiet."""

    def __init__(self, console: Console, quiet: bool, street: _Street) -> None:
        self._console, self._quiet, self._street = console, quiet, street
        self._status = console.status("Starting the sites ...") if console.is_terminal and not quiet else None
        self._said_at = 0.0
        self._dead: set[str] = set()
        self._epoch = 1
        self._accuracy: float | None = None

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
        for name in self._street.dead():
            if name not in self._dead:
                self._dead.add(name)
                self.say(f"site {name} is gone; the run goes on without it.")
        record = status.record
        if record is None:
            return
        names = self._street.names
        if record.epoch > self._epoch:
            self._epoch = record.epoch
            holder = names[record.holder] if record.holder is not None else "nobody"
            self.say(f"the holder was lost: site {holder} took over (epoch {record.epoch}).")
        self._accuracy = next(
            (r.test_accuracy for r in reversed(rows) if r.test_accuracy is not None), self._accuracy
        )
        accuracy = f" · accuracy {self._accuracy:.1%}" if self._accuracy is not None else ""
        where = names[record.holder] if record.holder is not None else "-"
        balance = f"labels ± {math.sqrt(record.ledger.label_variance):,.0f}"
        line = f"round {record.round:,} · model at {where} · {record.ledger.samples:,} samples{accuracy} · {balance}"
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._said_at > 5.0:
            self._said_at = time.monotonic()
            self.say(line)


async def _travel(street: _Street, folder: Path, show: _Show) -> Summary:
    """Start the run, follow it to its end, and bring its record home."""
    hand = runtime().operator_from(street.federation, False)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    try:
        with show.shown():
            await _ready(street, hand, interrupted)
            pids = ", ".join(f"{name} {process.pid}" for name, process in street.processes.items())
            show.say(f"sites and their processes: {pids}")
            show.say(await _begin(hand, street))
            await _follow(street, hand, show, interrupted)
        return await _brought_home(hand, folder)
    finally:
        await hand.close()


async def _begin(hand: Operator, street: _Street) -> str:
    from tramfl.runtime.wire import Order

    return await hand.order(Order("start", f"up-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"))


async def _ready(street: _Street, hand: Operator, interrupted: asyncio.Event) -> None:
    until = time.monotonic() + READY_SECONDS
    while len((await hand.status()).answering) < len(street.names):
        if dead := street.dead():
            raise BadInput(f"site {dead[0]} did not start: {street.last_words(dead[0])}")
        if interrupted.is_set():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            raise BadInput(f"the sites did not answer within {READY_SECONDS:.0f} s.")
        await asyncio.sleep(LOOK_SECONDS)


async def _follow(street: _Street, hand: Operator, show: _Show, interrupted: asyncio.Event) -> None:
    rows: list[Row] = []
    silent = False
    while True:
        status = await hand.status()
        if not status.answering:
            raise BadInput("all sites are gone; nothing could be fetched.")
        record = status.record
        if record is not None:
            try:
                rows, silent = await hand.rows(status, max(1, record.round - 20)), False
            except BadInput as error:  # a register may be silent for a moment: the sites try again, and so does this
                if not silent:
                    show.say(f"the rounds cannot be read at the moment: {error}")
                silent = True
            show.update(status, rows)
            if interrupted.is_set() or record.status == "stopped":
                break
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), LOOK_SECONDS)
    if not interrupted.is_set():
        await _settled(hand, status)


async def _settled(hand: Operator, status: FederationStatus) -> None:
    """A stopped run still commits its round in hand, copies it to a second site, and tests it."""
    until = time.monotonic() + REST_SECONDS
    while time.monotonic() < until:
        before = status.revision
        await asyncio.sleep(LOOK_SECONDS)
        status = await hand.status()
        doing = {site.report.doing for site in status.sites if site.report is not None}
        record = status.record
        rests = status.revision == before and not doing & {"training", "storing", "swapping"}
        if rests and record is not None and (record.safe.round == record.round or len(status.answering) == 1):
            break


async def _brought_home(hand: Operator, folder: Path) -> Summary:
    """Model and record of the run: the sites and all they have are gone after this."""
    until = time.monotonic() + HOME_SECONDS
    while True:
        try:
            return (await collect(hand, folder))[1]
        except BadInput:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(LOOK_SECONDS)


def _print(summary: Summary, folder: Path) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    accuracy = f", test accuracy {summary.test_accuracy:.1%}" if summary.test_accuracy is not None else ""
    console.print(
        f"{summary.scenario}, {summary.policy}: {summary.rounds:,} rounds, {summary.samples:,} samples,"
        f" {summary.compute_seconds:,.2f} s of training and {summary.transfer_seconds:,.2f} s of transfer{accuracy}."
    )
    console.print(f"Record in {folder}; replay it: tramfl run {folder}/config.toml --loads {folder}/rounds.jsonl")

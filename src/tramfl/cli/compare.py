"""`tramfl compare`: several policies on the same scenarios and seeds, in parallel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tramfl.cli.options import (
    DataDirOption,
    Format,
    FormatOption,
    NoTrainingOption,
    QuietOption,
    SetOption,
    limited,
    scenario_of,
    targets_from,
)
from tramfl.cli.progress import GridProgress
from tramfl.cli.report import write_report
from tramfl.cli.run import ROUNDS_WITHOUT_TRAINING
from tramfl.cli.warn import warn_in_one_line
from tramfl.notation import BadInput
from tramfl.reporting import as_data, as_table, load_runs, times_to_target, verdict
from tramfl.scheduling.policy import policy_named
from tramfl.simulation.grid import cells, finished, play_all, play_on_ray
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import DEFAULT

LOG_WIDTH = 200
PAPER_POLICIES = "load-aware,random,time-first,variance-first"

JobsOption = Annotated[int | None, typer.Option(min=1, help="Processes at a time (default: one per core).")]
RayOption = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster; 'local' starts one here.")
]


def compare(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO...", help=f"Scenarios or files (default: {DEFAULT}).")
    ] = None,
    policies: Annotated[str, typer.Option(help="Policies, by name, with commas between.")] = PAPER_POLICIES,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat every run with so many seeds, from 0 on.")] = 3,
    jobs: JobsOption = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop every run after so many rounds.")] = None,
    target: Annotated[str | None, typer.Option(help="Test accuracies to reach, e.g. 0.7,0.9.")] = None,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: runs/compare).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Play again what is there.")] = False,
    no_training: NoTrainingOption = False,
    data_dir: DataDirOption = None,
    ray: RayOption = None,
    format: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Race policies on the same scenarios, seeds and loads: who reaches the target in the least virtual time?

    Called again, it goes on where it stopped.
    """
    keys = {"budget__rounds": rounds, "budget__targets": targets_from(target)}
    found = [scenario_of(name, set_, **keys) for name in scenarios or [DEFAULT]]
    if no_training:
        found = [limited(scenario, ROUNDS_WITHOUT_TRAINING) for scenario in found]
    for key, option in (("seed", "--seeds"), ("policy", "--policies")):
        if any(assignment.partition("=")[0].strip() == key for assignment in set_ or ()):
            raise BadInput(f"--set {key}: compare plays several; say which with {option}.")
    names = [name.strip() for name in policies.split(",") if name.strip()]
    for name in names:
        policy_named(name)
    if len({scenario.name for scenario in found}) < len(found) or len(set(names)) < len(names) or not names:
        raise BadInput("name every scenario and every policy once.")
    out = out or Path("runs/compare")
    template = Request(scenario=found[0], train=not no_training, overwrite=overwrite, data_dir=data_dir)
    requests = cells(found, names, range(seeds), out, template)
    play_grid(requests, jobs, ray, quiet or format is Format.json)
    folders = [request.out for request in requests if request.out is not None]
    conclude(folders, out, format, quiet)


def play_grid(requests: Sequence[Request], jobs: int | None, ray: str | None, quiet: bool) -> None:
    """Play what is not finished yet, with one display for all."""
    todo = [request for request in requests if finished(request) is None]
    jobs = min(jobs or os.cpu_count() or 1, max(1, len(todo)))
    progress = GridProgress(Console(stderr=True), quiet, todo, already=len(requests) - len(todo))
    why = None
    try:
        with progress.shown():
            ends = play_on_ray(todo, ray, jobs) if ray else play_all(todo, jobs, warn_in_one_line)
            for request, summary in ends:
                if not progress.ended(request, summary):
                    why = "interrupted"
    except KeyboardInterrupt:
        why = "interrupted"
    except BrokenProcessPool:
        why = "a process that played a run was killed, perhaps for want of memory"
    if why is not None:
        print(f"tramfl: {why}; the same command, without --overwrite, goes on where it stopped.", file=sys.stderr)
        sys.exit(1)


def conclude(folders: list[Path], out: Path, format: Format, quiet: bool) -> None:
    """Print who won, and where to read more."""
    runs = load_runs(folders)
    times = times_to_target(runs)
    page = write_report(folders, out)
    if format is Format.json:
        print(json.dumps({"verdict": verdict(runs), "times_to_target": as_data(times)}, indent=2))
        return
    # A log has no width that names would have to be cut to.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    if times:
        console.print(as_table(times))
    console.print(verdict(runs), soft_wrap=True)
    if page is not None:
        console.print(f"Report: {page}", soft_wrap=True)

"""`tramfl compare`: several methods on the same scenarios and seeds, in parallel."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tramfl.cli.options import (
    AppOption,
    DataDirOption,
    Format,
    FormatOption,
    NoTrainingOption,
    QuietOption,
    SetOption,
    TargetOption,
    limited,
    scenario_of,
    targets_from,
)
from tramfl.cli.progress import GridProgress
from tramfl.cli.report import print_times, write_report
from tramfl.cli.run import ROUNDS_WITHOUT_TRAINING
from tramfl.cli.warn import warn_in_one_line
from tramfl.methods import Method, method_named, policy_method
from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.reporting import as_data, differences, load_runs, times_to_target, verdict
from tramfl.reporting.regimes import Ratios, as_rows, as_svg, regime_table, time_ratios
from tramfl.simulation.api import app_name
from tramfl.simulation.grid import cells, finished, play_all, play_on_ray, seeds_from, variants
from tramfl.simulation.play import Request
from tramfl.simulation.regimes import in_every_regime
from tramfl.simulation.scenarios import DEFAULT

LOG_WIDTH = 200
PAPER_POLICIES = "load-aware,random,time-first,variance-first"

JobsOption = Annotated[int | None, typer.Option(min=1, help="Processes at a time (default: one per core).")]
SeedsOption = Annotated[
    str, typer.Option(metavar="SEEDS", help="How many seeds, from 0 on; or which: 10-19, or 3,7,20-22.")
]
RayOption = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster; 'local' starts one here.")
]


def compare(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO...", help=f"Scenarios or files (default: {DEFAULT}).")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help=f"Policies, by name, with commas between (default: {PAPER_POLICIES}).")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="In place of --policies: names that tramfl methods lists."),
    ] = None,
    seeds: SeedsOption = "3",
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=A,B", help="Vary a key of the scenario, e.g. variance_limit=50,200."),
    ] = None,
    regimes: Annotated[
        bool, typer.Option("--regimes", help="On every kind of load: which policy wins where? See docs/loads.md.")
    ] = False,
    jobs: JobsOption = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop every run after this many rounds.")] = None,
    target: TargetOption = None,
    set_: SetOption = None,
    app: AppOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: runs/compare).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Play again what is there.")] = False,
    no_training: NoTrainingOption = False,
    data_dir: DataDirOption = None,
    ray: RayOption = None,
    format: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Race methods on the same scenarios, seeds and loads: which one reaches the target in the least virtual time?

    Called again, it goes on where it stopped. The page has every run that is in the folder.
    """
    keys = {
        "budget__rounds": rounds,
        "budget__targets": targets_from(target),
        "app": app,
        "name": app_name(app) if app is not None and not scenarios else None,
    }
    raced = _raced(policies, methods)
    wanted = scenarios or [DEFAULT]
    found = [scenario_of(name, set_, method, **keys) for name in wanted for method in raced]
    axes = axes_from(grid or [])
    found = [variant for scenario in found for variant in variants(scenario, axes)] if axes else found
    found = [variant for scenario in found for variant in in_every_regime(scenario)] if regimes else found
    if no_training:
        found = [limited(scenario, ROUNDS_WITHOUT_TRAINING) for scenario in found]
    for key, option in (("seed", "--seeds"), ("policy", "--policies"), ("method", "--methods")):
        for where, assignments in (("--set", set_), ("--grid", grid)):
            if any(assignment.partition("=")[0].strip() == key for assignment in assignments or ()):
                raise BadInput(f"{where} {key}: compare plays several; say which with {option}.")
    if len({(scenario.name, scenario.method_name) for scenario in found}) < len(found):
        raise BadInput("name every scenario once.")
    out = out or Path("runs/compare")
    template = Request(scenario=found[0], train=not no_training, overwrite=overwrite, data_dir=data_dir)
    requests = cells(found, seeds_from(seeds), out, template)
    play_grid(requests, jobs, ray, quiet or format is Format.json)
    folders = [request.out for request in requests if request.out is not None]
    ratios = time_ratios(load_runs(folders), [method.name for method in raced]) if regimes else None
    conclude(folders, out, format, quiet, {} if ratios is None else {"regimes": as_rows(ratios)})
    if ratios is not None:
        draw_regimes(ratios, [method.name for method in raced], out, format)


def _raced(policies: str | None, methods: str | None) -> list[Method]:
    """What is raced, from --policies or --methods."""
    if policies is not None and methods is not None:
        raise BadInput("every policy is a method of its own name: give one of --policies and --methods.")
    given, named = (policies or "", policy_method) if methods is None else (methods, method_named)
    if policies is None and methods is None:
        given = PAPER_POLICIES
    names = [name.strip() for name in given.split(",") if name.strip()]
    if len(set(names)) < len(names) or not names:
        raise BadInput(f"name every {'policy' if methods is None else 'method'} once.")
    return [named(name) for name in names]


def draw_regimes(ratios: Ratios, policies: Sequence[str], out: Path, format: Format) -> None:
    """Draw each policy's time over the first one's on every kind of load, and print it."""
    write_atomically(out / "regimes.svg", as_svg(ratios, policies).encode())
    if format is not Format.json:
        Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else LOG_WIDTH).print(
            regime_table(ratios, policies)
        )
        print(f"Figure: {out / 'regimes.svg'}")


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
        why = "a process that played a run was killed, perhaps because memory ran out"
    if why is not None:
        print(f"tramfl: {why}; the same command, without --overwrite, goes on where it stopped.", file=sys.stderr)
        sys.exit(1)


def axes_from(grid: Sequence[str]) -> dict[str, list[str]]:
    """`key=a,b` as keys and their values; a comma inside brackets or quotes belongs to a value."""
    axes: dict[str, list[str]] = {}
    for assignment in grid:
        key, equals, text = assignment.partition("=")
        values = [value.strip() for value in re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|[^,\[\"])+", text)]
        if not equals or not key.strip() or not any(values) or key.strip() in axes or len(set(values)) < len(values):
            raise BadInput(
                f"--grid {assignment}: write a key once, with different values, for example"
                " --grid training.batch_size=16,32."
            )
        axes[key.strip()] = [value for value in values if value]
    return axes


def conclude(
    folders: list[Path], out: Path, format: Format, quiet: bool, more_data: Mapping[str, object] | None = None
) -> None:
    """Print which policy won, and where to read more; the page has every run in `out`.

    `more_data` is added to what is printed as JSON.
    """
    runs = load_runs(folders)
    page = write_report([out, *folders], out)
    if format is Format.json:
        found = {
            "verdict": verdict(runs),
            "times_to_target": as_data(times_to_target(runs)),
            "times_held": as_data(times_to_target(runs, "held")),
            "differences": as_data(differences(runs)),
            **(more_data or {}),
        }
        print(json.dumps(found, indent=2))
        return
    # A log has no width that names would have to be cut to.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    print_times(console, runs)
    console.print(verdict(runs), soft_wrap=True)
    if page is not None:
        others = len(load_runs([out, *folders])) - len(runs)
        more = f" (with {others} other {'run' if others == 1 else 'runs'} of that folder)" if others else ""
        console.print(f"Report: {page}{more}", soft_wrap=True)

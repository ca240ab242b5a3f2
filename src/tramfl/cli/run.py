"""`tramfl run`: one policy on one scenario."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tramfl.cli.options import (
    DataDirOption,
    Format,
    FormatOption,
    NoTrainingOption,
    QuietOption,
    ScenarioArgument,
    SetOption,
    changed,
    limited,
    scenario_of,
    targets_from,
)
from tramfl.cli.progress import RunProgress
from tramfl.cli.report import write_report
from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import Row, Summary
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.folder import RunFolder
from tramfl.simulation.play import Request, play
from tramfl.simulation.scenarios import DEFAULT
from tramfl.simulation.trackers import follow

ROUNDS_WITHOUT_TRAINING = 200


def run(
    scenario: ScenarioArgument = DEFAULT,
    policy: Annotated[str | None, typer.Option(help="Who decides: load-aware, random, time-first, ...")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same run.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds.")] = None,
    target: Annotated[str | None, typer.Option(help="Test accuracies to reach, e.g. 0.7,0.9.")] = None,
    set_: SetOption = None,
    loads: Annotated[Path | None, typer.Option(help="Replay the loads of a recorded rounds.jsonl.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write [default: runs/SCENARIO-POLICY-SEED].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    no_training: NoTrainingOption = False,
    data_dir: DataDirOption = None,
    threads: Annotated[int, typer.Option(min=1, help="Cores to train on; the record depends on it.")] = 1,
    track: Annotated[list[str] | None, typer.Option(help="Also write to tensorboard or mlflow.")] = None,
    format: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Train one model across the nodes of a scenario, in virtual time, and keep a record of every round."""
    keys = {
        "policy": policy,
        "seed": seed,
        "budget__rounds": rounds,
        "budget__targets": targets_from(target),
        "loads__kind": "replay" if loads else None,
        "loads__trace": str(loads) if loads else None,
    }
    if resume:
        wanted, out = _resumed(scenario, out, set_, keys)
    else:
        wanted = scenario_of(scenario, set_, **keys)
        wanted = limited(wanted, ROUNDS_WITHOUT_TRAINING) if no_training else wanted
        out = out or default_folder(wanted)
    request = Request(
        scenario=wanted,
        out=out,
        train=not no_training,
        resume=resume,
        overwrite=overwrite,
        data_dir=data_dir,
        threads=threads,
    )
    summary = _play(request, track or [], quiet or format is Format.json)
    if format is Format.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        _print(summary, out, quiet)
    if summary.status != "finished":
        sys.exit(1)


def default_folder(scenario: Scenario) -> Path:
    """Where a run goes if nobody says otherwise."""
    return Path("runs") / f"{scenario.name}-{scenario.policy}-{scenario.seed}"


def _resumed(
    scenario: str, out: Path | None, sets: list[str] | None, keys: Mapping[str, object]
) -> tuple[Scenario, Path]:
    """The scenario in the folder, with another budget if that is asked for."""
    if out is None:
        named = scenario_of(scenario, None, policy=keys["policy"], seed=keys["seed"])
        out = default_folder(named)
    before = RunFolder(out).scenario()
    after = changed(before, str(out), sets, **keys)
    if msgspec.structs.replace(after, budget=before.budget) != before:
        raise BadInput(f"{out}: a run can be resumed with another budget, and with nothing else changed.")
    return after, out


def _play(request: Request, trackers: list[str], quiet: bool) -> Summary:
    progress = RunProgress(Console(stderr=True), quiet)
    with follow(trackers, request) as track, progress.shown():

        def observe(experiment: Experiment, row: Row) -> None:
            progress(experiment, row)
            track(row)

        return play(request, observe, report=progress.downloaded).summary()


def _print(summary: Summary, out: Path, quiet: bool) -> None:
    console = Console(highlight=False)
    total = f"{summary.total_seconds:,.2f} s of virtual time"
    console.print(
        f"{summary.scenario}, {summary.policy}, seed {summary.seed}: {summary.rounds:,} rounds"
        f" ({summary.skipped_rounds:,} skipped), {summary.samples:,} samples in {total}."
    )
    for target, seconds in summary.seconds_to_target.items():
        if summary.test_accuracy is not None:
            reached = f"after {seconds:,.2f} s" if seconds is not None else "not reached"
            console.print(f"  accuracy {float(target):.0%}: {reached}")
    if summary.status != "finished":
        console.print(f"Interrupted; go on with: tramfl run --resume --out {out}")
    if not quiet:
        page = write_report([out], out)
        console.print(f"Record in {out}{f', report: {page}' if page else ''}", soft_wrap=True)

"""`tramfl run`: one method on one scenario."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tramfl.cli.options import (
    AppOption,
    DataDirOption,
    Format,
    FormatOption,
    NoTrainingOption,
    PolicyOption,
    QuietOption,
    RoundsOption,
    ScenarioArgument,
    SetOption,
    TargetOption,
    changed,
    limited,
    method_of,
    scenario_of,
    targets_from,
)
from tramfl.cli.progress import RunProgress
from tramfl.cli.report import write_report
from tramfl.config import Scenario
from tramfl.methods import Method
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, Resolved, Row, RunFolder, Summary
from tramfl.reporting.measures import Measure, percent
from tramfl.reporting.summary import reached_text, regret_text, rounds_text, seconds
from tramfl.simulation.api import app_name
from tramfl.simulation.experiment import Playing
from tramfl.simulation.play import Request, play
from tramfl.simulation.resuming import default_folder, played_before, scenario_to_resume
from tramfl.simulation.scenarios import DEFAULT
from tramfl.simulation.trackers import follow

ROUNDS_WITHOUT_TRAINING = 200


def run(
    scenario: ScenarioArgument = None,
    policy: PolicyOption = None,
    method: Annotated[
        str | None, typer.Option(help="A policy, or another name that tramfl methods lists, with all its settings.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same run.")] = None,
    rounds: RoundsOption = None,
    target: TargetOption = None,
    set_: SetOption = None,
    app: AppOption = None,
    loads: Annotated[Path | None, typer.Option(help="Replay the loads of a recorded rounds.jsonl.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: runs/SCENARIO-METHOD-SEED).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, or start it.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    no_training: NoTrainingOption = False,
    data_dir: DataDirOption = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores to train on; the last digits depend on it (default: 1).")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Where every node keeps a model: processes that train nodes side by side.")
    ] = 1,
    track: Annotated[list[str] | None, typer.Option(help="Also write to tensorboard, mlflow or wandb.")] = None,
    format: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Train one model across the nodes of a scenario, in virtual time, and keep a record of every round."""
    keys = {
        "seed": seed,
        "budget__rounds": rounds,
        "budget__targets": targets_from(target),
        "loads__kind": "replay" if loads else None,
        "loads__trace": str(loads) if loads else None,
        "app": app,
        "name": app_name(app) if app is not None and scenario is None else None,
    }
    chosen = method_of(policy, method)
    if resume and overwrite:
        raise BadInput("--resume goes on with the run in the folder and --overwrite replaces it: give one of them.")
    if resume:
        wanted, out, before = _resumed(scenario, out, set_, chosen, keys)
    else:
        given = [kind for kind, thing in (("policy", chosen), ("loads", loads), ("app", app)) if thing is not None]
        before = played_before(scenario, given)
        wanted = scenario_of(scenario or DEFAULT, set_, chosen, **keys)
        out = out or default_folder(wanted)
    again = Path(scenario).parent if scenario and Path(scenario).name == CONFIG_FILE else None
    train = not no_training and before.trained is not False
    if not train and not RunFolder(out).holds_run:
        wanted = limited(wanted, ROUNDS_WITHOUT_TRAINING)
    request = Request(
        scenario=wanted,
        out=out,
        train=train,
        resume=resume,
        overwrite=overwrite,
        data_dir=data_dir,
        threads=threads or before.threads or 1,
        processes=processes,
        again=again,
        keep_rows=False,
    )
    summary = _play(request, track or [], quiet or format is Format.json)
    page = write_report([out], out) if summary.rounds else None
    if format is Format.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        _print(summary, Measure.of(wanted.budget))
        if not quiet:
            print(f"Record in {out}{f', report: {page}' if page else ''}")
    if summary.stopped_because:
        print(f"tramfl: the run was stopped: {summary.stopped_because}", file=sys.stderr)
        sys.exit(1)
    if summary.status != "finished":
        places = ["--out", str(out), *(["--data-dir", str(data_dir)] if data_dir else [])]
        print(f"tramfl: interrupted; go on with: tramfl run --resume {shlex.join(places)}", file=sys.stderr)
        sys.exit(1)


def _resumed(
    scenario: str | None, out: Path | None, sets: list[str] | None, method: Method | None, keys: Mapping[str, object]
) -> tuple[Scenario, Path, Resolved]:
    """The scenario in the folder, with another budget if that is asked for, and how it is played."""
    if out is None:
        named = {key: keys[key] for key in ("seed", "name")}
        out = default_folder(scenario_of(scenario or DEFAULT, None, method, **named))
    folder = RunFolder(out)
    if not folder.holds_run:  # nothing to go on with yet: the same command starts it
        return scenario_of(scenario or DEFAULT, sets, method, **keys), out, played_before(scenario)
    keys = {**keys, "name": None}  # the run has its name
    return changed(scenario_to_resume(folder, scenario, method), str(out), sets, **keys), out, folder.resolved()


def _play(request: Request, followers: list[str], quiet: bool) -> Summary:
    progress = RunProgress(Console(stderr=True), quiet)
    with follow(followers, request) as trackers, progress.shown():

        def observe(experiment: Playing, row: Row) -> None:
            progress(experiment, row)
            trackers.track(row)

        summary = play(request, observe, report=progress.downloaded).summary()
        trackers.end(summary.status)
        return summary


def _print(summary: Summary, measure: Measure) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{summary.scenario}, {summary.policy}, seed {summary.seed}: {rounds_text(summary.rounds)}"
        f" ({summary.skipped_rounds:,} skipped), {summary.samples:,} samples in {seconds(summary.total_seconds)} s of"
        " virtual time."
    )
    if summary.regret:
        console.print(f"  regret: {regret_text(summary.regret)}")
    for target in summary.seconds_to_target:
        if summary.test_accuracy is not None or not measure.is_accuracy:
            name = f"accuracy {percent(float(target))}" if measure.is_accuracy else measure.target(float(target))
            console.print(f"  {name}: {reached_text(summary, target)}")
    if summary.divergence:
        console.print(f"  {summary.divergence}")

"""`tramfl pull`: fetch the newest safe model of a federation, and the record of its rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace
from rich.console import Console

from tramfl.cli.federations import FEDERATION_FILE, FederationArgument, InsecureOption, operator, run
from tramfl.cli.options import Format, FormatOption
from tramfl.cli.report import write_report
from tramfl.config import Cost, Scenario
from tramfl.notation import BadInput, ModelCost
from tramfl.record import MODEL_FILE, Resolved, Row, RunFolder, Summary, summary_of

if TYPE_CHECKING:
    from tramfl.runtime.operator.operating import FederationStatus, Operator


def pull(
    file: FederationArgument = FEDERATION_FILE,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: runs/RUN).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run in the folder.")] = False,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Fetch the newest safe model, and every round's record, from whichever sites have them."""

    async def work() -> tuple[FederationStatus, Path, Summary]:
        async with operator(file, insecure) as hand:
            status = await hand.status()
            if not status.answering:
                raise BadInput(f"no site of {status.federation!r} answers; see tramfl status.")
            if status.record is None:
                raise BadInput(f"no run has begun in {status.federation!r}: there is no model to fetch.")
            folder = out or Path("runs") / status.record.run
            with RunFolder(folder).alone():
                if not overwrite:
                    _check_same_run(RunFolder(folder), status.record.run)
                status, summary = await collect(hand, folder)
            return status, folder, summary

    status, folder, summary = run(work)
    record, model = status.record, status.model
    assert record is not None
    assert model is not None
    if summary.rounds:
        write_report([folder], folder)
    told = {"folder": str(folder), "run": record.run, "safe_round": model.round, "rounds": summary.rounds}
    if format is Format.json:
        print(json.dumps({**told, "digest": model.digest}, indent=2))
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(
            f"{folder}: the model of {record.run} after round {model.round:,}, and {summary.rounds:,} rounds."
        )


async def collect(hand: Operator, folder: Path) -> tuple[FederationStatus, Summary]:
    """Write a run's folder as a simulation would leave it, in place of whatever run is there.

    The folder is there already, and nobody else writes to it (`RunFolder.alone`).
    """
    status = await hand.fetch(folder / MODEL_FILE, lambda _: None)
    rows = await hand.rows(status)
    return status, write_run(RunFolder(folder), hand.federation.file.run, status, rows)


def _check_same_run(folder: RunFolder, run: str) -> None:
    """An earlier pull of the same run is brought up to date; any other run, one without a name included, is kept."""
    if not folder.holds_run:
        return
    before = folder.resolved()
    if before.clock != "real" or before.run != run:
        held = f"a run, {before.run!r}," if before.run is not None else "a run"
        raise BadInput(
            f"{folder.path} already holds {held} and this one is {run!r}; add --overwrite to replace it,"
            " or --out for another folder."
        )


def write_run(folder: RunFolder, scenario: Scenario, status: FederationStatus, rows: list[Row]) -> Summary:
    """config.toml, rounds.jsonl and summary.json of a real run."""
    reports = [site.report for site in status.sites]
    told = next((r for r in reports if r is not None and r.cost is not None), None)
    if told is None or told.cost is None:
        raise BadInput("no site says what its model costs; see tramfl status.")
    cost: ModelCost = told.cost
    # What a replay in simulation must charge: the real model's cost.
    charged = replace(scenario, cost=Cost(flops_per_sample=cost.flops_per_sample, model_bits=cost.model_bits))
    record = status.record
    resolved = Resolved(
        trained=True,
        clock="real",
        sites=tuple(site.site for site in status.sites),
        run=record.run if record is not None else None,
        labels=told.labels,
        held=tuple(r.held if r is not None else (0,) * len(told.held) for r in reports),
        cost=cost,
    )
    folder.describe(charged, resolved)
    folder.keep(rows)
    finished = record is not None and record.status == "stopped"
    summary = summary_of(charged, rows, cost, finished=finished)
    folder.conclude(summary)
    return summary

"""`tramfl pull`: fetch the newest safe model of a federation, and the record of its rounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tramfl.cli.federations import FEDERATION_FILE, FederationArgument, InsecureOption, operator, run
from tramfl.cli.options import Format, FormatOption
from tramfl.cli.report import write_report
from tramfl.config import ReadOut
from tramfl.record import Summary

if TYPE_CHECKING:
    from tramfl.runtime.operator.federation_status import FederationStatus


def pull(
    file: FederationArgument = FEDERATION_FILE,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: runs/RUN).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run in the folder.")] = False,
    readout: Annotated[
        ReadOut | None,
        typer.Option(help="What is delivered (default: what the run tests): the newest weights, or their mean."),
    ] = None,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Fetch the newest safe model, and every round's record, from whichever sites have them."""

    async def work() -> tuple[FederationStatus, Path, Summary, list[str]]:
        async with operator(file, insecure) as hand:
            from tramfl.runtime.operator import collecting

            found = await collecting.pull(hand, out, overwrite=overwrite, readout=readout)
            return *found, [*hand.bad_rows, *hand.unread_trails]

    status, folder, summary, lacking = run(work)
    for sentence in lacking:
        print(f"tramfl: {sentence}", file=sys.stderr)
    record, model = status.record, status.model
    assert record is not None
    assert model is not None
    if summary.rounds:
        write_report([folder], folder)
    result = {"folder": str(folder), "run": record.run, "safe_round": model.round, "rounds": summary.rounds}
    if format is Format.json:
        print(json.dumps({**result, "digest": model.digest}, indent=2))
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(
            f"{folder}: the model of {record.run} after round {model.round:,}, and {summary.rounds:,} rounds."
        )

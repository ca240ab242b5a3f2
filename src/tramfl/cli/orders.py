"""`tramfl start`, `pause`, `resume` and `stop`: act on the run of a federation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from tramfl.cli.federations import FEDERATION_FILE, FederationArgument, InsecureOption, operator, run
from tramfl.cli.options import Format, FormatOption

NEW = "Start a new run even though the last one has ended; only its weights are kept."


def start(
    file: FederationArgument = FEDERATION_FILE,
    name: Annotated[str | None, typer.Option(help="The run's name (default: the scenario's and the time).")] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help=NEW),
    ] = False,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Start a run: every site writes the first weights, and the model starts to travel."""
    _order(file, "start", insecure, format, name=name, replacing=new)


def pause(
    file: FederationArgument = FEDERATION_FILE, insecure: InsecureOption = False, format: FormatOption = Format.text
) -> None:
    """Pause the run after the round under way; the model stays where it is."""
    _order(file, "pause", insecure, format)


def resume(
    file: FederationArgument = FEDERATION_FILE, insecure: InsecureOption = False, format: FormatOption = Format.text
) -> None:
    """Resume a paused run."""
    _order(file, "resume", insecure, format)


def stop(
    file: FederationArgument = FEDERATION_FILE, insecure: InsecureOption = False, format: FormatOption = Format.text
) -> None:
    """End the run for good; its model stays at the sites until the run after the next."""
    _order(file, "stop", insecure, format)


def _order(
    file: Path, what: str, insecure: bool, format_: Format, *, name: str | None = None, replacing: bool = False
) -> None:
    async def work() -> str:
        from tramfl.runtime.wire import Order

        async with operator(file, insecure) as hand:
            run_name = ""
            if what == "start":
                scenario = hand.federation.file.run.name
                run_name = name or f"{scenario}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
            return await hand.order(Order(what, run_name, replacing))  # type: ignore[arg-type]

    message = run(work)
    print(json.dumps({"done": True, "message": message}) if format_ is Format.json else message)

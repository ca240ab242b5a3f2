"""`tramfl start`, `pause`, `resume`, `stop`, `repair` and `rollback`: act on the run of a federation."""

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
    min_sites: Annotated[
        int, typer.Option("--min-sites", min=1, help="Start only if at least this many sites are ready.")
    ] = 1,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Start a run: every site writes the first weights, and the model starts to travel."""
    _order(file, "start", insecure, format, name=name, replacing=new, least=min_sites)


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


def repair(
    file: FederationArgument = FEDERATION_FILE, insecure: InsecureOption = False, format: FormatOption = Format.text
) -> None:
    """Put the last good record back where the register holds one that cannot be right."""

    async def work() -> str:
        async with operator(file, insecure) as hand:
            return await hand.repair()

    _print(run(work), format)


def rollback(
    file: FederationArgument,
    round: Annotated[int, typer.Argument(metavar="ROUND", min=0, help="The round to go back to; status lists them.")],
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Take a paused or stopped run back to a kept version; later rounds stay in the audit trail alone."""

    async def work() -> str:
        from tramfl.runtime.wire import Order

        async with operator(file, insecure) as hand:
            return await hand.order(Order("rollback", round=round))

    _print(run(work), format)


def _order(
    file: Path,
    what: str,
    insecure: bool,
    format_: Format,
    *,
    name: str | None = None,
    replacing: bool = False,
    least: int = 0,
) -> None:
    async def work() -> str:
        from tramfl.runtime.wire import Order

        async with operator(file, insecure) as hand:
            run_name = ""
            if what == "start":
                scenario = hand.federation.file.run.name
                run_name = name or f"{scenario}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
            return await hand.order(Order(what, run_name, replacing, least))  # type: ignore[arg-type]

    _print(run(work), format_)


def _print(message: str, format_: Format) -> None:
    print(json.dumps({"done": True, "message": message}) if format_ is Format.json else message)


SiteArgument = Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")]


def drain(
    site: SiteArgument,
    file: FederationArgument = FEDERATION_FILE,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Take a site out of all further rounds, until undrain: it finishes the round in hand and hands the model on."""
    _order_site(file, site, "drain", insecure, format)


def undrain(
    site: SiteArgument,
    file: FederationArgument = FEDERATION_FILE,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Let a drained site take part again."""
    _order_site(file, site, "undrain", insecure, format)


def _order_site(file: Path, site: str, what: str, insecure: bool, format_: Format) -> None:
    async def work() -> str:
        from tramfl.runtime.wire import Order

        async with operator(file, insecure) as hand:
            return await hand.order_site(site, Order(what))  # type: ignore[arg-type]

    message = run(work)
    print(json.dumps({"done": True, "message": message}) if format_ is Format.json else message)

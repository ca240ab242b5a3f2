"""`tramfl status`: the record, the sites and what each does, and how well times were predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tramfl.cli.federations import FEDERATION_FILE, FederationArgument, InsecureOption, operator, run
from tramfl.cli.options import Format, FormatOption
from tramfl.notation import BadInput
from tramfl.reporting.measures import Measure

if TYPE_CHECKING:
    from tramfl.runtime.operator.operating import FederationStatus, RoundTimes, SiteStatus


def status(
    file: FederationArgument = FEDERATION_FILE,
    rounds: Annotated[int, typer.Option(min=0, help="Show this many of the last rounds.")] = 5,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Show how a federation is doing."""

    async def work() -> tuple[FederationStatus, list[RoundTimes], str | None, Measure]:
        async with operator(file, insecure) as hand:
            found, measure = await hand.status(), Measure.of(hand.federation.file.run.budget)
            try:
                return found, await hand.last_rounds(found, rounds), None, measure
            except BadInput as error:  # the rest of the status matters most while the register is silent
                return found, [], str(error), measure

    found, times, unread, measure = run(work)
    if format is Format.json:
        whole = {"status": found, "last_rounds": times, "last_rounds_unread": unread}
        whole["mixed_versions"] = found.mixed_versions
        print(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
    else:
        print_status(found, times, unread, measure)
    if not found.answering:
        raise typer.Exit(1)


def print_status(
    found: FederationStatus, times: Sequence[RoundTimes], unread: str | None, measure: Measure = Measure()
) -> None:
    """Print the record, a table of the sites and the last rounds."""
    console = Console(highlight=False)
    record = found.record
    if not found.answering:
        console.print(f"{found.federation}: no site answers.")
    elif record is None:
        console.print(f"{found.federation}: no run has begun.")
    else:
        holder = found.name_of(record.holder) if record.holder is not None else "nobody"
        copies = ", ".join(map(found.name_of, record.safe.copies))
        console.print(
            f"{found.federation}: run {record.run} is {record.status}; round {record.round:,}, epoch {record.epoch},"
            f" the model is at {holder}."
        )
        console.print(
            f"Safe: round {record.safe.round:,} at {copies}. Samples: {record.ledger.samples:,}; labels ±"
            f" {math.sqrt(record.ledger.label_variance):,.1f}."
        )
    table = Table("site", "address", "alive", "doing", "can spare", "holds")
    for site in found.sites:
        table.add_row(*_cells(site))
    console.print(table)
    if (differ := found.mixed_versions) is not None:
        console.print(differ, markup=False, soft_wrap=True)
    if unread is not None:
        console.print(f"The rounds cannot be read at the moment: {unread}", markup=False, soft_wrap=True)
    if times:
        table = Table("round", "trained at", "predicted s", "actual s", measure.name)
        for one in times:
            tested = "" if one.measured is None else measure.brief(one.measured).removeprefix(f"{measure.name} ")
            tested = f"{tested} diverged".strip() if one.diverged else tested
            table.add_row(
                f"{one.round:,}",
                one.node or "-",
                f"{one.predicted_seconds:.3f}",
                f"{one.actual_seconds:.3f}",
                tested,
            )
        console.print(table)


def _cells(site: SiteStatus) -> tuple[str, ...]:
    report = site.report
    if report is None:
        return site.site, site.address, "yes" if site.alive else "no", f"no answer: {_short(site.why_not)}", "", ""
    doing = report.doing + (f" {report.progress:.0%}" if report.progress is not None else "")
    spare = f"{(report.flops or 0) / 1e9:,.2f} GFLOPS"
    return site.site, site.address, "yes" if site.alive else "no", doing, spare, f"{sum(report.held):,} samples"


def _short(reason: str | None) -> str:
    """The last part of gRPC's message is the cause."""
    return (reason or "").rpartition(": ")[2] or "?"

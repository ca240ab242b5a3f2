"""`tramfl status`: the record, who is alive, what everybody does, and how well times were predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from tramfl.cli.federations import FEDERATION_FILE, FederationArgument, InsecureOption, operator, run
from tramfl.cli.options import Format, FormatOption
from tramfl.notation import BadInput
from tramfl.record import Row

if TYPE_CHECKING:
    from tramfl.runtime.operator.operating import FederationStatus, SiteStatus


class Times(Struct, frozen=True):
    """What a round was predicted to take, and took."""

    round: int
    node: str | None
    predicted_seconds: float
    actual_seconds: float
    test_accuracy: float | None


def status(
    file: FederationArgument = FEDERATION_FILE,
    rounds: Annotated[int, typer.Option(min=0, help="Show so many of the last rounds.")] = 5,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Show how a federation is doing."""

    async def work() -> tuple[FederationStatus, list[Row], str | None]:
        async with operator(file, insecure) as hand:
            found = await hand.status()
            last = found.record.round if found.record is not None else 0
            try:
                return found, await hand.rows(found, max(1, last - rounds + 1)) if rounds and last else [], None
            except BadInput as error:  # a register that is silent is when one most wants to see the rest
                return found, [], str(error)

    found, rows, unread = run(work)
    times = [times_of(row, found) for row in rows]
    if format is Format.json:
        whole = {"status": found, "last_rounds": times, "last_rounds_unread": unread}
        print(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
    else:
        _print(found, times, unread)
    if not found.answering:
        raise typer.Exit(1)


def times_of(row: Row, found: FederationStatus) -> Times:
    """A row's predicted and actual seconds."""
    actual = row.compute_seconds + row.transfer_seconds + row.idle_seconds
    node = found.name_of(row.node) if row.node is not None else None
    return Times(row.round, node, row.decision.predicted_seconds, actual, row.test_accuracy)


def _print(found: FederationStatus, times: Sequence[Times], unread: str | None) -> None:
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
    if unread is not None:
        console.print(f"The rounds cannot be read at the moment: {unread}", markup=False, soft_wrap=True)
    if times:
        table = Table("round", "trained at", "predicted s", "actual s", "accuracy")
        for one in times:
            accuracy = f"{one.test_accuracy:.1%}" if one.test_accuracy is not None else ""
            table.add_row(
                f"{one.round:,}",
                one.node or "-",
                f"{one.predicted_seconds:.3f}",
                f"{one.actual_seconds:.3f}",
                accuracy,
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
    """The end of gRPC's long stories is what happened."""
    return (reason or "").rpartition(": ")[2] or "?"

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
    from tramfl.runtime.operator.federation_status import FederationStatus, RoundTimes, SiteStatus

UNSIGNED = "The sites have no certificates: every process of this machine is trusted, and no record or row is signed."


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
    _print_silence(console, found)
    if not found.answering:
        console.print(f"{found.federation}: no site answers.")
    elif found.disagreement is not None:
        console.print(found.disagreement, markup=False, soft_wrap=True)
    elif record is None:
        console.print(f"{found.federation}: no run has begun.")
    else:
        holder = found.name_of(record.holder) if record.holder is not None else "nobody"
        copies = ", ".join(map(found.name_of, record.safe.copies))
        console.print(
            f"{found.federation}: run {record.run} is {record.status}; round {record.round:,}, epoch {record.epoch},"
            f" the model is at {holder}.",
            soft_wrap=True,
        )
        console.print(
            f"Safe: round {record.safe.round:,} at {copies}. Samples: {record.ledger.samples:,}; labels ±"
            f" {math.sqrt(record.ledger.label_variance):,.1f}.",
            soft_wrap=True,
        )
        if record.versions:
            rounds = ", ".join(f"{version.round:,}" for version in record.versions)
            console.print(f"Kept to go back to (tramfl rollback): round {rounds}.")
    table = Table("site", "address", "alive", "doing", "can spare", "holds")
    for site in filter(lambda site: site.member, found.sites):
        table.add_row(*_cells(site))
    console.print(table)
    _print_rejections(console, found)
    _print_oddities(console, found)
    if (differ := found.mixed_versions) is not None:
        console.print(differ, markup=False, soft_wrap=True)
    if unread is not None:
        console.print(f"The rounds cannot be read at the moment: {unread}", markup=False, soft_wrap=True)
    if times:
        table = Table("round", "trained at", "predicted s", "actual s", "overhead s", measure.name)
        for one in times:
            tested = "" if one.measured is None else measure.brief(one.measured).removeprefix(f"{measure.name} ")
            tested = f"{tested} diverged".strip() if one.diverged else tested
            if one.rejected:
                tested = f"{tested} not accepted at {', '.join(one.rejected)}".strip()
            table.add_row(
                f"{one.round:,}",
                one.node or "-",
                f"{one.predicted_seconds:.3f}",
                f"{one.actual_seconds:.3f}",
                f"{one.overhead_seconds:.3f}",
                tested,
            )
        console.print(table)


def _print_silence(console: Console, found: FederationStatus) -> None:
    if (silence := found.silence) is not None:
        sentence = (
            f"{found.federation}: the register answers no site ({silence}), so no round is committed until it does."
            " With etcd, start members until most of them run. What follows is the last that was seen."
        )
        console.print(sentence, markup=False, soft_wrap=True)


def _print_rejections(console: Console, found: FederationStatus) -> None:
    for site in found.sites:
        if site.report is not None and site.report.rejected:
            sentence = f"{site.site} did not accept weights, last because {site.report.rejected}."
            console.print(sentence, markup=False, soft_wrap=True)


def _print_oddities(console: Console, found: FederationStatus) -> None:
    """Sites that are left out, were started at two places or have a revoked certificate; weights that no site has."""
    for site in found.sites:
        for name, until in (site.report.left_out if site.report is not None else {}).items():
            console.print(f"{site.site} leaves {name} out until round {until:,} at least: it failed.", markup=False)
    unsigned = (UNSIGNED,) if found.unsigned else ()
    if (missing := found.missing_weights) is not None:
        console.print(missing, markup=False, soft_wrap=True)
    for sentence in (*found.twins, *found.revocations, *unsigned):
        console.print(sentence, markup=False, soft_wrap=True)


def _cells(site: SiteStatus) -> tuple[str, ...]:
    report = site.report
    if report is None:
        return site.site, site.address, "yes" if site.alive else "no", f"no answer: {_short(site.why_not)}", "", ""
    doing = report.doing + (f" {report.progress:.0%}" if report.progress is not None else "")
    if report.away:
        doing = f"{doing}; {report.away}"
    spare = f"{(report.flops or 0) / 1e9:,.2f} GFLOPS"
    return site.site, site.address, "yes" if site.alive else "no", doing, spare, f"{sum(report.held):,} samples"


def _short(reason: str | None) -> str:
    """The last part of gRPC's message is the cause."""
    return (reason or "").rpartition(": ")[2] or "?"

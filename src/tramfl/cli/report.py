"""`tramfl report` and `tramfl figures`: the page, and the paper's figures, of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tramfl.notation import BadInput
from tramfl.reporting import (
    Run,
    as_table,
    differences,
    differences_table,
    load_runs,
    times_to_target,
    verdict,
    write_figures,
    write_page,
)
from tramfl.reporting.merging import merge_runs
from tramfl.reporting.runs import doubts
from tramfl.reporting.summary import seeds_text

Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or folders with runs inside.")
]


class FigureFormat(StrEnum):
    """File formats of figures."""

    pdf = "pdf"
    png = "png"
    svg = "svg"


def report(
    folders: Folders,
    out: Annotated[
        Path | None, typer.Option(help="The page to write (default: report.html in the first folder).")
    ] = None,
) -> None:
    """Write one self-contained page about runs, to open in a browser, with or without internet."""
    runs = load_runs(folders)
    page = write_page(runs, out or folders[0] / "report.html")
    console = Console(highlight=False, markup=False)
    if len(runs) > 1:
        print_times(console, runs)
    console.print(verdict(runs), soft_wrap=True)
    console.print(f"Report: {page}", soft_wrap=True)


def figures(
    folders: Folders,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures (default: figures in the first folder).")
    ] = None,
    format: Annotated[FigureFormat, typer.Option(help="File format.")] = FigureFormat.pdf,
) -> None:
    """Draw the paper's figures of runs, ready for a paper."""
    for path in write_figures(load_runs(folders), out or folders[0] / "figures", format.value):
        print(path)


def merge(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="The folder to gather the runs in.")],
) -> None:
    """Gather the runs of several machines in one folder, and report on all of them."""
    added, kept = merge_runs(folders, out)
    page = write_report([out], out)
    console = Console(highlight=False, markup=False)
    runs = load_runs([out])
    print_times(console, runs)
    console.print(verdict(runs), soft_wrap=True)
    console.print(f"{added} runs added to {out}, {kept} were there; report: {page}", soft_wrap=True)


def write_report(folders: list[Path], out: Path) -> Path | None:
    """The page at the end of a run, where its extra is installed."""
    try:
        return write_page(load_runs(folders), out / "report.html")
    except BadInput as error:
        if "tramfl[dashboard]" not in str(error):
            raise
        return None


def print_times(console: Console, runs: Sequence[Run]) -> None:
    """The tables of a comparison: first reached, held where it was asked for, and differences on equal seeds."""
    first, held, apart = times_to_target(runs), times_to_target(runs, "held"), differences(runs)
    for times in (first, held):
        if times:
            console.print(as_table(times))
    if held:
        what = "accuracy" if all(run.measure.is_accuracy for run in runs) else "target"
        console.print(
            f"Reach: a test is at the {what} for the first time. Hold: the mean of the last tests (budget.held_for)"
            f" is at the {what} and stays there to the end.",
            soft_wrap=True,
        )
    if any(difference.interval is not None for difference in apart):
        console.print(differences_table(apart))
    if any(time.interval is not None for time in first):
        console.print(
            f"Means over {seeds_text(first)} ± half of the 95 % confidence interval (Student's t).", soft_wrap=True
        )
    for note in doubts(runs):
        console.print(f"Note: {note}", soft_wrap=True)

"""`tramfl report` and `tramfl figures`: the page, and the paper's figures, of finished runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tramfl.notation import BadInput
from tramfl.reporting import load_runs, verdict, write_figures, write_page

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


def write_report(folders: list[Path], out: Path) -> Path | None:
    """The page at the end of a run, where its extra is installed."""
    try:
        return write_page(load_runs(folders), out / "report.html")
    except BadInput as error:
        if "tramfl[dashboard]" not in str(error):
            raise
        return None

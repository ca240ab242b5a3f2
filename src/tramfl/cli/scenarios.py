"""`tramfl scenarios`: the presets, and one of them as TOML to copy and change."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tramfl.cli.options import DataDirOption
from tramfl.config import as_toml
from tramfl.learning.data.partition import LABEL_COUNTS, held_counts, label_rows
from tramfl.reporting.measures import Measure
from tramfl.simulation.scenarios import DEFAULT, scenario_from, scenario_named, scenario_names
from tramfl.simulation.setting import held_by_nodes

app = typer.Typer(help="List the scenarios that have a name, or show one as TOML.", invoke_without_command=True)


@app.callback()
def listing(context: typer.Context) -> None:
    """List the scenarios that have a name."""
    if context.invoked_subcommand is not None:
        return
    table = Table("scenario", "nodes", "labels a node", "targets", "V")
    for name in scenario_names():
        scenario = scenario_named(name)
        held = held_counts(LABEL_COUNTS[scenario.dataset], scenario.partition)
        labels = ", ".join(str(int((row > 0).sum())) for row in held)
        targets = ", ".join(Measure.of(scenario.budget).target(target) for target in scenario.budget.targets)
        shown = f"{name} (default)" if name == DEFAULT else name
        table.add_row(shown, str(len(held)), labels, targets, f"{scenario.variance_limit:g}")
    Console().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="A scenario's name, or a .toml file.")]) -> None:
    """Print a scenario as TOML, to copy and change."""
    print(as_toml(scenario_from(name)), end="")


@app.command()
def layout(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A scenario's name, or a .toml file.")],
    data_dir: DataDirOption = None,
) -> None:
    """Show how many training samples of each label each node holds."""
    heading, *rows = label_rows(*held_by_nodes(scenario_from(name), data_dir))
    table = Table(box=None, pad_edge=False)
    for label in heading:
        table.add_column(label, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)

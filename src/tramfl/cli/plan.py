"""`tramfl plan FILE.toml`: one decision, explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tramfl.cli.options import Format, FormatOption
from tramfl.notation import Decision, NodeId
from tramfl.simulation.planning import Plan, decide, read_plan, reason_of


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="A state, such as examples/plan.toml.")],
    format: FormatOption = Format.text,
) -> None:
    """Decide one round for a state given in a file, and give the reason."""
    state = read_plan(file)
    decision = decide(state)
    if format is Format.json:
        named = replace(decision, reason=reason_of(state, decision))
        print(msgspec.json.format(msgspec.json.encode(named), indent=2).decode())
    else:
        _print(state, decision)


def _print(state: Plan, decision: Decision) -> None:
    title = f"Round {state.round + 1}, decided by {escape(decision.policy)}; times in seconds"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    table.add_column("#", justify="right")
    table.add_column("node", overflow="fold")
    for heading in ("S*", "T_comp", "T_comm", "O3(S*)", "O3(0)", "variance"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for c in decision.candidates:
        chosen = c.node == decision.node
        table.add_row(
            str(c.node),
            _name(state, c.node),
            f"{c.samples:,}",
            f"{c.compute_seconds:.3g}",
            f"{c.transfer_seconds:.3g}",
            f"{c.score:.5g}",
            f"{c.score_of_waiting:.5g}",
            f"{c.label_variance:,.5g}",
            "chosen" if chosen else "" if c.feasible else "above V",
            style="bold green" if chosen else None,
        )
    for number, node in enumerate(state.nodes):
        if node.flops is None:
            table.add_row(str(number), _name(state, number), *[""] * 6, "no report", style="dim")
    console = Console(highlight=False)
    console.print(table)
    console.print(reason_of(state, decision), markup=False)
    if decision.node is not None:
        console.print(f"Samples of each label: {', '.join(map(str, decision.samples))}.")


def _name(state: Plan, node: NodeId) -> str:
    return escape(state.called(node)) + (" (holder)" if node == state.holder else "")

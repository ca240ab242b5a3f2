"""`tramfl plan FILE.toml`: one decision, explained."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from msgspec import Meta, Struct
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tramfl.cli.options import Format, FormatOption
from tramfl.config import NotNegative, Positive, read_toml, settings_from
from tramfl.draws import deciding
from tramfl.notation import PAPER_VARIANCE_LIMIT, BadInput, Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import PolicySettings, check_decision, policy_named

Count = Annotated[int, Meta(ge=0, le=2**40)]


class PlanNode(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node in a plan; one without flops did not report."""

    name: str | None = None
    """What the table calls the node."""
    held: tuple[Count, ...]
    """Training samples of each label that the node holds."""
    flops: Positive | None = None
    """FLOPS that the node can spare; a node without it did not report."""
    bandwidth: Positive | None = None
    """From the holder to this node, bit/s; the holder's own needs none."""


class PlanCost(Struct, frozen=True, forbid_unknown_fields=True):
    """M and D_M."""

    flops_per_sample: Positive
    """M: FLOPs of forward and backward for one sample."""
    model_bits: Positive
    """D_M: bits of a model on its way."""


class Plan(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state a decision is made from."""

    holder: Count
    """The number of the node that has the model now; nodes are numbered from 0."""
    used: tuple[Count, ...]
    """Samples of each label used so far."""
    cost: PlanCost
    nodes: tuple[PlanNode, ...]
    policy: str = "load-aware"
    """The policy that decides."""
    seconds: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.0
    """T_total so far."""
    round: Count = 0
    """Rounds done so far; the decision is for the next one."""
    variance_limit: NotNegative = PAPER_VARIANCE_LIMIT
    """V: the largest variance over labels of the samples used so far."""
    wait_seconds: Positive = 1.0
    """H: how long a skipped round waits."""
    seed: Count = 0
    """A run of this seed would draw the same in this round."""


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="A state, such as examples/plan.toml.")],
    format: FormatOption = Format.text,
) -> None:
    """Decide one round for a state given in a file, and give the reason."""
    state = settings_from(_with_numbers(read_toml(file), str(file)), Plan, str(file))
    _check(state, str(file))
    decision = _decide(state)
    if format is Format.json:
        named = replace(decision, reason=_by_name(state, decision.reason))
        print(msgspec.json.format(msgspec.json.encode(named), indent=2).decode())
    else:
        _print(state, decision)


def _with_numbers(table: dict[str, Any], source: str) -> dict[str, Any]:
    """The table of a plan, with the holder's number where the file has its name."""
    holder, nodes = table.get("holder"), table.get("nodes")
    if not isinstance(holder, str) or not isinstance(nodes, list):
        return table
    names = [node.get("name") for node in nodes if isinstance(node, dict)]
    if names.count(holder) != 1:
        known = ", ".join(str(name) for name in names if name)
        raise BadInput(f"{source}: key `holder` is {holder}; give the name of one node ({known}) or its number.")
    return table | {"holder": names.index(holder)}


def _check(state: Plan, source: str) -> None:
    labels, nodes = len(state.used), len(state.nodes)
    if not labels or not nodes:
        raise BadInput(f"{source}: there must be at least one label in `used` and one of `[[nodes]]`.")
    if state.holder >= nodes:
        raise BadInput(f"{source}: key `holder` is {state.holder}; the nodes are numbered 0 to {nodes - 1}.")
    for number, node in enumerate(state.nodes):
        if len(node.held) != labels:
            raise BadInput(
                f"{source}: key `nodes[{number}].held` has {len(node.held)} counts; `used` has {labels} labels."
            )
        if node.flops is not None and node.bandwidth is None and number != state.holder:
            raise BadInput(
                f"{source}: key `nodes[{number}].bandwidth` is missing (bit/s from {_called(state, state.holder)})."
            )


def _decide(state: Plan) -> Decision:
    loads = Loads(
        tuple(math.nan if n.flops is None else n.flops for n in state.nodes),
        tuple(
            math.inf if i == state.holder else math.nan if n.bandwidth is None else n.bandwidth
            for i, n in enumerate(state.nodes)
        ),
    )
    held = np.array([node.held for node in state.nodes], dtype=np.int64)
    policy = policy_named(state.policy, PolicySettings(state.variance_limit, state.wait_seconds))
    ledger = Ledger(state.used, state.seconds, state.round)
    cost = ModelCost(state.cost.flops_per_sample, state.cost.model_bits)
    rng = deciding(state.seed, state.round + 1)
    decision = policy.decide(ledger, loads, held, state.holder, cost, rng)
    return check_decision(decision, loads, held)


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
    console.print(_by_name(state, decision.reason), markup=False)
    if decision.node is not None:
        console.print(f"Samples of each label: {', '.join(map(str, decision.samples))}.")


def _by_name(state: Plan, reason: str) -> str:
    """A reason with the names of the nodes in place of their numbers."""

    def name(found: re.Match[str]) -> str:
        node = int(found[1])
        return (state.nodes[node].name if node < len(state.nodes) else None) or found[0]

    return re.sub(r"\b[Nn]ode (\d+)\b", name, reason)


def _called(state: Plan, node: NodeId) -> str:
    return state.nodes[node].name or f"node {node}"


def _name(state: Plan, node: NodeId) -> str:
    return escape(_called(state, node)) + (" (holder)" if node == state.holder else "")

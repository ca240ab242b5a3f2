"""One decision from a state in a file: what `tramfl plan` reads and evaluates."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from tramfl.config import NotNegative, Positive, read_toml, settings_from
from tramfl.draws import deciding
from tramfl.notation import PAPER_VARIANCE_LIMIT, BadInput, Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import PolicySettings, check_decision, policy_named, with_names

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

    def called(self, node: NodeId) -> str:
        """A node's name, or its number where the file gives it none."""
        return self.nodes[node].name or f"node {node}"


def read_plan(file: Path) -> Plan:
    """The state in a file; BadInput names the key that is wrong."""
    source = str(file)
    state = settings_from(_with_numbers(read_toml(file), source), Plan, source)
    _check(state, source)
    return state


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
                f"{source}: key `nodes[{number}].bandwidth` is missing (bit/s from {state.called(state.holder)})."
            )


def decide(state: Plan) -> Decision:
    """The decision of the state's policy for its next round."""
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


def reason_of(state: Plan, decision: Decision) -> str:
    """The reason of a decision with the names of the nodes in place of their numbers."""
    return with_names(decision.reason, [node.name for node in state.nodes])

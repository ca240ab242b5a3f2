"""What a policy is, and how one is found by name.

Five are built in. Others come from any installed package, through the entry point group
`tramfl.policies`: the entry's name is the policy's, its value a callable that takes PolicySettings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tramfl.notation import PAPER_VARIANCE_LIMIT, BadInput, Decision, Ledger, Loads, ModelCost, NodeId

ENTRY_POINT_GROUP = "tramfl.policies"


class PolicySettings(Struct, frozen=True):
    """What the paper leaves to the operator."""

    variance_limit: float = PAPER_VARIANCE_LIMIT
    """V: how far apart the labels' counts may drift."""
    wait_seconds: float = 1.0
    """H: how long a skipped round waits."""


class Policy(Protocol):
    """Decides who trains next and on how many samples of each label."""

    def decide(
        self,
        ledger: Ledger,
        loads: Loads,
        held: NDArray[np.int64],
        holder: NodeId,
        cost: ModelCost,
        rng: np.random.Generator,
    ) -> Decision:
        """One round's decision; `held` is l_ic, shape (nodes, labels). Only nodes that reported may be chosen."""
        ...


PolicyFactory = Callable[[PolicySettings], Policy]

_BUILT_IN: Mapping[str, str] = {
    "load-aware": "tramfl.scheduling.load_aware:LoadAware",
    "random": "tramfl.scheduling.baselines:RandomSelection",
    "time-first": "tramfl.scheduling.baselines:TimeFirst",
    "variance-first": "tramfl.scheduling.baselines:VarianceFirst",
    "tram": "tramfl.scheduling.baselines:Tram",
}


def policy_names() -> list[str]:
    """Every policy that can be named here: the built-in ones first, then the installed ones."""
    installed = sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)} - set(_BUILT_IN))
    return [*_BUILT_IN, *installed]


def policy_named(name: str, settings: PolicySettings | None = None) -> Policy:
    """The policy called `name`; BadInput lists the names there are."""
    return _factory(name)(settings or PolicySettings())


def _factory(name: str) -> PolicyFactory:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        factory: PolicyFactory = getattr(import_module(module), attribute)
        return factory
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return _loaded(entry)
    raise BadInput(f"there is no policy `{name}`; choose one of {', '.join(policy_names())}.")


def _loaded(entry: EntryPoint) -> PolicyFactory:
    package = entry.dist.name if entry.dist else "an unknown package"
    origin = f"policy `{entry.name}`, entry point `{entry.value}` of {package},"
    try:
        factory: PolicyFactory = entry.load()
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise BadInput(f"{origin} cannot be loaded: {type(error).__name__}: {error}.") from error
    if not callable(factory):
        raise BadInput(f"{origin} is no policy: it must be a callable that takes PolicySettings.")
    return factory


def check_decision(decision: Decision, loads: Loads, held: NDArray[np.int64]) -> None:
    """Refuse what cannot be carried out, whoever's policy decided it."""
    samples, node = decision.samples, decision.node
    times = (decision.compute_seconds, decision.transfer_seconds, decision.idle_seconds)
    if len(samples) != held.shape[1] or any(type(s) is not int or s < 0 for s in samples):
        wrong = f"samples {samples}; it takes {held.shape[1]} ints, one for each label and none below 0"
    elif not all(0 <= seconds < math.inf for seconds in times):
        wrong = f"on compute, transfer and idle seconds {times}; each must be a number of at least 0"
    elif node is None and (any(samples) or not decision.idle_seconds > 0):
        wrong = "that nobody trains, but gave samples or no idle_seconds to wait"
    elif node is not None and node not in loads.reporting:
        wrong = f"for node {node}, which did not report; {list(loads.reporting)} did"
    elif node is not None and (
        not any(samples) or any(s > stock for s, stock in zip(samples, held[node].tolist(), strict=True))
    ):
        wrong = f"samples {samples} for node {node}, which holds {held[node].tolist()}; to skip, node must be None"
    else:
        return
    raise BadInput(f"policy `{decision.policy}` decided {wrong}.")

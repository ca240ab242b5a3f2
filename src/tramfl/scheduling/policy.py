"""What a policy is, how one is found by name, and what a decision must look like.

Six are built in. Others come from any installed package, through the entry point group `tramfl.policies` (the
entry's name is the policy's, its value a callable that takes PolicySettings), or by reference: `module:Class`.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tramfl.config import Scenario
from tramfl.notation import PAPER_VARIANCE_LIMIT, BadInput, Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.references import is_reference, referred
from tramfl.scheduling.shares import named_shares

ENTRY_POINT_GROUP = "tramfl.policies"


class PolicySettings(Struct, frozen=True):
    """What the paper leaves to the operator."""

    variance_limit: float = PAPER_VARIANCE_LIMIT
    """V: how far apart the labels' counts may drift."""
    wait_seconds: float = 1.0
    """H: how long a skipped round waits."""
    shares: tuple[float, ...] | Literal["population"] | None = None
    """The mix of labels to aim for: a share of each, that of all data there is, or None for the uniform one."""
    max_samples: int | None = None
    """The most samples that a round trains."""
    visit_every: int | None = None
    """Rounds within which every node that reports and has samples is visited."""
    max_hops: float | None = None
    """The most that a round trains: as long as this many hops take, and at least H."""

    @classmethod
    def of(cls, scenario: Scenario, labels: Sequence[str]) -> PolicySettings:
        """What a scenario says, for data with these labels."""
        return cls(
            scenario.variance_limit,
            scenario.wait_seconds,
            named_shares(scenario.balance, labels),
            scenario.max_samples_per_round,
            scenario.visit_every_rounds,
            scenario.max_round_in_hops,
        )


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
    "express": "tramfl.scheduling.express:Express",
}


def policy_names() -> list[str]:
    """Every policy that can be named here: the built-in ones first, then the installed ones."""
    installed = sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)} - set(_BUILT_IN))
    return [*_BUILT_IN, *installed]


def policy_named(name: str, settings: PolicySettings | None = None) -> Policy:
    """The policy called `name`, or at `module:Class`; BadInput lists the names there are."""
    settings = settings or PolicySettings()
    if is_reference(name):
        return as_policy(referred(name, "policy"), settings, f"policy `{name}`")
    return _factory(name)(settings)


def as_policy(thing: Any, settings: PolicySettings, what: str | None = None) -> Policy:
    """A user's object as a policy: an object with `decide`, a class of such objects, or the function `decide` itself.

    A class, or a function of one argument, is called with the settings if it takes any argument.
    """
    what = what or f"policy `{getattr(thing, '__name__', type(thing).__name__)}`"
    if not inspect.isclass(thing) and callable(getattr(thing, "decide", None)):
        policy: Policy = thing
        return policy
    wanted = f"{what} is no policy: it needs a method decide(ledger, loads, held, holder, cost, rng)"
    if not callable(thing):
        raise BadInput(f"{wanted}; it is a {type(thing).__name__}.")
    needed = _needed(thing)
    if needed == len(_DECIDE) and not inspect.isclass(thing):
        return _Function(thing)
    if needed > 1:
        raise BadInput(f"{wanted}, or must be callable with PolicySettings or nothing.")
    made = thing(settings) if _takes_one(thing) else thing()
    if not callable(getattr(made, "decide", None)):
        raise BadInput(f"{wanted}; calling it gave a {type(made).__name__}.")
    decides: Policy = made
    return decides


_DECIDE = ("ledger", "loads", "held", "holder", "cost", "rng")
"""What `decide` is given."""


class _Function:
    """A function that decides, as a policy."""

    def __init__(self, decide: Callable[..., Decision]) -> None:
        self.decide = decide
        self.name = getattr(decide, "__name__", "function")


def _positional(thing: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _needed(thing: Callable[..., Any]) -> int:
    return sum(p.default is p.empty for p in _positional(thing))


def _takes_one(thing: Callable[..., Any]) -> bool:
    return bool(_positional(thing))


def _factory(name: str) -> PolicyFactory:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        factory: PolicyFactory = getattr(import_module(module), attribute)
        return factory
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return _loaded(entry)
    raise BadInput(
        f"there is no policy `{name}`; choose one of {', '.join(policy_names())}, or name a class as module:Class."
    )


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


def check_decision(decision: object, loads: Loads, held: NDArray[np.int64]) -> Decision:
    """The decision in Python's own numbers; BadInput where it cannot be carried out."""
    if not isinstance(decision, Decision):
        returned = "None" if decision is None else f"a {type(decision).__name__}"
        raise BadInput(
            f"the policy returned {returned}; decide must return a tramfl.notation.Decision, whose node is None where"
            " the round is skipped."
        )
    samples, node = decision.samples, decision.node
    times = (decision.compute_seconds, decision.transfer_seconds, decision.idle_seconds)
    try:
        samples = tuple(operator.index(s) for s in samples)  # NumPy's whole numbers are whole numbers
        node = None if node is None else operator.index(node)
    except TypeError:
        samples = ()
    if len(samples) != held.shape[1] or any(s < 0 for s in samples):
        wrong = f"samples {decision.samples}; it takes {held.shape[1]} ints, one for each label and none below 0"
    elif not all(_is_duration(seconds) for seconds in times):
        wrong = f"on compute, transfer and idle seconds {times}; each must be a number of at least 0"
    elif node is None and (any(samples) or not decision.idle_seconds > 0):
        wrong = "that nobody trains, but gave samples or no idle_seconds to wait"
    elif node is not None and not loads.has(node):
        wrong = f"for node {node}, which did not report; {list(loads.reporting)} did"
    elif node is not None and (
        not any(samples) or any(s > stock for s, stock in zip(samples, held[node].tolist(), strict=True))
    ):
        wrong = f"samples {samples} for node {node}, which holds {held[node].tolist()}; to skip, node must be None"
    elif all(type(s) is int for s in (decision.node or 0, *decision.samples)) and all(
        type(t) is float for t in times
    ):
        return decision
    else:
        compute, transfer, idle = map(float, times)
        return replace(
            decision,
            node=node,
            samples=samples,
            compute_seconds=compute,
            transfer_seconds=transfer,
            idle_seconds=idle,
        )
    raise BadInput(f"policy `{decision.policy}` decided {wrong}.")


def with_names(reason: str, names: Sequence[str | None]) -> str:
    """A policy's reason with the names of nodes in place of their numbers, where they have names."""

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return (names[number] if number < len(names) else None) or found[0]

    return re.sub(r"\b[Nn]ode (\d+)\b", named, reason)


def _is_duration(seconds: object) -> bool:
    return isinstance(seconds, int | float | np.integer | np.floating) and bool(0 <= seconds < math.inf)

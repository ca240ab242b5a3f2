"""What can be raced by name: a method is a named set of a scenario's settings.

Every policy is a method of its own name, which sets `policy` and nothing else. Others are built in, or come from any
installed package through the entry point group `tramfl.methods`: the entry's name is the method's, its value a
`Method` or a callable that returns one. `tramfl methods` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from msgspec import Struct

from tramfl.config import Scenario, as_table, settings_from, with_value
from tramfl.notation import BadInput
from tramfl.scheduling.policy import policy_named, policy_names

ENTRY_POINT_GROUP = "tramfl.methods"


class Method(Struct, frozen=True):
    """A named set of settings."""

    name: str
    about: str
    """What the method does, in one sentence."""
    settings: Mapping[str, Any]
    """The keys of a scenario that the method sets, by their dotted names."""
    by_dataset: Mapping[str, Mapping[str, Any]] = {}
    """What it sets otherwise on a data set, by the name of that."""

    def settings_on(self, dataset: str | None) -> Mapping[str, Any]:
        """The keys that the method sets in scenarios of a data set; None stands for data of the user's own."""
        return {**self.settings, **self.by_dataset.get(dataset or "", {})}

    @property
    def is_policy(self) -> bool:
        """Whether the method is a policy and nothing more: then a run's record names the policy alone."""
        return self.settings == {"policy": self.name}


EXPRESS = Method(
    "express",
    "Policy express; the model travels in four bits a weight; a node's mean of what passed through it is delivered.",
    {"policy": "express", "transit.codec": "int4", "evaluation.readout": "average", "max_round_in_hops": 4.0},
)


Tuned = tuple[int, float]
"""`exchange.local_steps` and `exchange.rate`, as the grid in docs/methods.md chose them."""


def _kept(name: str, about: str, keys: Mapping[str, Any], tuned: Tuned, **by_dataset: Tuned) -> Method:
    """A method in which every node keeps a model; `tuned` is for all data sets that are not named."""
    return Method(
        name,
        about,
        {**keys, **_as_keys(tuned)},
        {dataset: _as_keys(other) for dataset, other in by_dataset.items()},
    )


def _as_keys(tuned: Tuned) -> dict[str, Any]:
    return {"exchange.local_steps": tuned[0], "exchange.rate": tuned[1]}


_METHODS: tuple[Method, ...] = (
    EXPRESS,
    _kept(
        "fedavg",
        "A server on node 0 averages what every node trained.",
        {"exchange.rule": "fedavg"},
        tuned=(128, 0.3),
    ),
    _kept(
        "fedavg-m-of-n",
        "FedAvg that goes on with the first half of the nodes.",
        {"exchange.rule": "fedavg", "exchange.wait_for": 0.5},
        tuned=(32, 0.3),
    ),
    _kept(
        "fedavg-beside",
        "FedAvg with a server beside the nodes, which has links of its own.",
        {"exchange.rule": "fedavg", "exchange.server": "beside"},
        tuned=(128, 0.3),
    ),
    _kept(
        "fedprox",
        "FedAvg whose nodes are pulled towards the server's model while they train.",
        {"exchange.rule": "fedavg", "exchange.proximal": 0.1},
        tuned=(128, 0.3),
    ),
    _kept(
        "cyclic",
        "One model visits the nodes in turn, whatever their loads.",
        {"exchange.rule": "cyclic"},
        tuned=(2, 3.0),
    ),
    _kept("gossip", "Nodes train, then all average with all others.", {"exchange.rule": "gossip"}, tuned=(128, 0.3)),
    _kept(
        "gossip-ring",
        "Nodes train, then mix with two neighbours.",
        {"exchange.rule": "gossip", "exchange.topology": "ring"},
        tuned=(32, 1.0),
    ),
    _kept(
        "gossip-pairs",
        "Nodes train, then average in pairs that are drawn anew.",
        {"exchange.rule": "gossip", "exchange.topology": "matching"},
        tuned=(128, 0.3),
    ),
    _kept(
        "gossip-m-of-n",
        "The first half of the nodes to end their training average among themselves.",
        {"exchange.rule": "gossip", "exchange.wait_for": 0.5},
        tuned=(128, 0.3),
    ),
    _kept(
        "gossip-async",
        "Nodes train and average with a random neighbour, and wait for nobody (AD-PSGD).",
        {"exchange.rule": "gossip-async"},
        tuned=(8, 1.0),
    ),
    _kept(
        "feddc",
        "Models change places after every round and are averaged now and then.",
        {"exchange.rule": "feddc"},
        tuned=(8, 0.3),
    ),
    _kept(
        "feddc-load-aware",
        "FedDC whose models change places over the quickest links.",
        {"exchange.rule": "feddc", "exchange.matching": "load-aware"},
        tuned=(8, 0.3),
    ),
    _kept(
        "pdmm",
        "Edge consensus: nodes train towards agreement through one dual a link (variance-reduced form).",
        {"exchange.rule": "pdmm", "training.momentum": 0.0},
        tuned=(128, 1.0),
    ),
    _kept(
        "admm",
        "Edge consensus whose duals move by half.",
        {"exchange.rule": "pdmm", "exchange.dual_update": "admm", "training.momentum": 0.0},
        tuned=(128, 1.0),
    ),
    _kept(
        "cmfd",
        "Nodes distil what all models say of a shared unlabelled set; no weights are sent.",
        {"exchange.rule": "cmfd"},
        tuned=(2, 3.0),
    ),
)
_BUILT_IN: Mapping[str, Method] = {method.name: method for method in _METHODS}


def method_names() -> list[str]:
    """Every method that can be named here: the policies first, then the other built-in and the installed ones."""
    policies = [name for name in policy_names() if name not in _BUILT_IN]
    installed = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return [*policies, *_BUILT_IN, *sorted(installed - set(policies) - set(_BUILT_IN))]


def method_named(name: str) -> Method:
    """The method called `name`, or the policy at `module:Class`; BadInput lists the names there are."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return _loaded(entry)
    if name not in policy_names() and ":" not in name:
        raise BadInput(
            f"there is no method `{name}`; choose one of {', '.join(method_names())}, or name a policy as"
            " module:Class."
        )
    return policy_method(name)


def policy_method(name: str) -> Method:
    """A policy as a method, also where another method has the policy's name."""
    about = (type(policy_named(name)).__doc__ or "A policy of the user's own.").strip().partition("\n")[0]
    return Method(name, about, {"policy": name})


def with_method(scenario: Scenario, method: Method) -> Scenario:
    """The scenario played with a method: its settings, in place of those of the method that the scenario had."""
    table, source = as_table(scenario), f"method `{method.name}`"
    dataset = scenario.dataset if scenario.app is None else None
    before = table.pop("method", None)
    for key, value in method_named(before).settings_on(dataset).items() if before is not None else ():
        table = _without(table, key.split("."), value)
    for key, value in method.settings_on(dataset).items():
        table = with_value(table, key.split("."), value, source)
    return settings_from(_named(table, method), Scenario, source)


def filled(table: dict[str, Any], source: str) -> dict[str, Any]:
    """A scenario file's table with the settings of the `method` that it names, under the keys that it has itself."""
    if "method" not in table:
        return table
    method = method_named(str(table["method"]))
    if method.is_policy and table.get("policy", method.name) != method.name:
        raise BadInput(
            f"{source}: key `method` is {method.name}, a policy, and key `policy` is {table['policy']}; give one."
        )
    found: dict[str, Any] = {}
    dataset = None if "app" in table else str(table.get("dataset", ""))
    for key, value in method.settings_on(dataset).items():
        found = with_value(found, key.split("."), value, source)
    return _named(_merged(found, table), method)


def _named(table: dict[str, Any], method: Method) -> dict[str, Any]:
    """`table` with the method's name; a policy's own is in the key `policy`."""
    rest = {key: value for key, value in table.items() if key != "method"}
    return rest if method.is_policy else rest | {"method": method.name}


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        inner = found.get(key)
        found[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found


def _without(table: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """`table` without the key at `path`, where it has this value."""
    first, *rest = path
    if not rest:
        return {key: found for key, found in table.items() if key != first or found != value}
    inner = table.get(first)
    return table | {first: _without(inner, rest, value)} if isinstance(inner, dict) else table


def _loaded(entry: EntryPoint) -> Method:
    package = entry.dist.name if entry.dist else "an unknown package"
    origin = f"method `{entry.name}`, entry point `{entry.value}` of {package},"
    try:
        found = entry.load()
        method = found if isinstance(found, Method) else found()
    except Exception as error:  # whatever a stranger's module raises
        raise BadInput(f"{origin} cannot be loaded: {type(error).__name__}: {error}.") from error
    if not isinstance(method, Method) or method.name != entry.name:
        raise BadInput(f"{origin} must be a tramfl.methods.Method of that name, or a callable that returns one.")
    return method

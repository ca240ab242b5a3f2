"""The scenarios that have a name: the paper's four layouts, for each data set."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tramfl.config import (
    Budget,
    Cost,
    Evaluation,
    Partition,
    Scenario,
    TrainingSettings,
    as_table,
    settings_from,
)
from tramfl.methods import Method, filled, with_method
from tramfl.notation import BadInput
from tramfl.record import read_config

LAYOUTS = ("3", "5", "10", "5-uneven")
DEFAULT = "digits-5-uneven"
_BY_SITES = {3: "digits-3", 5: DEFAULT, 10: "digits-10"}
"""The paper's layouts, by the number of sites."""

MNIST_COST = Cost(flops_per_sample=71.57e6, model_bits=38.42e6)
"""The paper's M and D_M for its MNIST network."""
CIFAR10_COST = Cost(flops_per_sample=10.65e9, model_bits=358.38e6)
"""The paper's M and D_M for ResNet-18 at 224 x 224, whatever the size trained on."""

_BY_DATASET = {
    # Small data in place of MNIST: the clock charges MNIST's network, and V shrinks with the square of the
    # samples per label (about 145 against 6,000), so that it binds as it does there.
    "digits": Scenario(
        dataset="digits",
        variance_limit=100.0,
        cost=MNIST_COST,
        training=TrainingSettings(network="digits-mlp", learning_rate=0.05),
        budget=Budget(targets=(0.7, 0.9), seconds=300.0, samples=40_000),
    ),
    "mnist": Scenario(
        dataset="mnist",
        cost=MNIST_COST,
        training=TrainingSettings(network="mnist-cnn"),
        evaluation=Evaluation(subset=500),
        budget=Budget(targets=(0.7, 0.9), seconds=200.0, samples=300_000),
    ),
    "cifar10": Scenario(
        dataset="cifar10",
        cost=CIFAR10_COST,
        training=TrainingSettings(network="resnet18", image_size=48),
        evaluation=Evaluation(subset=300),
        budget=Budget(targets=(0.6, 0.8), seconds=2000.0, samples=300_000),
    ),
}


def scenario_names() -> list[str]:
    """Every scenario that can be named."""
    return [f"{dataset}-{layout}" for dataset in _BY_DATASET for layout in LAYOUTS]


def scenario_named(name: str) -> Scenario:
    """A scenario by its name; BadInput lists the names there are."""
    dataset, _, layout = name.partition("-")
    if dataset not in _BY_DATASET or layout not in LAYOUTS:
        raise BadInput(
            f"there is no scenario `{name}`; choose one of {', '.join(scenario_names())}, or a .toml file."
        )
    return replace(_BY_DATASET[dataset], name=name, partition=Partition(layout=layout))


LIMITS = ("budget.rounds", "budget.seconds", "budget.samples")
"""Keys that a run may be resumed with other values of: they only say when it ends."""


def difference(before: Scenario, after: Scenario, ignoring: Collection[str] = LIMITS) -> str | None:
    """The first key in which two scenarios differ, and how; None where they do not."""
    one, other = dict(leaves(as_table(before))), dict(leaves(as_table(after)))
    for key in {**one, **other}:
        if key not in ignoring and one.get(key) != other.get(key):
            return f"`{key}` is {_shown(one.get(key))} there and {_shown(other.get(key))} here"
    return None


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a nested table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def scenario_from(name_or_file: str, method: Method | None = None) -> Scenario:
    """A scenario by name, or from a TOML file; `method` comes before the file's own settings."""
    if is_named(name_or_file):
        found = scenario_named(name_or_file)
    else:
        path = Path(name_or_file)
        table = read_config(path)
        table.setdefault("name", path.stem)
        table.pop("resolved", None)
        found = settings_from(filled(table, name_or_file), Scenario, name_or_file)
    return found if method is None else with_method(found, method)


def with_tests_every(scenario: Scenario, samples: int | None) -> Scenario:
    """Where every node keeps a model: a test each time that a node has trained about so many samples more.

    Testing ten models takes longer than many a round. A model that travels is tested as the scenario says.
    """
    exchange = scenario.exchange
    if samples is None or exchange is None or not scenario.keeps_models:
        return scenario
    every = max(1, samples // (exchange.local_steps * scenario.training.batch_size))
    return replace(scenario, evaluation=replace(scenario.evaluation, every=every))


def charging_own_model(scenario: Scenario) -> Scenario:
    """A named scenario with a model of the user's own: the clock charges that model, not the paper's network."""
    return replace(scenario, cost=Cost())


def is_named(name_or_file: str) -> bool:
    """Whether a scenario is asked for by name; otherwise it is a file of the user's."""
    return not name_or_file.endswith(".toml")


def scenario_for_sites(name_or_file: str | None, sites: int) -> Scenario:
    """The scenario asked for; without one, the paper's layout for that many sites, or else an uneven division."""
    if name_or_file is not None:
        return scenario_from(name_or_file)
    if sites in _BY_SITES:
        return scenario_named(_BY_SITES[sites])
    return replace(scenario_named(DEFAULT), name=f"digits-{sites}", partition=Partition(layout="dirichlet"))

"""Options that several commands share, and how a scenario is put together from them."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tramfl.config import ACCURACY, Scenario, as_table, override, settings_from, with_value
from tramfl.learning.app import app_of
from tramfl.methods import Method, method_named, policy_method
from tramfl.notation import BadInput
from tramfl.scheduling.policy import policy_named
from tramfl.simulation.scenarios import DEFAULT, charging_own_model, is_named, scenario_from


class Format(StrEnum):
    """How a command prints what it found."""

    text = "text"
    json = "json"


ScenarioArgument = Annotated[
    str | None,
    typer.Argument(metavar="SCENARIO", help=f"A scenario's name, or a .toml file (default: {DEFAULT})."),
]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="Who decides: load-aware, random, time-first, ...")
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", min=1, help="Stop after this many rounds.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="Values of budget.metric (accuracy) to reach, e.g. 0.7,0.9.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the scenario, e.g. training.batch_size=64."),
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data sets lie (default: $TRAMFL_DATA, or a cache).")
]
AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="PACKAGE.MODULE:APP", help="Your model and data, as a real site takes them."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="text, or json for other programs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
TestEveryOption = Annotated[
    int | None,
    typer.Option(
        "--test-every",
        min=1,
        metavar="SAMPLES",
        help="Where every node keeps a model: test them each time that a node has trained so many samples more.",
    ),
]
NoTrainingOption = Annotated[
    bool, typer.Option("--no-training", help="Play the schedule alone: no data, no PyTorch, no accuracies.")
]


def targets_from(text: str | None) -> tuple[float, ...] | None:
    """`0.7,0.9` as numbers."""
    if text is None:
        return None
    try:
        targets = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        targets = (math.nan,)
    if not all(map(math.isfinite, targets)):
        raise BadInput(f"--target {text}: give numbers with commas between, for example --target 0.7,0.9.")
    return targets


def changed(scenario: Scenario, source: str, sets: list[str] | None, **keys: Any) -> Scenario:
    """A scenario with `--set` and the options that have a key of their own applied; None changes nothing."""
    table = as_table(scenario)
    for assignment in sets or ():
        table = override(table, assignment)
    for key, value in keys.items():
        if value is not None:
            table = with_value(table, key.split("__"), value, source)
    targets = keys.get("budget__targets") or ()
    budget = table["budget"]
    of_accuracy = isinstance(budget, dict) and budget.get("metric", ACCURACY) == ACCURACY
    if of_accuracy and not all(0 <= target <= 1 for target in targets):
        given = ",".join(f"{target:g}" for target in targets)
        raise BadInput(f"--target {given}: give accuracies between 0 and 1, for example --target 0.7,0.9.")
    found = settings_from(table, Scenario, source)
    policy_named(found.policy)
    return found


def method_of(policy: str | None, method: str | None) -> Method | None:
    """What `--policy` or `--method` names; None where neither is given."""
    if policy is not None and method is not None:
        raise BadInput("every policy is a method of its own name: give one of --policy and --method.")
    if policy is not None:
        return policy_method(policy)
    return None if method is None else method_named(method)


def scenario_of(name_or_file: str, sets: list[str] | None, method: Method | None = None, **keys: Any) -> Scenario:
    """The scenario a command was asked for, with a method where one was named; `--set` comes before the method's.

    A named scenario charges the model of an app, where the app has one.
    """
    base = scenario_from(name_or_file, method)
    found = changed(base, name_or_file, sets, **keys)
    if found.app is not None and is_named(name_or_file) and app_of(found).model is not None:
        found = changed(charging_own_model(base), name_or_file, sets, **keys)
    return found


def limited(scenario: Scenario, rounds: int) -> Scenario:
    """A scenario that plays `rounds` rounds where it does not say how many itself; for runs without accuracies."""
    budget = scenario.budget
    if budget.rounds is not None:
        return scenario
    return changed(scenario, scenario.name, None, budget__rounds=rounds)

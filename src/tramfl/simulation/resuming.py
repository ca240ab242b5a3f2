"""Which run a command means: where it goes, how it was played before, and what it goes on with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from tramfl.config import Scenario
from tramfl.methods import Method, method_named, policy_method, with_method
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, Resolved, RunFolder, folder_name
from tramfl.simulation.play import check_own
from tramfl.simulation.scenarios import scenario_from


def default_folder(scenario: Scenario) -> Path:
    """The folder of a run for which no other is given."""
    return Path("runs") / f"{folder_name(scenario)}-{scenario.method_name}-{scenario.seed}"


def played_before(scenario: str | None, given: Collection[str] = ()) -> Resolved:
    """How a run was played, where its own description is to be played again; `given`: the parts that are replaced."""
    path = Path(scenario or "")
    if path.name != CONFIG_FILE:
        return Resolved()
    folder = RunFolder(path.parent)
    check_own(folder, given)
    return folder.resolved()


def scenario_to_resume(folder: RunFolder, scenario: str | None, method: Method | None) -> Scenario:
    """The scenario of the run in a folder, with an edited file's budget and another method where those are given.

    Raises BadInput where `scenario` names another one than the folder has.
    """
    check_own(folder, ())
    before = folder.scenario()
    given = scenario_from(scenario) if scenario is not None else before
    if given.name != before.name:
        raise BadInput(f"{folder.path} holds a run of {before.name}, not of {scenario}; leave the scenario out.")
    # A file may have been edited since: its budget counts, and any other difference is rejected later.
    edited = scenario is not None and scenario.endswith(".toml")
    base = replace(_as_before(given, before), seed=before.seed) if edited else before
    return base if method is None else with_method(base, method)


def _as_before(given: Scenario, before: Scenario) -> Scenario:
    """An edited scenario with the method, or the policy, of the run that goes on."""
    return with_method(given, policy_method(before.policy) if before.method is None else method_named(before.method))

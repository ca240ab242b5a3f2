from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from msgspec.structs import replace

from tramfl.config import Budget, as_table
from tramfl.methods import method_named
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, Resolved, RunFolder
from tramfl.simulation.play import Request, play
from tramfl.simulation.resuming import default_folder, played_before, scenario_to_resume
from tramfl.simulation.scenarios import scenario_named

PLAYED = replace(scenario_named("digits-3"), seed=4, policy="random", budget=Budget(rounds=3))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of three rounds."""
    play(Request(scenario=PLAYED, out=tmp_path / "run", train=False))
    return RunFolder(tmp_path / "run")


def test_a_run_goes_on_as_it_was_played_unless_a_method_is_named(folder: RunFolder) -> None:
    assert scenario_to_resume(folder, None, None) == PLAYED
    assert scenario_to_resume(folder, "digits-3", None) == PLAYED
    assert scenario_to_resume(folder, None, method_named("time-first")).policy == "time-first"


def test_an_edited_file_brings_its_budget_and_neither_its_policy_nor_its_seed(
    folder: RunFolder, tmp_path: Path
) -> None:
    file = tmp_path / "edited.toml"
    file.write_text(tomli_w.dumps(as_table(replace(PLAYED, seed=0, policy="tram", budget=Budget(rounds=9)))))
    assert scenario_to_resume(folder, str(file), None) == replace(PLAYED, budget=Budget(rounds=9))


def test_a_folder_with_a_run_of_another_scenario_is_named(folder: RunFolder) -> None:
    with pytest.raises(
        BadInput, match=rf"{folder.path} holds a run of digits-3, not of digits-5; leave the scenario"
    ):
        scenario_to_resume(folder, "digits-5", None)


def test_a_runs_own_description_says_how_it_was_played_and_another_file_does_not(folder: RunFolder) -> None:
    assert played_before(str(folder.path / CONFIG_FILE)).trained is False
    assert played_before("digits-3") == played_before(None) == Resolved()


def test_a_run_without_a_folder_goes_to_one_that_says_what_it_is() -> None:
    assert default_folder(PLAYED) == Path("runs/digits-3-random-4")

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tramfl
from tramfl import methods
from tramfl.methods import Method, method_named, method_names, policy_method, with_method
from tramfl.notation import BadInput
from tramfl.record import RunFolder
from tramfl.reporting.runs import doubts, load_runs
from tramfl.scheduling.policy import policy_names
from tramfl.simulation.scenarios import scenario_from, scenario_named

STEADY = Method("steady", "Random, in large batches.", {"policy": "random", "training.batch_size": 128})


def installed(monkeypatch: pytest.MonkeyPatch, *values: tuple[str, str]) -> None:
    entries = [EntryPoint(name, value, methods.ENTRY_POINT_GROUP) for name, value in values]
    monkeypatch.setattr(methods, "entry_points", lambda group: entries)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Method:
    installed(monkeypatch, ("steady", "tests.test_methods:STEADY"))
    monkeypatch.setattr(methods, "_loaded", lambda entry: STEADY)
    return STEADY


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_is_a_method_of_its_own_name(name: str) -> None:
    assert name in method_names()
    found = with_method(scenario_named("digits-3"), policy_method(name))
    assert (found.policy, found.method, found.method_name) == (name, None, name)


def test_a_method_sets_its_keys_and_names_the_run(steady: Method) -> None:
    found = with_method(scenario_named("digits-3"), method_named("steady"))
    assert (found.policy, found.training.batch_size, found.method_name) == ("random", 128, "steady")


def test_another_method_takes_the_place_of_the_first_with_all_its_keys(steady: Method) -> None:
    base = scenario_named("digits-3")
    assert with_method(with_method(base, steady), policy_method("load-aware")) == base


def test_a_method_sets_other_values_on_a_data_set_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = {"training.batch_size": 16, "training.momentum": 0.5}
    monkeypatch.setattr(methods, "_BUILT_IN", {"steady": replace(STEADY, by_dataset={"mnist": small})})
    steady = method_named("steady")
    here, there = (with_method(scenario_named(name), steady) for name in ("digits-3", "mnist-3"))
    assert (here.training.batch_size, here.training.momentum) == (128, 0.9)
    assert (there.training.batch_size, there.training.momentum) == (16, 0.5)
    assert with_method(there, policy_method("load-aware")) == scenario_named("mnist-3")
    file = tmp_path / "mine.toml"
    for lines, size in (('dataset = "mnist"', 16), ('dataset = "mnist"\napp = "my.module:app"', 128), ("", 128)):
        file.write_text(f'method = "steady"\n{lines}\n')
        assert scenario_from(str(file)).training.batch_size == size


def test_a_scenario_file_may_name_a_method_and_set_some_of_its_keys_otherwise(steady: Method, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('method = "steady"\n[training]\nbatch_size = 64\n')
    found = scenario_from(str(file))
    assert (found.policy, found.training.batch_size, found.method_name) == ("random", 64, "steady")
    file.write_text('method = "random"\npolicy = "tram"\n')
    with pytest.raises(BadInput, match="key `policy` is tram; give one"):
        scenario_from(str(file))


def test_a_run_with_a_method_is_recorded_under_its_name_and_played_again_from_its_file(
    steady: Method, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"rounds": 3, "train": False}
    first = tramfl.simulate("digits-3", method="steady", out=tmp_path / "a", **keys)
    again = tramfl.simulate(tmp_path / "a" / "config.toml", out=tmp_path / "b", **keys)
    assert first.summary.policy == again.summary.policy == "steady"
    assert first.rows == again.rows == tramfl.simulate("digits-3", policy="random", **keys).rows
    assert RunFolder(tmp_path / "b").scenario().method == "steady"


def test_keys_that_a_method_sets_are_no_doubt_about_a_comparison(steady: Method, tmp_path: Path) -> None:
    for name in ("steady", "random"):
        tramfl.simulate("digits-3", method=name, rounds=2, train=False, out=tmp_path / name)
    assert doubts(load_runs([tmp_path])) == []


def test_names_that_mean_nothing_and_entries_that_are_no_method_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="there is no method `fast`; choose one of load-aware, random"):
        method_named("fast")
    installed(monkeypatch, ("gone", "no_such_module:METHOD"), ("text", "os:sep"))
    assert method_names()[-2:] == ["gone", "text"]
    with pytest.raises(BadInput, match=r"method `gone`.* cannot be loaded: ModuleNotFoundError"):
        method_named("gone")
    with pytest.raises(BadInput, match=r"method `text`.* cannot be loaded"):
        method_named("text")
    with pytest.raises(BadInput, match="give one of policy and method"):
        tramfl.simulate("digits-3", policy="random", method="random", train=False)

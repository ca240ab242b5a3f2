"""Scenario files: what is written reads back, and whatever is wrong is named in one sentence."""

from __future__ import annotations

import copy
import math
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from tramfl.config import (
    Budget,
    Cost,
    LoadModel,
    Partition,
    Scenario,
    TrainingSettings,
    as_table,
    as_toml,
    override,
    read_toml,
    settings_from,
)
from tramfl.notation import BadInput

UNHURRIED = settings(deadline=None)
"""Two cores are shared: a slow example is no fault."""
POSITIVE = st.floats(0, 1e300, exclude_min=True)
SHARE = st.floats(0, 1, exclude_min=True)
WHOLE = st.integers(1, 10**9)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


SCENARIOS = st.builds(
    Scenario,
    name=TEXT,
    dataset=TEXT,
    policy=TEXT,
    seed=st.integers(0, 2**63),
    variance_limit=st.floats(0, allow_nan=False),
    wait_seconds=POSITIVE,
    partition=st.builds(Partition, layout=TEXT, nodes=optional(WHOLE), alpha=POSITIVE),
    loads=st.builds(
        LoadModel,
        kind=st.sampled_from(["uniform", "constant", "ar1", "replay"]),
        flops=POSITIVE | st.lists(POSITIVE, min_size=1, max_size=4).map(tuple),
        compute_share=st.tuples(SHARE, SHARE),
        trace=optional(TEXT),
    ),
    cost=st.builds(Cost, flops_per_sample=optional(POSITIVE), model_bits=optional(POSITIVE)),
    training=st.builds(
        TrainingSettings, weights=optional(TEXT), image_size=optional(WHOLE), carry_momentum=st.booleans()
    ),
    budget=st.builds(
        Budget,
        targets=st.lists(st.floats(0, 1), max_size=3).map(tuple),
        rounds=optional(WHOLE),
        seconds=optional(POSITIVE),
    ),
)


def complaint(table: dict[str, Any], kind: type[Struct] = Scenario) -> str:
    """The one sentence that a bad table is answered with."""
    with pytest.raises(BadInput) as caught:
        settings_from(table, kind, "mine.toml")
    sentence = str(caught.value)
    assert sentence.startswith("mine.toml: ")
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    return sentence.removeprefix("mine.toml: ")


@UNHURRIED
@given(SCENARIOS)
def test_a_scenario_written_as_toml_reads_back_as_itself(scenario: Scenario) -> None:
    assert settings_from(tomllib.loads(as_toml(scenario)), Scenario, "here") == scenario


def test_an_empty_file_is_the_default_scenario(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.touch()
    assert settings_from(read_toml(file), Scenario, str(file)) == Scenario()


def test_keys_that_are_not_set_are_left_out() -> None:
    table = as_table(Scenario(budget=Budget(rounds=5)))
    assert table["cost"] == {}
    assert table["budget"] == {"targets": (), "metric": "accuracy", "rounds": 5}
    assert "trace" not in table["loads"]
    assert "trace =" not in as_toml(Scenario())


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"polcy": "tram"}, "unknown key `polcy`; did you mean `policy`?"),
        ({"training": {"batchsize": 1}}, "unknown key `training.batchsize`; did you mean `batch_size`?"),
        ({"cost": {"zz": 1}}, "unknown key `cost.zz`; the keys here are flops_per_sample, model_bits."),
        (
            {"loads": {"kind": "gauss"}},
            "key `loads.kind` is 'gauss'; choose one of uniform, constant, heterogeneous, ar1, daily, bursts, trace,"
            " replay.",
        ),
        (
            {"loads": {"prediction": "guess"}},
            "key `loads.prediction` is 'guess'; choose one of oracle, last, ewma, ar1, blend, or give a noise level,"
            " a number of at least 0.",
        ),
        ({"loads": {"kind": 3}}, "key `loads.kind`: expected text in quotes, got a whole number."),
        ({"partition": {"layout": 5}}, "key `partition.layout`: expected text in quotes, got a whole number."),
        ({"seed": -1}, "key `seed`: expected a whole number >= 0."),
        ({"seed": 1.5}, "key `seed`: expected a whole number, got a number."),
        ({"seed": "1"}, "key `seed`: expected a whole number, got text."),
        ({"wait_seconds": 0}, "key `wait_seconds`: expected a number > 0.0."),
        ({"wait_seconds": math.nan}, "key `wait_seconds`: expected a number > 0.0."),
        ({"wait_seconds": math.inf}, "key `wait_seconds`: expected a finite number."),
        ({"variance_limit": -0.5}, "key `variance_limit`: expected a number >= 0.0."),
        ({"partition": {"nodes": 0}}, "key `partition.nodes`: expected a whole number >= 1."),
        ({"partition": 3}, "key `partition`: expected a table, got a whole number."),
        (
            {"training": {"carry_momentum": 1}},
            "key `training.carry_momentum`: expected true or false, got a whole number.",
        ),
        ({"training": {"momentum": 1.0}}, "key `training.momentum`: expected a number < 1.0."),
        ({"budget": {"targets": 0.5}}, "key `budget.targets`: expected a list, got a number."),
        ({"budget": {"targets": [0.5, 70]}}, "key `budget.targets[1]`: expected a number <= 1.0."),
        ({"loads": {"compute_share": [0.1]}}, "key `loads.compute_share`: expected a list of length 2, got 1."),
        ({"loads": {"flops": "fast"}}, "key `loads.flops`: expected a number or a list, got text."),
        ({"loads": {"flops": [1.0, -1.0]}}, "key `loads.flops[1]`: expected a number > 0.0."),
        ({"cost": {"model_bits": True}}, "key `cost.model_bits`: expected a number, got true or false."),
    ],
)
def test_a_bad_key_or_value_is_named_with_what_would_be_right(table: dict[str, Any], sentence: str) -> None:
    assert complaint(table) == sentence


class Site(Struct, forbid_unknown_fields=True):
    address: str
    role: Literal["member", "client"] | None = None

    def __post_init__(self) -> None:
        if self.address == "nowhere":
            raise ValueError("`address` must be somewhere")


class Sites(Struct, forbid_unknown_fields=True):
    sites: tuple[Site, ...] = ()
    by_name: dict[str, Site] | None = None


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"sites": [{}]}, "key `sites[0].address` is missing."),
        ({"sites": [{"address": "a"}, {"adress": "b"}]}, "unknown key `sites[1].adress`; did you mean `address`?"),
        ({"sites": [{"address": "a", "role": "x"}]}, "key `sites[0].role` is 'x'; choose one of member, client."),
        (
            {"by_name": {"q": {"address": "a", "role": "x"}}},
            "key `by_name[...].role` is 'x'; choose one of member, client.",
        ),
        ({"by_name": {"q": {"zz": 1}}}, "unknown key `by_name[...].zz`; the keys here are address, role."),
        ({"sites": [{"address": "nowhere"}]}, "key `sites[0]`: `address` must be somewhere."),
    ],
)
def test_a_fault_inside_lists_and_tables_is_named_by_its_place(table: dict[str, Any], sentence: str) -> None:
    assert complaint(table, Sites) == sentence


def test_something_other_than_a_table_is_answered_with_a_sentence() -> None:
    not_a_table: Any = 3
    assert complaint(not_a_table) == "expected a table, got a whole number."


@pytest.mark.parametrize(
    ("assignment", "changed"),
    [
        ("seed=7", {"seed": 7}),
        ("policy=tram", {"policy": "tram"}),
        ('partition.layout="5"', {"partition": {"layout": "5"}}),
        ("partition.layout = 5", {"partition": {"layout": "5"}}),
        ("training.batch_size = 64", {"training": {"batch_size": 64, "momentum": 0.5}}),
        ("budget.targets=[0.7, 0.9]", {"budget": {"targets": [0.7, 0.9]}}),
        ("a.b.c=true", {"a": {"b": {"c": True}}}),
        ("name=x=y", {"name": "x=y"}),
        ("name=", {"name": ""}),
        ("name=1\nseed=2", {"name": "1\nseed=2"}),
        ("name=[1]", {"name": "[1]"}),
        ("training=3", {"training": 3}),
    ],
)
def test_set_changes_the_key_it_names_and_no_other(assignment: str, changed: dict[str, Any]) -> None:
    table: dict[str, Any] = {"seed": 1, "training": {"momentum": 0.5}}
    before = copy.deepcopy(table)
    assert override(table, assignment) == before | changed
    assert table == before


@pytest.mark.parametrize("assignment", ["seed", "=3", " =3", "training.=3", ".seed=3", "training..momentum=3", ""])
def test_set_without_a_key_and_a_value_says_how_to_write_it(assignment: str) -> None:
    with pytest.raises(
        BadInput, match=r"write it as key=value, for example --set training\.batch_size=64\.$"
    ) as caught:
        override({}, assignment)
    assert f"--set {assignment}: " in str(caught.value)


def test_set_does_not_reach_into_a_plain_value() -> None:
    with pytest.raises(BadInput, match=r"^--set seed\.x=1: `seed` is a value, not a table\.$"):
        override({"seed": 1}, "seed.x=1")


def test_what_set_changed_is_checked_like_the_rest() -> None:
    assert complaint(override({}, "loads.kind=gauss")).startswith("key `loads.kind` is 'gauss'; choose one of")
    assert settings_from(override({}, "seed=4"), Scenario, "here").seed == 4


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seed = = 1", "is not valid TOML: "),
        (b"name = '\xff'", "is not UTF-8 text: "),
        (b"seed = " + b"[" * 5000 + b"]" * 5000, "is not valid TOML: "),
        (None, ": there is no such file."),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "scenario.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_toml(file)
    assert str(caught.value).startswith(str(file))
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be read: Is a directory\.$"):
        read_toml(tmp_path)

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli
from tramfl.record import RunFolder
from tramfl.scheduling.policy import policy_names


def test_every_policy_is_listed_with_what_it_sets(cli: Cli) -> None:
    found = {entry["name"]: entry for entry in json.loads(cli("methods", "--format", "json").out)}
    assert set(policy_names()) <= set(found)
    assert found["random"]["settings"] == {"policy": "random"}
    assert "load-aware" in cli("methods").out


def test_a_policy_played_as_a_method_leaves_the_same_record(cli: Cli, tmp_path: Path) -> None:
    for option in ("policy", "method"):
        cli("run", "digits-3", f"--{option}", "tram", "--no-training", "--rounds", 3, "--out", option, "-q")
    one, other = (RunFolder(tmp_path / option) for option in ("policy", "method"))
    assert one.rows() == other.rows()
    assert one.config.read_text() == other.config.read_text()


def test_methods_are_raced_by_name_and_a_wrong_name_lists_the_right_ones(cli: Cli) -> None:
    done = cli("compare", "--methods", "load-aware,tram", "--seeds", 1, "--no-training", "--rounds", 3, "--jobs", 1)
    assert "tram" in done.out
    cli("compare", "--methods", "load-aware,best").refused("no method `best`", "variance-first")
    cli("compare", "--methods", "random,random").refused("every method once")
    cli("compare", "--methods", "random", "--policies", "random").refused("--policies and --methods")
    cli("run", "--method", "random", "--policy", "random").refused("--policy and --method")

"""A run of which one site is left, and sites that would not train the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.runtime.federations import LocalFederation
from tests.runtime.site.test_frozen import SCENARIO as TUNED_RUN
from tests.runtime.site.test_frozen import TUNED
from tramfl.config import Budget
from tramfl.notation import BadInput
from tramfl.simulation.scenarios import scenario_named

SCENARIO = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000))


def test_a_run_ends_with_its_newest_weights_though_one_site_was_left(tmp_path: Path) -> None:
    short = replace(SCENARIO, budget=Budget(rounds=40))
    with LocalFederation(tmp_path / "f", short, 3, lease_seconds=1.0) as federation:
        federation.begin()
        federation.wait_for_round(2)
        federation.order("pause")
        holder = federation.rest().holder
        assert holder is not None
        left = federation.names[holder]
        others = [name for name in federation.names if name != left]
        for name in others:
            federation.kill(name)
        federation.order("resume")
        federation.wait_until_stopped()
        record = federation.rest()
        model = federation.shown("model to fetch", lambda status: status.model)
        assert (model.round, model.digest) == (record.round, record.weights.digest), "all that there is to fetch"
        federation.start(others[0])
        federation.ready(others[0])
        assert federation.rest().safe.digest == record.weights.digest


def test_sites_that_would_not_train_the_same_do_not_begin(tmp_path: Path) -> None:
    with LocalFederation(tmp_path / "f", SCENARIO, 3) as federation:
        file = federation.site_folder("c") / "federation.toml"
        file.write_text(file.read_text().replace("learning_rate = 0.05", "learning_rate = 0.06"))
        federation.start()
        federation.ready()
        with pytest.raises(BadInput, match=r"training\.learning_rate is .* one federation\.toml"):
            federation.order("start", "run")
        assert federation.answers().record is None


def test_sites_with_other_frozen_weights_do_not_begin(tmp_path: Path) -> None:
    (tmp_path / "tuned_module.py").write_text(TUNED)
    with LocalFederation(tmp_path / "f", TUNED_RUN, 2, environment={"PYTHONPATH": str(tmp_path)}) as federation:
        file = federation.site_folder("b") / "site.toml"
        file.write_text(file.read_text() + 'app = "tuned_module:other"\n')
        federation.start()
        federation.ready()
        federation.wait("sentence about the frozen weights", lambda: is_refused_for_them(federation))


def is_refused_for_them(federation: LocalFederation) -> bool:
    """Whether a start with both sites is refused for their frozen weights; a busy site may first be called away."""
    with pytest.raises(BadInput) as refused:
        federation.start_with(2, "run")
    return re.search("site . differs from . in the frozen weights of its model", str(refused.value)) is not None

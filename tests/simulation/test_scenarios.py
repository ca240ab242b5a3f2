from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tramfl.config import ExchangeSettings
from tramfl.notation import BadInput
from tramfl.simulation.scenarios import (
    LIMITS,
    difference,
    scenario_from,
    scenario_named,
    scenario_names,
    with_tests_every,
)
from tramfl.simulation.setting import scheduling_only


def test_there_are_four_layouts_for_each_of_three_data_sets() -> None:
    assert len(scenario_names()) == len(set(scenario_names())) == 12


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_can_be_scheduled_without_data(name: str) -> None:
    setting = scheduling_only(scenario_named(name))
    assert len(setting.held) == int(name.split("-")[1])
    assert (setting.held.sum(axis=0) > 0).all(), "every label lies somewhere"


def test_the_clock_charges_the_papers_costs() -> None:
    mnist, cifar = scenario_named("mnist-5").cost, scenario_named("cifar10-5").cost
    assert (mnist.flops_per_sample, mnist.model_bits) == (71.57e6, 38.42e6)
    assert (cifar.flops_per_sample, cifar.model_bits) == (10.65e9, 358.38e6)


@pytest.mark.parametrize("name", ["", "digits", "digits-", "digits-4", "mnist5", "MNIST-5"])
def test_a_name_that_is_none_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(BadInput, match=f"no scenario `{name}`; choose one of digits-3"):
        scenario_named(name)


def test_a_runs_own_config_is_a_scenario_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("seed = 5\n[resolved]\nlabels = ['a']\n")
    assert scenario_from(str(tmp_path / "config.toml")).seed == 5


def test_a_difference_names_the_key_and_both_values() -> None:
    scenario = scenario_named("digits-5")
    longer = replace(scenario, budget=replace(scenario.budget, rounds=7))
    assert difference(scenario, scenario) is None
    assert difference(scenario, longer) is None
    assert difference(scenario, longer, ignoring=()) == "`budget.rounds` is not set there and 7 here"
    assert difference(scenario, replace(scenario, seed=2)) == "`seed` is 0 there and 2 here"
    other = replace(scenario, budget=replace(scenario.budget, targets=(0.5,)))
    assert "budget.targets" in (difference(scenario, other) or "")
    assert difference(scenario, other, ignoring=(*LIMITS, "budget.targets")) is None


@pytest.mark.parametrize(
    ("rule", "steps", "every"),
    [
        (None, 8, 1),  # one model travels
        ("gossip", 32, 1),  # 1,024 samples a node and round, more than the distance
        ("gossip", 8, 3),  # 256
        ("cyclic", 2, 15),  # 64
    ],
)
def test_nodes_models_are_tested_after_as_many_samples_at_a_node(rule: str | None, steps: int, every: int) -> None:
    exchange = ExchangeSettings(rule=rule, local_steps=steps)
    scenario = replace(scenario_named("mnist-5"), exchange=exchange)
    assert with_tests_every(scenario, 1000).evaluation.every == every
    assert with_tests_every(scenario, None) == scenario

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.record.test_rows import row
from tramfl.record import RowWriter, RunFolder
from tramfl.simulation.reference import IMAGENET_ACCURACY, REFERENCE_SAMPLES, iid_reference, own_targets, with_targets
from tramfl.simulation.scenarios import scenario_named


def test_the_run_that_sets_targets_is_the_same_for_layouts_and_budgets_of_any_kind() -> None:
    few, many = (scenario_named(f"cifar10-{layout}") for layout in ("3", "10"))
    few = replace(few, budget=replace(few.budget, samples=77))
    assert iid_reference(few) == iid_reference(many)
    assert iid_reference(few).name == "cifar10-iid"
    assert iid_reference(few).budget.samples == REFERENCE_SAMPLES
    assert iid_reference(few).training == few.training


def test_targets_are_in_proportion_to_the_last_tests_of_the_reference_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    writer = RowWriter(tmp_path / "rounds.jsonl")
    for number, accuracy in enumerate((0.99, 0.4, 0.4, 0.5, None, 0.6, 0.6), 1):
        writer.write(replace(row(number), test_accuracy=accuracy))
    writer.close()
    reached = 0.5
    expected = [round(reached * target / IMAGENET_ACCURACY, 2) for target in (0.7, 0.9)]
    assert own_targets(folder, (0.7, 0.9)) == pytest.approx(expected)


def test_a_scenario_keeps_its_own_targets_beside_further_ones() -> None:
    scenario = scenario_named("cifar10-3")
    found = with_targets(scenario, (0.1, scenario.budget.targets[0]))
    assert found.budget.targets == (0.1, *sorted(scenario.budget.targets))
    assert replace(found, budget=scenario.budget) == scenario

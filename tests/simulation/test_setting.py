from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tramfl.config import Cost, Partition
from tramfl.learning.data.partition import LABEL_COUNTS
from tramfl.notation import BadInput
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import held_by_nodes, scheduling_only, with_training

DIGITS = scenario_named("digits-5-uneven")


def test_a_schedule_and_a_training_run_start_from_the_same_stock() -> None:
    setting, learner = with_training(DIGITS, threads=1)
    assert np.array_equal(setting.held, scheduling_only(DIGITS).held)
    assert setting.cost == scheduling_only(DIGITS).cost
    assert setting.initial == learner.initial()


@pytest.mark.parametrize("layout", ["iid", "dirichlet", "shard", "pathological"])
def test_other_layouts_are_divided_by_the_seed_alone(layout: str) -> None:
    scenario = replace(scenario_named("mnist-5"), partition=Partition(layout=layout, nodes=4))
    held = scheduling_only(scenario).held
    assert np.array_equal(held, scheduling_only(scenario).held)
    assert not np.array_equal(held, scheduling_only(replace(scenario, seed=1)).held)
    kept = held.sum(axis=0) / LABEL_COUNTS["mnist"]
    # Two labels at each of four nodes leave some labels to nobody; otherwise all but what is kept aside is there.
    assert all(0.89 < share < 0.91 or (share == 0 and layout == "pathological") for share in kept)


@pytest.mark.parametrize("layout", ["iid", "dirichlet", "shard", "pathological"])
def test_a_schedule_is_planned_on_the_division_that_training_has(layout: str) -> None:
    for seed in (0, 5):
        scenario = replace(DIGITS, seed=seed, partition=Partition(layout=layout, nodes=4))
        trained, _ = with_training(scenario, threads=1)
        held, labels = held_by_nodes(scenario)
        assert np.array_equal(held, trained.held)
        assert np.array_equal(scheduling_only(scenario).held, trained.held)
        assert labels == trained.labels


def test_without_training_unknown_data_and_unknown_costs_are_refused() -> None:
    with pytest.raises(BadInput, match=r"known label counts.*mnist"):
        scheduling_only(replace(DIGITS, dataset="npz:mine.npz"))
    with pytest.raises(BadInput, match=r"cost\.flops_per_sample and cost\.model_bits"):
        scheduling_only(replace(DIGITS, cost=Cost()))

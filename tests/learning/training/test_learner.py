from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tramfl.config import Cost, Evaluation, Partition, Scenario, TrainingSettings
from tramfl.learning.app import App
from tramfl.learning.data.datasets import Dataset
from tramfl.learning.data.partition import LABEL_COUNTS, held_counts
from tramfl.learning.model.weights import from_bytes
from tramfl.learning.training.building import build_learner
from tramfl.learning.training.learner import Learner
from tramfl.notation import BadInput, ModelCost

SCENARIO = Scenario(training=TrainingSettings(learning_rate=0.02), evaluation=Evaluation(subset=200))


def an_allotment(learner: Learner, node: int, most: int = 12) -> tuple[int, ...]:
    return tuple(int(n) for n in np.minimum(learner.held[node], most))


def trained(learner: Learner, rounds: int, digest: str | None = None, start: int = 1) -> str:
    digest = digest or learner.initial()
    for round in range(start, start + rounds):
        node = round % len(learner.held)
        digest = learner.train(node, digest, an_allotment(learner, node), round)
    return digest


@pytest.fixture
def learner() -> Learner:
    return build_learner(SCENARIO)


def test_a_learner_holds_what_was_planned_without_data(learner: Learner) -> None:
    np.testing.assert_array_equal(learner.held, held_counts(LABEL_COUNTS["digits"], SCENARIO.partition))
    assert learner.cost == ModelCost(20_224.0, 153_920.0)


def test_digits_are_learnt_to_ninety_percent_in_a_few_thousand_samples(learner: Learner) -> None:
    digest, samples, round = learner.initial(), 0, 0
    accuracy = learner.scores(digest, 0, (0.9,)).test_accuracy or 0.0
    assert accuracy < 0.4
    while accuracy < 0.9 and samples < 7000:
        round += 1
        node = round % 5
        allotment = an_allotment(learner, node, 20)
        samples += sum(allotment)
        digest, parent = learner.train(node, digest, allotment, round), digest
        learner.discard(parent)
        accuracy = learner.scores(digest, node, (0.9,)).test_accuracy or 0.0
    assert accuracy >= 0.9
    assert learner.scores(digest, 0).validation_loss < 0.7  # type: ignore[operator]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    def run(seed: int) -> bytes:
        learner = build_learner(Scenario(seed=seed))
        return learner.weights(trained(learner, 6))

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("carry", [False, True])
def test_a_resumed_run_equals_one_that_was_never_interrupted(carry: bool) -> None:
    scenario = Scenario(training=TrainingSettings(learning_rate=0.02, carry_momentum=carry))
    through = build_learner(scenario)
    middle = trained(through, 5)
    content, drawn = through.weights(middle), through.drawn(middle)
    expected = through.weights(trained(through, 5, middle, start=6))

    resumed = build_learner(scenario)
    digest = resumed.restore(content, drawn.tolist())
    assert resumed.weights(digest) == content
    assert resumed.weights(trained(resumed, 5, digest, start=6)) == expected


def test_a_round_done_again_gives_the_same_model_and_a_lost_branch_leaves_no_trace(learner: Learner) -> None:
    parent = trained(learner, 3)
    allotment = an_allotment(learner, 2)
    first = learner.train(2, parent, allotment, 4)
    content = learner.weights(first)
    lost = learner.train(3, first, an_allotment(learner, 3), 5)
    learner.discard(first)
    learner.discard(lost)
    assert learner.weights(learner.train(2, parent, allotment, 4)) == content


def test_what_was_drawn_belongs_to_the_model_not_to_the_learner(learner: Learner) -> None:
    child = learner.train(0, learner.initial(), an_allotment(learner, 0), 1)
    learner.train(0, learner.initial(), an_allotment(learner, 0, 3), 1)
    assert tuple(learner.drawn(child)[0]) == an_allotment(learner, 0)
    assert learner.drawn(child)[1:].sum() == 0
    assert learner.drawn(learner.initial()).sum() == 0


def test_a_discarded_model_is_gone_and_the_initial_one_never(learner: Learner) -> None:
    digest = trained(learner, 1)
    learner.discard(digest)
    learner.discard(learner.initial())
    with pytest.raises(KeyError, match="discarded or never trained"):
        learner.weights(digest)
    assert len(from_bytes(learner.weights(learner.initial()))) == 4


def test_carried_momentum_travels_with_the_weights_and_can_be_left_out() -> None:
    learner = build_learner(Scenario(training=TrainingSettings(carry_momentum=True)))
    assert learner.cost.model_bits == 2 * 153_920
    digest = trained(learner, 2)
    assert len(from_bytes(learner.weights(digest))) == 8
    assert len(from_bytes(learner.weights(digest, with_optimizer=False))) == 4


def test_a_model_of_another_run_is_refused(learner: Learner) -> None:
    other = build_learner(Scenario(partition=Partition(layout="3")))
    content = other.weights(other.initial())
    with pytest.raises(BadInput, match=r"drawn counts are \(3, 10\), and the run has \(5, 10\)"):
        learner.restore(content, other.drawn(other.initial()))
    with pytest.raises(BadInput, match="the saved model cannot be read as safetensors"):
        learner.restore(content[:-1], learner.drawn(learner.initial()))


def test_scoring_between_rounds_changes_nothing(learner: Learner) -> None:
    quiet = build_learner(SCENARIO)
    digest = learner.initial()
    for round in range(1, 5):
        digest = trained(learner, 1, digest, start=round)
        learner.scores(digest, 1, (0.1,))
    assert learner.weights(digest) == quiet.weights(trained(quiet, 4))


def test_the_scenario_may_charge_another_cost() -> None:
    learner = build_learner(Scenario(cost=Cost(flops_per_sample=7e9)))
    assert learner.cost == ModelCost(7e9, 153_920.0)


def test_the_users_own_data_and_network_take_the_place_of_the_scenarios() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 50)
    images = (rng.random((200, 2, 5, 5)) + labels[:, None, None, None]).astype(np.float32)
    data = Dataset.from_arrays("own", images, labels, images, labels)
    scenario = Scenario(
        partition=Partition(layout="dirichlet", nodes=3, validation_share=0),
        training=TrainingSettings(learning_rate=0.05, image_size=6),
    )

    def factory(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
        assert (classes, input_shape) == (4, (2, 6, 6))
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 4))

    learner = build_learner(scenario, app=App(model=factory, data=data))
    assert learner.held.shape == (3, 4)
    assert learner.held.sum() == 200
    digest = trained(learner, 3)
    assert learner.scores(digest, 0).validation_loss is None
    again = build_learner(scenario, app=App(model=factory, data=data))
    assert again.weights(trained(again, 3)) == learner.weights(digest)


def test_a_scenario_starts_from_a_file_of_weights(tmp_path: Path, learner: Learner) -> None:
    path = tmp_path / "model.safetensors"
    content = learner.weights(trained(learner, 2))
    path.write_bytes(content)
    started = build_learner(Scenario(training=TrainingSettings(weights=str(path)), seed=5))
    assert started.weights(started.initial()) == content
    torch.save(from_bytes(content), tmp_path / "model.pth")
    started = build_learner(Scenario(training=TrainingSettings(weights=str(tmp_path / "model.pth"))))
    assert started.weights(started.initial()) == content

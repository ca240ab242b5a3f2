from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tramfl.config import Codec, Cost, Evaluation, Scenario, TrainingSettings, Transit
from tramfl.learning.model.codec import DITHER_BYTES, coded_bytes
from tramfl.learning.model.coded_files import SCALES
from tramfl.learning.model.weights import from_bytes
from tramfl.learning.training.building import build_learner
from tramfl.notation import BadInput

from .test_learner import an_allotment, trained

SCENARIO = Scenario(training=TrainingSettings(learning_rate=0.02), evaluation=Evaluation(subset=200))
SMALLER: tuple[Codec, ...] = ("float16", "int8", "int4")


def coded(codec: Codec, carry: bool = False) -> Scenario:
    training = replace(SCENARIO.training, carry_optimizer=carry)
    return replace(SCENARIO, transit=Transit(codec=codec), training=training)


@pytest.mark.parametrize("codec", SMALLER)
def test_the_clock_charges_the_coded_size_of_the_model_or_its_share_of_the_papers(codec: Codec) -> None:
    tensors = coded_bytes((64, 64), codec) + coded_bytes((10, 64), codec) + 4 * (64 + 10) + DITHER_BYTES
    assert build_learner(coded(codec)).cost.model_bits == 8 * tensors
    given = replace(coded(codec), cost=Cost(model_bits=1e6))
    assert build_learner(given).cost.model_bits == 1e6 * (8 * tensors / 153_920)


@pytest.mark.parametrize("codec", SMALLER)
def test_the_next_node_trains_what_it_decodes(codec: Codec) -> None:
    plain, learner = build_learner(SCENARIO), build_learner(coded(codec))
    exact, rounded = from_bytes(plain.weights(trained(plain, 1))), from_bytes(learner.weights(trained(learner, 1)))
    first = from_bytes(plain.weights(plain.initial()))
    steps = {"float16": 1024, "int8": 255, "int4": 15}[codec]
    for name in exact:
        if exact[name].ndim == 1:
            assert torch.equal(rounded[name], exact[name])
            continue
        assert not torch.equal(rounded[name], exact[name])
        change = (exact[name] - first[name]).abs().amax(dim=1, keepdim=True)
        assert ((rounded[name] - exact[name]).abs() <= 1.001 * change / steps + 1e-7).all()


@pytest.mark.parametrize("codec", SMALLER)
@pytest.mark.parametrize("carry", [False, True])
def test_a_resumed_coded_run_equals_one_that_was_never_interrupted(codec: Codec, carry: bool) -> None:
    scenario = coded(codec, carry)
    through = build_learner(scenario)
    middle = trained(through, 5)
    content, drawn = through.weights(middle), through.drawn(middle)
    expected = through.weights(trained(through, 5, middle, start=6))
    resumed = build_learner(scenario)
    assert resumed.weights(trained(resumed, 5, resumed.restore(content, drawn), start=6)) == expected


def test_carried_optimiser_state_goes_through_the_codec() -> None:
    plain, learner = build_learner(replace(SCENARIO, training=coded("int4", True).training)), None
    learner = build_learner(coded("int4", True))
    assert learner.cost.model_bits < 0.16 * plain.cost.model_bits
    file = from_bytes(learner.coded_weights(trained(learner, 1), "0" * 64, {}))
    state = {name for name, tensor in file.items() if name.startswith("optimizer/") and tensor.dtype == torch.uint8}
    assert {name: file[name].numel() for name in state} == {
        "optimizer/0/fc1.weight/momentum_buffer": 64 * 64 // 2,
        "optimizer/0/fc2.weight/momentum_buffer": 10 * 64 // 2,
    }
    assert all(SCALES + name in file for name in state)


def test_eight_bits_learn_like_thirty_two() -> None:
    def accuracy(scenario: Scenario) -> float:
        learner = build_learner(scenario)
        digest = learner.initial()
        for round_ in range(1, 41):
            node = round_ % len(learner.held)
            digest = learner.train(node, digest, an_allotment(learner, node, 20), round_)
        return learner.scores(digest, 0, (1.0,)).test_accuracy or 0.0

    assert abs(accuracy(coded("int8")) - accuracy(SCENARIO)) < 0.02


def test_a_diverged_model_cannot_be_coded_and_the_sentence_says_why() -> None:
    scenario = replace(coded("int4"), training=TrainingSettings(learning_rate=1e20))
    learner = build_learner(scenario)
    with pytest.warns(UserWarning, match="training loss"), pytest.raises(BadInput, match="learning rate"):
        trained(learner, 2)

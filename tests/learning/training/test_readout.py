from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tramfl.config import Evaluation, ReadOut, Scenario, TrainingSettings, Transit
from tramfl.learning.app import App
from tramfl.learning.model.weights import from_bytes
from tramfl.learning.training.building import build_learner
from tramfl.learning.training.learner import Learner
from tramfl.learning.training.readout import Passed, Seen, mean

from .test_learner import an_allotment, trained

SCENARIO = Scenario(training=TrainingSettings(learning_rate=0.02), evaluation=Evaluation(subset=200))


def learner_with(readout: ReadOut) -> Learner:
    return build_learner(replace(SCENARIO, evaluation=replace(SCENARIO.evaluation, readout=readout)))


def seen(value: float, used: int = 0) -> Seen:
    return Seen([torch.tensor([value])], used)


def test_a_visit_is_the_mean_of_what_came_and_what_leaves_however_many_rounds_it_lasts() -> None:
    first, passed = Passed().after(0, seen(0.0), seen(2.0), "visit")
    second, passed = passed.after(0, seen(2.0), seen(6.0), "visit")
    third, passed = passed.after(1, seen(6.0), seen(8.0), "visit")
    assert [first[0].item(), second[0].item(), third[0].item()] == [1.0, 3.0, 7.0]


def test_an_average_halves_what_the_node_saw_before_and_nothing_of_other_nodes() -> None:
    _, passed = Passed().after(0, seen(0.0, 1000), seen(2.0, 1010), "average")
    elsewhere, passed = passed.after(1, seen(2.0, 1010), seen(4.0, 1020), "average")
    back, passed = passed.after(0, seen(4.0, 1020), seen(6.0, 1030), "average")
    assert elsewhere[0].item() == 3.0
    assert back[0].item() == (1.0 + 5.0) / 2


def test_an_average_leaves_out_w_0_and_counts_little_of_a_much_younger_run() -> None:
    first, passed = Passed().after(0, seen(0.0, 0), seen(8.0, 100), "average")
    assert first[0].item() == 8.0, "w_0 has learnt nothing"
    elsewhere, passed = passed.after(1, seen(8.0, 100), seen(16.0, 300), "average")
    assert elsewhere[0].item() == 14.0, "with a third of the samples used by then, the share is a quarter"
    back, passed = passed.after(0, seen(16.0, 300), seen(20.0, 500), "average")
    assert back[0].item() == 18.0 * 7 / 8 + 8.0 / 8, "the mean of a run a fifth as old has the share of an eighth"


def test_whole_numbers_are_those_of_the_newest_weights() -> None:
    (found,) = mean([torch.tensor(3)], [torch.tensor(8)])
    assert found == 8


@pytest.mark.parametrize("readout", ["visit", "average"])
def test_the_mean_is_tested_and_delivered_and_training_goes_on_from_the_newest(readout: ReadOut) -> None:
    plain, learner = learner_with("last"), learner_with(readout)
    last, digest = trained(plain, 6), trained(learner, 6)
    assert learner.drawn(digest).tolist() == plain.drawn(last).tolist()
    newest = from_bytes(plain.weights(last))
    assert all(torch.equal(from_bytes(learner.weights(digest))[name], newest[name]) for name in newest)
    delivered = from_bytes(learner.delivered(digest))
    assert delivered.keys() == newest.keys()
    assert not any(torch.equal(delivered[name], newest[name]) for name in newest)
    assert all(torch.equal(t, delivered[name]) for name, t in learner.module(digest).state_dict().items())
    assert learner.scores(digest, 0).test_loss != plain.scores(last, 0).test_loss
    # The test left no trace in what is trained next.
    after = from_bytes(learner.weights(trained(learner, 1, digest, start=7)))
    expected = from_bytes(plain.weights(trained(plain, 1, last, start=7)))
    assert all(torch.equal(after[name], expected[name]) for name in expected)


@pytest.mark.parametrize("readout", ["visit", "average"])
def test_a_restored_model_remembers_what_passed(readout: ReadOut) -> None:
    through = learner_with(readout)
    middle = trained(through, 7)
    content, drawn = through.weights(middle), through.drawn(middle)
    # A lost branch must leave no trace either.
    trained(through, 2, middle, start=20)
    expected = trained(through, 6, middle, start=8)
    resumed = learner_with(readout)
    digest = trained(resumed, 6, resumed.restore(content, drawn), start=8)
    assert resumed.delivered(digest) == through.delivered(expected)
    assert resumed.weights(digest) == through.weights(expected)


def test_batch_norm_of_a_mean_has_the_mean_of_the_statistics_and_never_a_negative_variance() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))

    scenario = replace(SCENARIO, evaluation=Evaluation(subset=300, readout="average"))
    learner = build_learner(scenario, app=App(model=network))
    newest = build_learner(replace(scenario, evaluation=Evaluation(subset=300)), app=App(model=network))
    first, second = trained(learner, 1), trained(newest, 1)
    before, first, second = first, trained(learner, 1, first, start=2), trained(newest, 1, second, start=2)
    received, left = learner.weights(before, with_passed=False), newest.weights(second)
    after, found = from_bytes(left), from_bytes(learner.delivered(first))
    for name in ("2.running_mean", "2.running_var"):
        assert torch.equal(found[name], (from_bytes(received)[name] + after[name]) / 2)
    assert found["2.num_batches_tracked"] == after["2.num_batches_tracked"]
    digest = first
    for round_ in range(2, 60):
        node = round_ % len(learner.held)
        digest = learner.train(node, digest, an_allotment(learner, node, 30), round_)
    assert (from_bytes(learner.delivered(digest))["2.running_var"] > 0).all()
    accuracy = learner.scores(digest, 0).test_accuracy
    assert accuracy is not None
    assert accuracy > 0.8


def test_a_coded_run_tests_the_mean_of_decoded_weights() -> None:
    coded = replace(SCENARIO, transit=Transit(codec="int4"), evaluation=Evaluation(subset=200, readout="visit"))
    learner = build_learner(coded)
    digest = trained(learner, 1)
    before, after = from_bytes(learner.weights(learner.initial())), from_bytes(learner.weights(digest))
    delivered = from_bytes(learner.delivered(digest))
    assert all(torch.equal(delivered[name], (before[name] + after[name]) / 2) for name in before)

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tramfl.config import TrainingSettings
from tramfl.learning.app import App
from tramfl.learning.data.parts import Arrays
from tramfl.learning.training.evaluation import Aim, Evaluator
from tramfl.learning.training.metrics import METRICS, metrics_of, value_of
from tramfl.learning.training.samples import ArraySamples
from tramfl.learning.training.task import Task
from tramfl.notation import BadInput

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.0, 0.0, 4.0]])
TARGETS = torch.tensor([0, 1, 2, 2])


def of(name: str, outputs: Tensor, targets: Tensor) -> float | None:
    return value_of(name, METRICS[name], outputs, targets)


def test_known_metrics_of_three_classes() -> None:
    assert of("accuracy", LOGITS, TARGETS) == 0.75
    assert of("f1", LOGITS, TARGETS) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert of("auroc", LOGITS, TARGETS) == pytest.approx(1.0, abs=0.2)


def test_known_metrics_of_scores_and_of_several_labels_at_once() -> None:
    scores, binary = torch.tensor([-1.0, 0.5, 2.0, -3.0]), torch.tensor([0, 1, 1, 0])
    for outputs in (scores, scores[:, None], torch.stack((-scores, scores), 1)):
        assert of("auroc", outputs, binary) == 1.0
        assert of("accuracy", outputs, binary) == 1.0
    several = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
    assert of("f1", several, (several > 0).float()) == 1.0
    assert of("auroc", several, (several > 0).float()) == 1.0


def test_known_metrics_of_numbers() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 2.0])
    assert of("mae", outputs, targets) == pytest.approx(2 / 3)
    assert of("rmse", outputs, targets) == pytest.approx(math.sqrt(4 / 3))
    with pytest.raises(BadInput, match=r"metric 'mae' cannot be computed \(outputs of \(3, 2\)"):
        of("mae", torch.zeros(3, 2), targets)


def test_a_metric_that_is_not_defined_is_none() -> None:
    assert of("auroc", LOGITS[:1, :2], TARGETS[:1]) is None


def test_metrics_come_by_name_or_as_functions() -> None:
    def largest(outputs: Any, targets: Any) -> float:
        return float(outputs.max())

    found = metrics_of(["mae"], {"largest": largest, "area": "auroc"})
    assert list(found) == ["largest", "area", "mae"]
    assert found["area"] is METRICS["auroc"]
    assert list(metrics_of((), ["f1", largest])) == ["f1", "largest"]
    with pytest.raises(BadInput, match="there is no metric 'bleu': use accuracy, f1, auroc"):
        metrics_of(["bleu"], None)


class Offset(nn.Module):
    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :1] + self.offset


@pytest.mark.parametrize(("offset", "seen"), [(0.0, 5000), (0.44, 5000), (3.0, 500)])
def test_the_full_test_set_confirms_a_target_that_is_better_when_lower(offset: float, seen: int) -> None:
    inputs = np.random.default_rng(0).normal(size=(5000, 2))
    targets = inputs[:, 0] + np.random.default_rng(1).normal(size=5000) * 0.1
    task = Task(TrainingSettings(), App(loss=lambda o, t: functional.mse_loss(o[:, 0], t)))
    evaluator = Evaluator(
        ArraySamples(Arrays(inputs, targets), torch.device("cpu")),
        subset=500,
        task=task,
        metrics=metrics_of(["mae"], None),
        aim=Aim("mae", "lower"),
    )
    score = evaluator.test(Offset(offset), (0.45, 0.2))
    assert score.samples == seen
    assert score.accuracy is None
    assert score.metrics["mae"] == pytest.approx(max(offset, 0.08), abs=0.02)
    assert score.loss == pytest.approx(offset**2 + 0.01, abs=0.05)

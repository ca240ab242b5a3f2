"""What training changes travels; the rest stays, and must be the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tramfl.config import Partition, Scenario
from tramfl.learning.app import App
from tramfl.learning.data.own import Data
from tramfl.learning.model.travelling import digest_of_rest, travelling_names
from tramfl.learning.model.weights import from_bytes
from tramfl.learning.training.building import build_learner
from tramfl.learning.training.learner import Learner
from tramfl.notation import BadInput

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(60, 3, 8, 8)).astype(np.float32), np.arange(60) % 3
DATA = Data((IMAGES, LABELS), (IMAGES, LABELS))


class Tuned(nn.Module):
    """A frozen backbone with batch norm and a mask, and a head that is trained."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        self.backbone.register_buffer("mask", torch.ones(216))
        self.head = nn.Linear(216, 3)
        self.norm = nn.BatchNorm1d(3)
        for weight in self.backbone.parameters():
            weight.data.mul_(scale)
            weight.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.norm(self.head(self.backbone(images) * self.backbone.get_buffer("mask")))
        return logits


class Careless(Tuned):
    """Counts its calls in a buffer of the frozen part."""

    def forward(self, images: Tensor) -> Tensor:
        self.backbone.get_buffer("mask").add_(0)
        return super().forward(images)


def learner(model: object) -> Learner:
    return build_learner(Scenario(partition=Partition(layout="iid", nodes=2)), app=App(model=model, data=DATA))


HEAD = {
    "head.weight": (3, 216),
    "head.bias": (3,),
    "norm.weight": (3,),
    "norm.bias": (3,),
    "norm.running_mean": (3,),
    "norm.running_var": (3,),
    "norm.num_batches_tracked": (),
}


def test_only_what_training_changes_is_written_and_charged() -> None:
    made = learner(Tuned)
    digest = made.train(0, made.initial(), tuple(made.held[0].tolist()), 1)
    written = from_bytes(made.weights(digest))
    assert {name: tuple(tensor.shape) for name, tensor in written.items()} == HEAD
    assert made.cost.model_bits == 8 * sum(tensor.nbytes for tensor in written.values())
    whole = learner(lambda: Tuned().requires_grad_(True))
    assert made.cost.flops_per_sample < whole.cost.flops_per_sample
    assert whole.base is None


def test_the_frozen_part_stays_as_it_was_statistics_included() -> None:
    made = learner(Tuned)
    before = {name: tensor.clone() for name, tensor in made._network.state_dict().items()}
    made.train(0, made.initial(), tuple(made.held[0].tolist()), 1)
    changed = {name for name, t in made._network.state_dict().items() if not torch.equal(t, before[name])}
    assert changed >= {"head.weight", "norm.running_mean"}
    assert changed <= HEAD.keys()


def test_a_frozen_part_that_changes_all_the_same_is_refused_by_name() -> None:
    made = learner(Careless)
    with pytest.raises(BadInput, match=r"training changed backbone\.mask, which belongs to a frozen part"):
        made.train(0, made.initial(), tuple(made.held[0].tolist()), 1)


def test_weights_for_another_frozen_part_are_refused() -> None:
    one, other = learner(Tuned), learner(lambda: Tuned(2.0))
    assert one.base != other.base
    with pytest.raises(BadInput, match="it belongs to another frozen part"):
        other.restore(one.weights(one.initial()), one.drawn(one.initial()))


def test_without_a_frozen_part_everything_travels() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert travelling_names(network) == tuple(network.state_dict())
    assert digest_of_rest(network, travelling_names(network)) is None
    held = travelling_names(network, frozen_statistics=True)
    assert held == ("0.weight", "0.bias", "1.weight", "1.bias")

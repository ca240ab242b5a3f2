from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tramfl.learning.model.cost import bits_of, flops_per_sample
from tramfl.learning.model.networks import build_network
from tramfl.notation import BadInput


@pytest.mark.parametrize(
    ("name", "shape", "mega_flops", "mega_bits"),
    [("mnist-cnn", (1, 28, 28), 71.57, 38.40), ("resnet18", (3, 224, 224), 10_645.4, 358.1)],
)
def test_m_and_d_m_are_those_of_the_paper(
    name: str, shape: tuple[int, int, int], mega_flops: float, mega_bits: float
) -> None:
    network = build_network(name, classes=10, input_shape=shape, seed=0)
    flops = flops_per_sample(network, torch.zeros(1, *shape))
    assert flops / 1e6 == pytest.approx(mega_flops, abs=0.05)
    assert bits_of(network.state_dict().values()) / 1e6 == pytest.approx(mega_bits, abs=0.05)
    # The paper rounds to 71.57 MFLOP and 10.65 GFLOP; its sizes include a container.
    assert round(flops / 1e9, 2) in (0.07, 10.65)


class Reader(nn.Module):
    """What a network for text is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 16)
        self.attention = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.memory = nn.LSTM(16, 8, batch_first=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.memory(self.attention(self.words(words)))[0]
        return found


class Branching(nn.Module):
    """An operation with branches, of which torch counts the larger."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.cond(x.sum() > 0, lambda y: y @ y.T, lambda y: y.clone() @ y.T, (x,))
        found: torch.Tensor = self.layer(x) * chosen.sum()
        return found


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (Reader(), torch.zeros(1, 5, dtype=torch.long)),
        (nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 3, 2)), torch.zeros(1, 1, 5, 5)),
        (Branching(), torch.ones(1, 4)),
    ],
    ids=["text", "images", "branches"],
)
def test_the_count_is_that_of_torchs_own_counter(network: nn.Module, inputs: torch.Tensor) -> None:
    with FlopCounterMode(display=False) as counter:
        network.eval()(inputs).sum().backward()
    network.zero_grad()
    assert flops_per_sample(network, inputs) == counter.get_total_flops() > 0


def test_counting_leaves_the_network_as_it_was() -> None:
    network = build_network("resnet18", classes=10, input_shape=(3, 32, 32), seed=0).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    flops_per_sample(network, torch.zeros(1, 3, 32, 32))
    assert network.training
    assert all(weight.grad is None for weight in network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_a_network_without_countable_work_asks_for_a_number() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) * self.factor

    with pytest.raises(BadInput, match=r"give cost\.flops_per_sample"):
        flops_per_sample(Scale(), torch.zeros(1, 1, 2, 2))

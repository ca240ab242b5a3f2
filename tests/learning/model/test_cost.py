from __future__ import annotations

import pytest
import torch
from torch import nn

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

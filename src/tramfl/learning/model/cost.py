"""What a network costs to train and to send: M and D_M, computed from the network itself.

Imports notation and torch.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tramfl.notation import BadInput, ModelCost


def model_cost(network: nn.Module, input_shape: tuple[int, int, int], *, carry_momentum: bool = False) -> ModelCost:
    """M and D_M of a network."""
    bits = model_bits(network, carry_momentum=carry_momentum)
    return ModelCost(flops_per_sample(network, input_shape), bits)


def model_bits(network: nn.Module, *, carry_momentum: bool = False) -> float:
    """D_M: bits of the weights; carried momentum is one more number for each weight that is trained."""
    state = sum(tensor.nbytes for tensor in network.state_dict().values())
    momentum = sum(weight.nbytes for weight in network.parameters() if weight.requires_grad)
    return float(8 * (state + carry_momentum * momentum))


def flops_per_sample(network: nn.Module, input_shape: tuple[int, int, int]) -> float:
    """M: FLOPs of forward plus backward for one sample; the network itself stays untouched."""
    # In evaluation mode: batch norm refuses a single sample otherwise, and neither it nor dropout is counted.
    twin = copy.deepcopy(network).eval()
    image = torch.zeros(1, *input_shape, device=next(twin.parameters()).device)
    with FlopCounterMode(display=False) as counter:
        twin(image).sum().backward()
    flops = counter.get_total_flops()
    if flops == 0:
        raise BadInput("The network has no operation that torch counts: give cost.flops_per_sample.")
    return float(flops)

"""What a network costs to train and to send: M and D_M, computed from the network itself."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tramfl.learning.model.networks import outputs_of
from tramfl.notation import BadInput


def bits_of(tensors: Iterable[Tensor]) -> float:
    """D_M: the bits of the tensors that travel."""
    return float(8 * sum(tensor.nbytes for tensor in tensors))


def flops_per_sample(network: nn.Module, inputs: Any) -> float:
    """M: FLOPs of forward plus backward for `inputs`, a batch of one sample; the network itself stays untouched."""
    # In evaluation mode: batch norm refuses a single sample otherwise, and neither it nor dropout is counted.
    twin = copy.deepcopy(network).eval()
    try:
        with FlopCounterMode(display=False) as counter:
            total = sum((output.sum() for output in _tensors(outputs_of(twin, inputs))), torch.zeros(()))
            total.backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"The cost of the network cannot be counted ({first}): give cost.flops_per_sample.") from error
    flops = counter.get_total_flops()
    if flops == 0:
        raise BadInput("The network has no operation that torch counts: give cost.flops_per_sample.")
    return float(flops)


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """Every tensor of real numbers that gradients can come from."""
    if isinstance(outputs, Tensor):
        if outputs.requires_grad:
            yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, tuple | list):
        for value in outputs:
            yield from _tensors(value)

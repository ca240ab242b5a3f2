"""What a network costs to train and to send: M and D_M, computed from the network itself."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

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
        flops = _counted(twin, inputs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"The cost of the network cannot be counted ({first}): give cost.flops_per_sample.") from error
    if flops == 0:
        raise BadInput("The network has no operation that torch counts: give cost.flops_per_sample.")
    return float(flops)


def _counted(network: nn.Module, inputs: Any) -> int:
    try:
        counter = _Counter()
        with counter:
            _there_and_back(network, inputs)
        return counter.flops
    except NotImplementedError:  # torch's own counter also knows operations that have branches
        with FlopCounterMode(display=False) as slower:
            _there_and_back(network, inputs)
        return int(slower.get_total_flops())


def _there_and_back(network: nn.Module, inputs: Any) -> None:
    total = sum((output.sum() for output in _tensors(outputs_of(network, inputs))), torch.zeros(()))
    total.backward()  # type: ignore[no-untyped-call]


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what torch's formulas give for each operation.

    As FlopCounterMode does, which first imports torch's compiler: that takes nearly as long as torch itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: without this, torch has the compiler leave `__torch_dispatch__` alone."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out one operation, or those that it is made of."""
        given = kwargs or {}
        with self:
            parts = func.decompose(*args, **given)
        if parts is not NotImplemented:
            return parts
        result = func(*args, **given)
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.flops += formula(*args, **given, out_val=result)
        return result


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

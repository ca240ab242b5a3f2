"""What of a network travels: what training changes. The rest, such as a frozen backbone, stays at the sites.

Trained weights travel, and so do buffers (batch norm's statistics), except those of a module whose weights are all
frozen. What stays must be the same everywhere: sites compare its digest before a run begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tramfl.learning.model.weights import digest, to_bytes
from tramfl.notation import Digest


def travelling_names(network: nn.Module, *, frozen_statistics: bool = False) -> tuple[str, ...]:
    """The names in the network's state that travel, in its order."""
    frozen = {name for name, weight in network.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    staying = frozen | {name for name, _ in network.named_buffers() if _stays(network, name, frozen_statistics)}
    return tuple(name for name in network.state_dict() if name not in staying)


def digest_of_rest(network: nn.Module, travelling: Sequence[str]) -> Digest | None:
    """SHA-256 of what stays at the sites; None where everything travels."""
    rest = {name: tensor for name, tensor in network.state_dict().items() if name not in set(travelling)}
    return digest(to_bytes(rest)) if rest else None


def versions(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """PyTorch counts the changes of a tensor; equal counts mean that nothing was changed."""
    return tuple(tensor._version for tensor in tensors)


def _stays(network: nn.Module, buffer: str, frozen_statistics: bool) -> bool:
    """Whether a buffer belongs to a frozen part: the innermost module around it with weights has no trained one."""
    path = buffer.split(".")[:-1]
    owner = network.get_submodule(".".join(path))
    if frozen_statistics and isinstance(owner, _BatchNorm):
        return True
    while True:
        weights = list(network.get_submodule(".".join(path)).parameters())
        if weights or not path:
            return bool(weights) and not any(weight.requires_grad for weight in weights)
        path.pop()

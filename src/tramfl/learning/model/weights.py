"""Weights as safetensors: the same weights give the same bytes, and nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from tramfl.learning.model.coded_files import Raw
from tramfl.learning.model.coded_files import in_pieces as written_pieces
from tramfl.notation import BadInput, Digest

State = dict[str, Tensor]


def to_bytes(state: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """A state dict as safetensors; equal weights give equal bytes, whatever their device or layout."""
    plain: State = {}
    storages: set[int] = set()
    for name in sorted(state):
        tensor = state[name].detach().to("cpu").contiguous()
        # Tied weights are written once for each name: safetensors has no aliases.
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    return _in_order(safetensors.torch.save(plain, dict(about) if about else None))


def in_pieces(state: Mapping[str, Tensor], about: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file in pieces to be written one after the other, without a copy of tensors that are on the CPU.

    Equal weights give equal bytes here too, but where types are mixed not those of `to_bytes`: the order differs.
    """
    raw: dict[str, Raw] = {}
    for name, tensor in state.items():
        flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
        raw[name] = Raw(_kind(tensor.dtype), tuple(tensor.shape), flat.data)
    return written_pieces(raw, about)


@cache
def _kind(dtype: torch.dtype) -> str:
    """What safetensors calls a type."""
    content = safetensors.torch.save({"x": torch.empty(0, dtype=dtype)})
    return str(json.loads(content[8:])["x"]["dtype"])


def _in_order(content: bytes) -> bytes:
    """The file with its metadata sorted: safetensors writes them in an order that differs from process to process."""
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    metadata = table.get("__metadata__", {})
    if len(metadata) < 2:
        return content
    table["__metadata__"] = dict(sorted(metadata.items()))
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
    return b"".join([content[:8], header, memoryview(content)[8 + length :]])


def about(content: bytes) -> dict[str, str]:
    """What serialised weights say of themselves."""
    try:
        length = int.from_bytes(content[:8], "little")
        found = dict(json.loads(content[8 : 8 + length]).get("__metadata__", {}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise BadInput("the weights cannot be read as safetensors.") from None
    return found


def from_bytes(content: bytes, source: str = "the weights") -> State:
    """The state dict in safetensors bytes; `source` is what an error speaks of."""
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError) as error:
        raise BadInput(f"{source} cannot be read as safetensors ({error}).") from None


def digest(content: bytes) -> Digest:
    """SHA-256 of serialised weights, in hexadecimal: their name wherever they travel."""
    return hashlib.sha256(content).hexdigest()


def read_file(path: Path) -> State:
    """The state dict in a .safetensors file, or in a PyTorch checkpoint read without running any code."""
    try:
        if path.suffix == ".safetensors":
            return from_bytes(path.read_bytes(), str(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        if isinstance(error, BadInput):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{path} is not a checkpoint of plain weights ({first})") from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
        raise BadInput(f"{path} does not hold a state dict: a table from names to tensors.")
    return dict(found)


def load_into(network: nn.Module, state: Mapping[str, Tensor], source: str = "the weights") -> None:
    """Put `state` into `network` if its names, shapes and types are the network's own."""
    own = network.state_dict()
    check_fit(own, state, source)
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def check_fit(own: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that are not those of a network, or of what of it travels, and name the first difference."""
    if missing := [name for name in own if name not in state]:
        raise BadInput(f"{source}: the network's {_some(missing)} is not in it.")
    if unknown := [name for name in state if name not in own]:
        raise BadInput(f"{source}: the network has no {_some(unknown)}.")
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            raise BadInput(
                f"{source}: {name} has shape {tuple(tensor.shape)}, and the network's has {tuple(own[name].shape)}."
            )
        if tensor.dtype != own[name].dtype:
            raise BadInput(f"{source}: {name} is {tensor.dtype}, and the network's is {own[name].dtype}.")


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"

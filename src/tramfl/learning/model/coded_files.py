"""Coded weights as safetensors files, read and written without PyTorch.

A coded file has the tensors of its reference. Those that `codec.is_coded` are float16, uint8 or packed uint8 under
their own name, with their scales beside them as `transit/scales/NAME`; all others are as they are. `transit/dither`
has the bytes that the dither follows from. Its metadata name the codec and the SHA-256 of the file with the
reference, which is a plain file of weights.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from tramfl.config import Codec
from tramfl.learning.model.codec import Array, Coded, Floats, check_scales, decode, dither, is_coded
from tramfl.notation import BadInput, Digest

SCALES = "transit/scales/"
"""Before the name of a coded tensor: the tensor of its scales."""
DITHER = "transit/dither"
"""The tensor of what the dither of a coded file follows from."""
CODEC, REFERENCE = "codec", "reference"
"""In a coded file's metadata: how it is coded, and the SHA-256 of its reference."""
MADE_WITH, ROUND = "made-with", "round"
"""In the metadata of a read-out: the digest of the weights that it belongs to, and their round."""
PASSED = "readout/"
"""Before the names of what a node remembers to form a mean, among weights."""
_LENGTH = 8
_KINDS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "U8": np.uint8}


class Raw(NamedTuple):
    """A tensor as a file has it."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def is_coded(self) -> bool:
        """Whether a tensor like this one, in a plain file, is coded on its way."""
        return is_coded(self.shape, float32=self.dtype == "F32")

    @property
    def array(self) -> Array:
        """The values, where NumPy has the type."""
        kind = _KINDS.get(self.dtype)
        if kind is None:
            raise BadInput(f"a coded tensor cannot be {self.dtype}.")
        return np.frombuffer(self.data, dtype=kind).reshape(self.shape)


class RawFile(NamedTuple):
    """A safetensors file in memory."""

    tensors: dict[str, Raw]
    about: dict[str, str]

    @classmethod
    def of(cls, content: bytes | mmap.mmap) -> RawFile:
        """The file's parts, without a copy. BadInput where it is not safetensors."""
        try:
            end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
            table, data = json.loads(content[_LENGTH:end]), memoryview(content)[end:]
            about = table.pop("__metadata__", {})
            return cls({name: _raw(entry, data) for name, entry in table.items()}, {**about})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BadInput("the weights cannot be read as safetensors.") from None

    @classmethod
    def at(cls, path: Path) -> RawFile:
        """The file at a path, of which only what is looked at is read. BadInput where it is not safetensors."""
        with path.open("rb") as file:
            return cls.of(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    @property
    def codec(self) -> Codec:
        """How the file is coded. BadInput where this version does not know the codec."""
        named = self.about.get(CODEC, "float32")
        if named not in get_args(Codec):
            raise BadInput(f"the weights are coded as {named[:40]!r}, which this version does not know.")
        return cast(Codec, named)

    @property
    def reference(self) -> Digest | None:
        """SHA-256 of the reference that the file is coded against; None where it is plain."""
        return self.about.get(REFERENCE) if self.codec != "float32" else None


def reference_path(folder: Path, digest: Digest) -> Path:
    """Where a folder of references has the plain file with this digest. BadInput where a peer made the name up."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise BadInput(f"{digest[:64]!r} is not the digest of a reference.")
    return folder / f"{digest}.safetensors"


def check_coded(file: RawFile) -> None:
    """BadInput where a file has scales that no correct site would send; the manifest has checked all shapes."""
    for name, tensor in file.tensors.items():
        if name.startswith(SCALES):
            check_scales(tensor.array)


def decoded_file(content: bytes, reference: bytes) -> bytes:
    """A coded file as the plain file that it stands for. BadInput where the two do not belong together."""
    coded = RawFile.of(content)
    codec = coded.codec
    if codec == "float32":
        return content
    if coded.reference != hashlib.sha256(reference).hexdigest():
        raise BadInput("the weights are coded against another reference than the one given.")
    left = dict(coded.tensors)
    if DITHER not in left:
        raise BadInput("the coded weights do not say which dither they have.")
    v = dither(left.pop(DITHER).array)
    plain = {name: _decoded(name, tensor, left, codec, v) for name, tensor in RawFile.of(reference).tensors.items()}
    if left:
        raise BadInput(f"the coded weights have {min(left)[:60]!r}, which the reference has not.")
    return written(plain, {key: text for key, text in coded.about.items() if key not in (CODEC, REFERENCE)})


def _decoded(name: str, plain: Raw, coded: dict[str, Raw], codec: Codec, v: Floats) -> Raw:
    """One tensor of a file; what is used of `coded` is taken out of it."""
    found, scales = coded.pop(name, None), coded.pop(SCALES + name, None)
    if found is None:
        raise BadInput(f"the coded weights lack {name!r}.")
    if not plain.is_coded:
        if found[:2] != plain[:2] or scales is not None:
            raise BadInput(f"{name!r} is not what it is in the reference.")
        return found
    reference = plain.array
    out = np.empty_like(reference)
    decode(Coded(found.array, None if scales is None else scales.array), reference, codec, v, out)
    return Raw("F32", plain.shape, out.data.cast("B"))


def written(tensors: Mapping[str, Raw], about: Mapping[str, str]) -> bytes:
    """Tensors as a safetensors file."""
    return b"".join(in_pieces(tensors, about))


def in_pieces(tensors: Mapping[str, Raw], about: Mapping[str, str]) -> list[bytes | memoryview]:
    """Tensors as a safetensors file, without a copy of them: what is to be written one after the other."""
    table: dict[str, Any] = {"__metadata__": dict(sorted(about.items()))} if about else {}
    offset = 0
    # Wide types first, so that every tensor begins at a multiple of its type's size.
    order = sorted(tensors, key=lambda name: (-_width(tensors[name]), name))
    for name in order:
        tensor = tensors[name]
        span = [offset, offset + tensor.data.nbytes]
        table[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": span}
        offset = span[1]
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % _LENGTH)
    return [len(header).to_bytes(_LENGTH, "little"), header, *(tensors[name].data for name in order)]


def _width(tensor: Raw) -> int:
    weights = int(np.prod(tensor.shape, dtype=np.int64))
    return tensor.data.nbytes // weights if weights else 1


def _raw(entry: Mapping[str, Any], data: memoryview) -> Raw:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError("offsets beyond the file")
    return Raw(str(entry["dtype"]), tuple(map(int, entry["shape"])), data[begin:end])

"""What a run's model must look like on the wire: names, shapes, dtypes and size, from a safetensors header.

A safetensors file is 8 bytes with the header's length, the header as JSON, and the tensors' bytes back to back. Read
here without torch, and strictly: what could mean two things to two readers is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from tramfl.notation import BadInput

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
SPARE_HEADER_BYTES = 64 << 10
"""How much longer than the run's own header another may be: metadata differ from file to file."""
MAX_NAME_CHARACTERS = 1024
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


class WrongModel(ValueError):
    """These weights are not the run's; the message says why."""


class Tensor(Struct, frozen=True):
    """One tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]


class Manifest(Struct, frozen=True):
    """The run's model: which tensors a file must have, no more and no fewer."""

    tensors: Mapping[str, Tensor]
    header_bytes: int
    data_bytes: int

    @classmethod
    def of(cls, path: Path) -> Manifest:
        """The manifest that a file of weights has."""
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                header = file.read(min(length, MAX_HEADER_BYTES + 1))
                size = file.seek(0, 2)
            return cls.parsed(header, length, size)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
        except WrongModel as error:
            raise BadInput(f"{path} is not safetensors: {error}.") from None

    @classmethod
    def parsed(cls, header: bytes, length: int, size: int) -> Manifest:
        """The manifest that a header of `length` bytes in a file of `size` bytes makes."""
        if length > MAX_HEADER_BYTES or len(header) != length:
            raise WrongModel(f"its header of {length} bytes is cut short or too long")
        data_bytes = size - LENGTH_BYTES - length
        return cls(_tensors(header, data_bytes), length, data_bytes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of names, types and shapes: the same for all files of one model."""
        table = sorted((name, tensor.dtype, tensor.shape) for name, tensor in self.tensors.items())
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()

    @property
    def max_header_bytes(self) -> int:
        """The longest header that a file of this model may have."""
        return 2 * self.header_bytes + SPARE_HEADER_BYTES

    def check_size(self, size: int) -> None:
        """Reject a file by its size alone."""
        least, most = (LENGTH_BYTES + h + self.data_bytes for h in (2, self.max_header_bytes))
        if not least <= size <= most:
            raise WrongModel(f"{size} bytes are not the size of this run's model, {least} to {most} bytes")

    def check_length(self, length: int, size: int) -> None:
        """Reject a file by the header length in its first 8 bytes."""
        if length != size - LENGTH_BYTES - self.data_bytes:
            raise WrongModel(f"a header of {length} bytes leaves no {self.data_bytes} bytes for the tensors")

    def check(self, header: bytes, size: int) -> None:
        """Reject a file whose header does not describe this run's model; the rest need not have arrived yet."""
        self.check_size(size)
        self.check_length(len(header), size)
        found = _tensors(header, self.data_bytes)
        if missing := sorted(self.tensors.keys() - found.keys()):
            raise WrongModel(f"tensor {missing[0]!r} is not in it")
        if unknown := sorted(found.keys() - self.tensors.keys()):
            raise WrongModel(f"tensor {_short(unknown[0])} is not in this run's model")
        for name, tensor in found.items():
            if tensor != (own := self.tensors[name]):
                raise WrongModel(
                    f"tensor {name!r} is {tensor.dtype} {list(tensor.shape)[:9]}, not {own.dtype} {list(own.shape)}"
                )


def _tensors(header: bytes, data_bytes: int) -> dict[str, Tensor]:
    table = _json(header)
    about = table.pop("__metadata__", {})
    if not isinstance(about, dict) or not all(isinstance(v, str) for v in about.values()):
        raise WrongModel("its metadata are not a table of strings")
    tensors, spans = {}, []
    for name, entry in table.items():
        tensors[name], span = _tensor(name, entry)
        spans.append(span)
    # Empty tensors sort before the one that begins where they lie.
    reached = 0
    for begin, end in sorted(spans):
        if begin != reached:
            raise WrongModel(f"its tensors leave a gap or overlap at byte {reached}")
        reached = end
    if reached != data_bytes:
        raise WrongModel(f"its tensors take {reached} bytes and there are {data_bytes}")
    return tensors


def _tensor(name: str, entry: object) -> tuple[Tensor, tuple[int, int]]:
    where = f"tensor {_short(name)}"
    if len(name) > MAX_NAME_CHARACTERS or not isinstance(entry, dict):
        raise WrongModel(f"{where} is not described by a table")
    if entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise WrongModel(f"{where} must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise WrongModel(f"{where} has no dtype that is known here")
    if not _whole_numbers(shape) or not _whole_numbers(span) or len(span) != 2:
        raise WrongModel(f"{where} has a shape or offsets that are no whole numbers")
    if span[1] - span[0] != prod(shape) * BITS[dtype] // 8:
        raise WrongModel(f"{where} has offsets that do not fit its shape")
    return Tensor(dtype, tuple(shape)), (span[0], span[1])


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(type(v) is int and v >= 0 for v in value)


def _json(header: bytes) -> dict[str, Any]:
    """The header's table; no duplicate keys, no fractions, no constants, no numbers beyond 64 bits."""
    try:
        if not header.startswith(b"{"):
            raise WrongModel("its header does not begin with {")
        text = header.rstrip(b" ").decode("utf-8")
        found = json.loads(
            text, object_pairs_hook=_table, parse_int=_number, parse_float=_no_number, parse_constant=_no_number
        )
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        raise WrongModel("its header is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise WrongModel("its header is not a table")
    return found


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise WrongModel("its header names something twice")
    for text in (*table, *(v for v in table.values() if isinstance(v, str))):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise WrongModel("its header has half a character") from None
    return table


def _number(digits: str) -> int:
    if len(digits) > 16:
        raise WrongModel("its header has a number beyond all sizes")
    return int(digits)


def _no_number(text: str) -> NoReturn:
    raise WrongModel(f"its header has {_short(text)} where whole numbers belong")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")

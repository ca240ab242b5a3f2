"""What a tensor of weights is on its way: float32 as it is, or its difference to a reference in 16, 8 or 4 bits.

With w the weights, r the reference that every site has (w_0) and s one float32 scale for each output channel c:

    coding      q = floor((w - r) / s_c + u),  u from U[0, 1) drawn from (seed, round), so that E[s_c q] = w - r
    decoding    w = r + s_c q, as one multiplication and one addition of float32

Decoding is two IEEE operations in a fixed order, so every machine gets the same bits, whatever its number of threads.
The scale is the largest difference of the channel over 127 (int8) or 7 (int4). float16 has no scale: the difference
itself is rounded. Two int4 share a byte: the first half of a tensor lies in the lower four bits, the second half in
the upper four. Tensors with one dimension, with few weights a channel or of another type than float32 travel as they
are, so batch norm's statistics and the counters of an optimiser are exact.

NumPy alone: an operator decodes a model where PyTorch is not installed. The loops run over 64K weights at a time,
which stay in the processor's cache from the first operation to the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tramfl.config import Codec
from tramfl.draws import generator
from tramfl.learning.chance import Purpose
from tramfl.notation import BadInput

Array = NDArray[Any]
Floats = NDArray[np.float32]

BLOCK = 1 << 16
"""Weights that are worked on at once."""
FEWEST = 8
"""Channels with fewer weights than this are not coded: their scales would weigh as much as they save."""
LARGEST_SCALE = 1e30
"""Beyond it a decoded weight could be infinite."""
SMALLEST = 1e-30
"""A channel whose largest difference is below this has not changed."""
_STEPS = {"int8": 127, "int4": 7}
_ROOM = np.float32(1 + 2.0**-20)
"""The scale is this much larger than the largest difference needs, so that no rounding leads beyond the last step."""
_BYTES = {"float16": 2.0, "int8": 1.0, "int4": 0.5}


class Coded(NamedTuple):
    """A tensor on its way."""

    values: Array
    """float16, int8 in the tensor's shape; int4 as a row of uint8, two to a byte."""
    scales: Floats | None
    """One for each channel; None for float16."""


def is_coded(shape: Iterable[int], *, float32: bool) -> bool:
    """Whether a tensor is coded, or travels as it is."""
    channels, *rest = tuple(shape) or (1,)
    return float32 and bool(rest) and channels > 0 and prod(rest) >= FEWEST


def coded_bytes(shape: Iterable[int], codec: Codec) -> int:
    """How many bytes a coded tensor takes, scales included."""
    channels, *rest = shape
    weights = channels * prod(rest)
    if codec == "float32":
        return 4 * weights
    return int(np.ceil(weights * _BYTES[codec])) + (4 * channels if codec in _STEPS else 0)


def dither(seed: int, round_: int) -> Floats:
    """u of one round: a block of draws that all blocks of weights share."""
    return generator(seed, Purpose.TRANSIT, round_).random(BLOCK, dtype=np.float32)


def code(values: Floats, reference: Floats, codec: Codec, u: Floats) -> Coded:
    """Code a tensor of float32 that `is_coded`; BadInput where it has weights that are not finite."""
    rows, base = _rows(values), _rows(reference)
    if codec == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            half = (rows - base).astype(np.float16)
        if not np.isfinite(half).all():
            raise _not_finite(codec)
        return Coded(half.reshape(values.shape), None)
    channels, width = rows.shape
    steps, scales = np.float32(_STEPS[codec]), np.empty(channels, np.float32)
    whole = np.empty((channels, width), np.int8)
    at_once = max(1, BLOCK // width)
    block = np.empty((min(at_once, channels), width), np.float32)
    drawn = np.resize(u, block.shape)
    for first in range(0, channels, at_once):
        part = slice(first, min(first + at_once, channels))
        d = block[: part.stop - first]
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(rows[part], base[part], out=d)
            largest = np.maximum(d.max(axis=1), -d.min(axis=1))
            scale = largest / steps * _ROOM
        if not (scale <= LARGEST_SCALE).all():
            raise _not_finite(codec)
        scale[largest < SMALLEST] = 0
        scales[part] = scale
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
        np.multiply(d, inverse[:, None], out=d)
        np.add(d, drawn[: len(d)], out=d)
        np.floor(d, out=d)
        np.copyto(whole[part], d, casting="unsafe")
    if codec == "int8":
        return Coded(whole.reshape(values.shape), scales)
    return Coded(_packed(whole.reshape(-1)), scales)


def decode(coded: Coded, reference: Floats, codec: Codec, out: Floats) -> None:
    """Write the decoded weights into `out`, which may be the reference itself. BadInput where they do not fit."""
    rows, base = _rows(out), _rows(reference)
    channels, width = base.shape
    _check(coded, reference.shape, codec)
    values, scales = coded
    if scales is None:
        np.add(base, values.reshape(base.shape), out=rows)
        return
    whole = (values if codec == "int8" else _unpacked(values, base.size)).reshape(base.shape)
    at_once = max(1, BLOCK // width)
    block = np.empty((min(at_once, channels), width), np.float32)
    for first in range(0, channels, at_once):
        part = slice(first, min(first + at_once, channels))
        d = block[: part.stop - first]
        np.copyto(d, whole[part])
        np.multiply(d, scales[part, None], out=d)
        np.add(base[part], d, out=rows[part])


def _check(coded: Coded, shape: tuple[int, ...], codec: Codec) -> None:
    """BadInput where a coded tensor cannot be one of `shape`."""
    values, scales = coded
    if codec == "int4":
        fits = values.dtype == np.uint8 and values.shape == ((prod(shape) + 1) // 2,)
    else:
        fits = values.dtype == (np.int8 if codec == "int8" else np.float16) and values.shape == shape
    if not fits:
        raise BadInput(
            f"a tensor of {list(shape)} is not coded as {codec}: it has {values.dtype} {list(values.shape)}."
        )
    if codec == "float16":
        if not np.isfinite(values).all():
            raise BadInput("a coded difference is not a finite number.")
    elif scales is None or scales.dtype != np.float32 or scales.shape != shape[:1]:
        raise BadInput(f"a tensor of {list(shape)} needs {shape[0]} scales of float32.")
    else:
        check_scales(scales)


def check_scales(scales: Floats) -> None:
    """BadInput where a scale is negative, not finite or so large that weights could become infinite."""
    if not ((scales >= 0) & (scales <= LARGEST_SCALE)).all():
        raise BadInput(f"the scales of a coded tensor must be from 0 to {LARGEST_SCALE:g}.")


def _rows(values: Floats) -> Floats:
    """One row a channel; a view, since `out` must not be a copy."""
    if not values.flags.c_contiguous:
        raise ValueError("a tensor must be contiguous to be coded")
    return values.reshape(values.shape[0], -1)


def _packed(whole: NDArray[np.int8]) -> NDArray[np.uint8]:
    half = (len(whole) + 1) // 2
    values = whole.view(np.uint8)
    packed = np.bitwise_and(values[:half], 15)
    packed[: len(whole) - half] |= np.left_shift(values[half:], 4)
    return packed


def _unpacked(packed: NDArray[np.uint8], weights: int) -> NDArray[np.int8]:
    """Sign-extended: shifting a signed byte to the right copies its upper bit."""
    whole = np.empty(weights, np.int8)
    half, signed = len(packed), packed.view(np.int8)
    np.left_shift(signed, 4, out=whole[:half])
    np.right_shift(whole[:half], 4, out=whole[:half])
    np.right_shift(signed[: weights - half], 4, out=whole[half:])
    return whole


def _not_finite(codec: Codec) -> BadInput:
    return BadInput(
        f"the weights, or their change since the start of the run, are not finite: transit.codec = {codec!r} cannot"
        " code them; the learning rate may be too high."
    )

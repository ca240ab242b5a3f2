"""What a tensor of weights is on its way: float32 as it is, or its difference to a reference in 16, 8 or 4 bits.

With w the weights, r the reference that every site has (w_0), s one float32 scale for each group of weights, n the
number of steps (256 or 16) and v a dither that sender and receiver share:

    coding      q = floor((w - r) / s + n / 2 + 1/2 - v),  0 <= q < n
    decoding    w = r + s (q + v - n / 2), as two additions and one multiplication of float32

v is drawn from (0, 1] and moves the grid of values that a code can stand for. The same v is taken off again, so a
decoded weight is at most half a step off, is right on average, and its error has half the variance of a rounding up
or down by chance. The draws follow from eight bytes that travel with the weights.

Decoding is three IEEE operations in a fixed order on draws that are whole multiples of 1/256, so every machine gets
the same bits, whatever its number of threads. The scale is the group's largest difference over (n - 1) / 2. A group
is an output channel, or an equal part of at most 256 weights of a wide one. float16 has no scale and no dither: the
difference itself is rounded. Two int4 share a byte: one of the tensor's first half in the lower four bits, its
counterpart of the second half in the upper ones. Tensors with one dimension, with few weights a channel or of another
type than float32 travel as they are, so batch norm's statistics and the counters of an optimiser are exact.

NumPy alone: an operator decodes a model where PyTorch is not installed. `group_loops` has the loops; where numba is
installed, `fused_loops` computes the same bits of large tensors in half the time. The draws of v are for a block of
whole groups of up to 64K weights, and every block begins with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tramfl.config import Codec
from tramfl.draws import whole_seed
from tramfl.learning.chance import Purpose
from tramfl.learning.model import group_loops
from tramfl.learning.model.group_loops import SMALLEST
from tramfl.notation import BadInput

Array = NDArray[Any]
Floats = NDArray[np.float32]
Loop = Callable[..., None]

BLOCK = 1 << 16
"""Draws of a dither, and the most weights that begin with the first of them."""
GROUP = 256
"""A channel with more weights than this has several scales, if it can be divided into equal parts of half as many or
more: a few large differences then make the steps of their neighbours large, and not those of the whole channel."""
FEWEST = 8
"""Channels with fewer weights than this are not coded: their scales would weigh as much as they save."""
FUSED_FROM = 1 << 17
"""Tensors with fewer weights than this do not earn back the seconds in which a process loads numba."""
LARGEST_SCALE = 1e30
"""Beyond it a decoded weight could be infinite."""
DITHER_BYTES = 8
"""What the draws of a dither follow from."""
_STEPS = {"int8": 256, "int4": 16}
_BYTES = {"float16": 2.0, "int8": 1.0, "int4": 0.5}


class Coded(NamedTuple):
    """A tensor on its way."""

    values: Array
    """float16 or, for int8, uint8 in the tensor's shape; int4 as a row of uint8, two to a byte."""
    scales: Floats | None
    """One for each group; None for float16."""


def is_coded(shape: Iterable[int], *, float32: bool) -> bool:
    """Whether a tensor is coded, or travels as it is."""
    channels, *rest = tuple(shape) or (1,)
    return float32 and bool(rest) and channels > 0 and prod(rest) >= FEWEST


def coded_bytes(shape: Iterable[int], codec: Codec) -> int:
    """How many bytes a coded tensor takes, scales included."""
    sizes = tuple(shape)
    weights = prod(sizes)
    if codec == "float32":
        return 4 * weights
    return int(np.ceil(weights * _BYTES[codec])) + (4 * weights // _width(sizes) if codec in _STEPS else 0)


def dither_key(seed: int, round_: int) -> NDArray[np.uint8]:
    """What the dither of one round follows from, as it travels."""
    key = whole_seed(seed, Purpose.TRANSIT, round_)
    return np.frombuffer(key.to_bytes(DITHER_BYTES, "little"), np.uint8).copy()


def dither(key: Array) -> Floats:
    """v of one round: a block of draws that all blocks of weights share. BadInput where `key` is none."""
    if key.dtype != np.uint8 or key.shape != (DITHER_BYTES,):
        raise BadInput(f"a dither follows from {DITHER_BYTES} bytes, not from {key.dtype} {list(key.shape)}.")
    # The raw words of a bit generator are the same in every version of NumPy; what is drawn with them need not be.
    words = np.random.PCG64(int.from_bytes(key.tobytes(), "little")).random_raw(BLOCK // 8)
    draws: Floats = words.astype("<u8").view(np.uint8).astype(np.float32)
    draws += 1
    draws /= 256
    return draws


def code(values: Floats, reference: Floats, codec: Codec, v: Floats) -> Coded:
    """Code a tensor of float32 that `is_coded`; BadInput where it has weights that are not finite."""
    w, r = _flat(values), _flat(reference)
    if codec == "float16":
        half = np.empty(values.shape, np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            finite = _halve(w, r, half.reshape(-1))
        if not finite:
            raise _not_finite(codec)
        return Coded(half, None)
    steps, width, lower = _STEPS[codec], _width(values.shape), _lower(w.size, codec)
    whole, scales = np.empty(lower, np.uint8), np.empty(w.size // width, np.float32)
    shift = np.float32((steps + 1) / 2) - _draws(v, w.size, width)
    with np.errstate(over="ignore", invalid="ignore"):
        loops(w.size >= FUSED_FROM)[0](w, r, shift, width, np.float32((steps - 1) / 2), lower, whole, scales)
    if not (scales <= LARGEST_SCALE).all():
        raise _not_finite(codec)
    scales[scales < SMALLEST] = 0
    return Coded(whole.reshape(values.shape) if codec == "int8" else whole, scales)


def decode(coded: Coded, reference: Floats, codec: Codec, v: Floats, out: Floats) -> None:
    """Write the decoded weights into `out`, which may be the reference itself. BadInput where they do not fit."""
    w, r = _flat(out), _flat(reference)
    _check(coded, reference.shape, codec)
    values, scales = coded
    if scales is None:
        _add_halves(r, values.reshape(-1), w)
        return
    width = _width(reference.shape)
    shift = _draws(v, r.size, width) - np.float32(_STEPS[codec] / 2)
    loops(r.size >= FUSED_FROM)[1](r, shift, width, _lower(r.size, codec), values.reshape(-1), scales, w)


@cache
def loops(fused: bool) -> tuple[Loop, Loop]:
    """What codes and what decodes: the same bits from both modules. `fused`: numba's, where it is installed."""
    if fused:
        try:
            from tramfl.learning.model.fused_loops import code_groups, decode_groups

            return code_groups, decode_groups
        except (ImportError, RuntimeError):  # the latter where numba finds no folder to keep what it compiled
            pass
    return group_loops.code_groups, group_loops.decode_groups


def _draws(v: Floats, weights: int, width: int) -> Floats:
    """v of the weights of a block: as many whole groups as there are draws for, and at least one."""
    size = min(max(1, BLOCK // width) * width, weights)
    return v[:size] if size <= BLOCK else np.resize(v, size)


def _lower(weights: int, codec: Codec) -> int:
    """How many weights take the lower bits of a byte, or a byte for themselves: as many as there are bytes."""
    return weights if codec == "int8" else (weights + 1) // 2


def _check(coded: Coded, shape: tuple[int, ...], codec: Codec) -> None:
    """BadInput where a coded tensor cannot be one of `shape`."""
    values, scales = coded
    if codec == "int4":
        fits = values.dtype == np.uint8 and values.shape == ((prod(shape) + 1) // 2,)
    else:
        fits = values.dtype == (np.uint8 if codec == "int8" else np.float16) and values.shape == shape
    if not fits:
        raise BadInput(
            f"a tensor of {list(shape)} is not coded as {codec}: it has {values.dtype} {list(values.shape)}."
        )
    if codec == "float16":
        # Bits of infinity and NaN are above all others of their sign.
        if values.view(np.int16).max() >= 0x7C00 or values.view(np.uint16).max() >= 0xFC00:
            raise BadInput("a coded difference is not a finite number.")
    elif scales is None or scales.dtype != np.float32 or scales.shape != (prod(shape) // _width(shape),):
        raise BadInput(f"a tensor of {list(shape)} needs {prod(shape) // _width(shape)} scales of float32.")
    else:
        check_scales(scales)


def check_scales(scales: Floats) -> None:
    """BadInput where a scale is negative, not finite or so large that weights could become infinite."""
    if not ((scales >= 0) & (scales <= LARGEST_SCALE)).all():
        raise BadInput(f"the scales of a coded tensor must be from 0 to {LARGEST_SCALE:g}.")


def _width(shape: tuple[int, ...]) -> int:
    """How many weights share a scale."""
    channel = prod(shape[1:])
    if channel <= GROUP:
        return channel
    return next((width for width in range(GROUP, GROUP // 2 - 1, -1) if channel % width == 0), channel)


def _flat(values: Floats) -> Floats:
    """All weights in a row; a view, since `out` must not be a copy."""
    if not values.flags.c_contiguous:
        raise ValueError("a tensor must be contiguous to be coded")
    return values.reshape(-1)


def _halve(values: Floats, reference: Floats, out: NDArray[np.float16]) -> bool:
    """Round values - reference to the nearest float16, ties to even; False where one is not finite as float16.

    NumPy's own conversion gives the same bits and takes five times as long. A number of at least 2^-14 loses 13 bits
    of its fraction and has another bias of its exponent. A smaller one counts steps of 2^-24, which is what adding a
    half leaves of it. Each way gives too large a number where the other one holds.
    """
    words = out.view(np.uint16)
    difference, room = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint32)
    for first in range(0, len(values), BLOCK):
        part = slice(first, first + BLOCK)
        to = words[part]
        d, large = difference[: len(to)], room[: len(to)]
        small = d.view(np.uint32)  # the bits of d, which are worked on in place
        np.subtract(values[part], reference[part], out=d)
        np.right_shift(small, 16, out=large)
        sign = large.astype(np.uint16)
        sign &= 0x8000
        small &= 0x7FFFFFFF
        np.right_shift(small, 13, out=large)
        large &= 1
        large += small
        large += np.uint32(0x100000000 - (113 << 23) + 0xFFF)  # wraps around where d is small
        large >>= 13
        large += 1 << 10
        d += np.float32(0.5)
        small -= np.uint32(0x3F000000)  # the bits of 0.5
        np.minimum(large, small, out=large)
        if large.max() >= 0x7C00:  # the bits of infinity
            return False
        np.copyto(to, large, casting="unsafe")
        to |= sign
    return True


def _add_halves(base: Floats, halves: NDArray[np.float16], out: Floats) -> None:
    """base + halves, which are finite: sign, exponent and fraction move to their places in a float32."""
    words, room = halves.view(np.int16), np.empty(BLOCK, np.int32)
    for first in range(0, len(base), BLOCK):
        part = slice(first, first + BLOCK)
        bits = room[: len(words[part])]
        np.copyto(bits, words[part])
        bits <<= 13
        bits &= np.int32(~0x70001FFF)  # of the copies of the sign, the first
        d = bits.view(np.float32)
        d *= np.float32(2.0**112)
        np.add(base[part], d, out=out[part])


def _not_finite(codec: Codec) -> BadInput:
    return BadInput(
        f"the weights, or their change since the start of the run, are not finite: transit.codec = {codec!r} cannot"
        " code them; the learning rate may be too high."
    )

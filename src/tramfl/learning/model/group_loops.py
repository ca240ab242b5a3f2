"""The arithmetic of int8 and int4 on groups of weights, in NumPy; `codec` has the equations.

NumPy makes one pass over the weights for each operation, so the passes are few and the numbers stay in the
processor's cache from the first to the last. `fused_loops` computes the same bits in one pass where numba is there.

All arrays are flat. Group g has the weights from g * width on, and scales[g]. `shift` is added to the weights of
whole groups and begins anew when it is used up. The first `half` weights take the lower four bits of a byte and the
others the upper four bits of a byte from the first one on; where `half` is all weights, each takes a whole byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SMALLEST = 1e-30
"""A group with a smaller scale has not changed."""
ROOM = np.float32(1 + 2.0**-20)
"""The scale is this much larger than the largest difference needs, so that no rounding leads beyond the last step."""
AT_ONCE = 4
"""How many times `shift` is used in one pass. More at once would leave the cache, fewer cost more calls of NumPy."""


def code_groups(
    w: Floats, r: Floats, shift: Floats, width: int, top: np.float32, half: int, out: Bytes, scales: Floats
) -> None:
    """Write the scales, largest |w - r| over `top`, and the integers floor((w - r) / scale + shift)."""
    room, high = _room(w, shift)
    starts = np.arange(0, len(room), width)
    for first, end in _passes(w.size, len(shift)):
        groups = slice(first // width, end // width)
        d = room[: end - first]
        np.subtract(w[first:end], r[first:end], out=d)
        scale = _largest(d, starts[: d.size // width]) / top * ROOM
        scales[groups] = scale
        rows = d.reshape(-1, width)
        np.multiply(rows, 1 / np.maximum(scale, SMALLEST)[:, None], out=rows)
        _add_shift(d, shift)
        # No value is below 0, so that cutting off is rounding down.
        low = min(max(half - first, 0), d.size)
        np.copyto(out[first : first + low], d[:low], casting="unsafe")
        if low < d.size:
            upper = high[: d.size - low]
            np.copyto(upper, d[low:], casting="unsafe")
            upper *= 16  # a shift of bytes takes NumPy eight times as long
            out[first + low - half : end - half] |= upper


def decode_groups(r: Floats, shift: Floats, width: int, half: int, whole: Bytes, scales: Floats, out: Floats) -> None:
    """Write r + scale * (integer + shift) into `out`, which may be r."""
    room, nibbles = _room(out, shift)
    for first, end in _passes(out.size, len(shift)):
        d = room[: end - first]
        if half == out.size:
            np.copyto(d, whole[first:end])
        else:
            four = nibbles[: d.size]
            low = min(max(half - first, 0), d.size)
            np.bitwise_and(whole[first : first + low], 15, out=four[:low])
            if low < d.size:
                np.right_shift(whole[first + low - half : end - half], 4, out=four[low:])
            np.copyto(d, four)
        _add_shift(d, shift)
        rows = d.reshape(-1, width)
        np.multiply(rows, scales[first // width : end // width, None], out=rows)
        np.add(r[first:end], d, out=out[first:end])


def _room(weights: Floats, shift: Floats) -> tuple[Floats, Bytes]:
    """Room for the weights of one pass, and for their integers."""
    size = min(weights.size, AT_ONCE * len(shift))
    return np.empty(size, np.float32), np.empty(size, np.uint8)


def _passes(weights: int, period: int) -> Iterator[tuple[int, int]]:
    """Where each pass begins and ends: after whole periods of `shift`, and the last one within a period."""
    whole = weights - weights % period
    for first in range(0, whole, AT_ONCE * period):
        yield first, min(first + AT_ONCE * period, whole)
    if whole < weights:
        yield whole, weights


def _add_shift(d: Floats, shift: Floats) -> None:
    periods = d.reshape(-1, min(len(shift), d.size))
    np.add(periods, shift[: periods.shape[1]], out=periods)


def _largest(d: Floats, starts: NDArray[Any]) -> Floats:
    """max |d| of each group, NaN above all.

    The bits of numbers of one sign are in the order of their magnitudes. As signed integers the positive numbers are
    above the negative ones, as unsigned integers below them: the two maxima have the largest of each sign.
    """
    negative = np.maximum.reduceat(d.view(np.uint32), starts)
    negative &= 0x7FFFFFFF
    positive = np.maximum.reduceat(d.view(np.int32), starts)
    largest: Floats = np.maximum(negative.view(np.int32), positive).view(np.float32)
    return largest

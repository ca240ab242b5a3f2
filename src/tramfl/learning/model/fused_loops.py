"""What `group_loops` computes, with the same bits, in one pass over the weights: compiled by numba (`tramfl[fast]`).

No operation is left out, joined or moved: LLVM does that only where it is asked for fast mathematics. Indices are
unsigned, since numba otherwise looks at each of them for a negative one and cannot use vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tramfl.learning.model import group_loops

_LEAST = np.float32(group_loops.SMALLEST)
_ROOM = group_loops.ROOM
_compiled: Any = njit(cache=True, nogil=True, error_model="numpy")


@_compiled
def code_groups(w, r, shift, width, top, half, out, scales):  # type: ignore[no-untyped-def]
    """Write the scales and the integers."""
    width, half, end = np.uintp(width), np.uintp(half), np.uintp(len(shift))
    d, largest = np.empty(width, np.float32), np.empty(1, np.int32)
    bits = d.view(np.int32)
    at, drawn = np.uintp(0), np.uintp(0)
    for g in range(len(scales)):
        most = np.int32(0)
        for i in range(width):
            d[i] = w[at + i] - r[at + i]
        for i in range(width):
            most = max(most, bits[i] & np.int32(0x7FFFFFFF))
        largest[0] = most
        scale = largest.view(np.float32)[0] / top * _ROOM
        scales[g] = scale
        inverse = np.float32(1) / max(scale, _LEAST)
        low = min(half - at, width) if at < half else np.uintp(0)
        for i in range(low):
            out[at + i] = np.int32(d[i] * inverse + shift[drawn + i])
        to = at - half  # wraps around, and back where i is added
        for i in range(low, width):
            out[to + i] |= np.int32(d[i] * inverse + shift[drawn + i]) << 4
        at += width
        drawn = drawn + width if drawn + width < end else np.uintp(0)


@_compiled
def decode_groups(r, shift, width, half, whole, scales, out):  # type: ignore[no-untyped-def]
    """Write the decoded weights."""
    width, half, end = np.uintp(width), np.uintp(half), np.uintp(len(shift))
    mask = np.int32(255) if half == len(out) else np.int32(15)
    at, drawn = np.uintp(0), np.uintp(0)
    for g in range(len(scales)):
        scale = scales[g]
        low = min(half - at, width) if at < half else np.uintp(0)
        for i in range(low):
            value = np.float32(np.int32(whole[at + i]) & mask)
            out[at + i] = r[at + i] + (value + shift[drawn + i]) * scale
        to = at - half
        for i in range(low, width):
            value = np.float32(np.int32(whole[to + i]) >> 4)
            out[at + i] = r[at + i] + (value + shift[drawn + i]) * scale
        at += width
        drawn = drawn + width if drawn + width < end else np.uintp(0)

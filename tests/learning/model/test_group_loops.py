"""One contract for the loops of the codec: NumPy's and those that numba compiles give the bits of plain code."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tramfl.learning.model import codec, group_loops
from tramfl.learning.model.group_loops import AT_ONCE, ROOM, SMALLEST, Bytes, Floats

WIDTH = 24
TOPS = {"int8": np.float32(127.5), "int4": np.float32(7.5)}


@pytest.fixture(params=["group_loops", "fused_loops"], scope="module")
def loops(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"tramfl.learning.model.{request.param}")


def plain_integers(w: Floats, r: Floats, shift: Floats, top: np.float32) -> tuple[Bytes, Floats]:
    """One integer a byte, group by group, as the equations have them."""
    shifts = np.resize(shift, w.shape)
    scales = np.empty(w.size // WIDTH, np.float32)
    whole = np.empty(w.shape, np.uint8)
    for group in range(len(scales)):
        part = slice(group * WIDTH, (group + 1) * WIDTH)
        d = w[part] - r[part]
        scales[group] = np.abs(d).max() / top * ROOM
        inverse = np.float32(1) / np.maximum(scales[group], np.float32(SMALLEST))
        whole[part] = np.floor(d * inverse + shifts[part])
    return whole, scales


def plain_weights(whole: Bytes, r: Floats, shift: Floats, scales: Floats) -> Floats:
    moved: Floats = (whole.astype(np.float32) + np.resize(shift, r.shape)) * np.repeat(scales, WIDTH)
    return r + moved


def halves(whole: Bytes) -> Bytes:
    """Two integers to a byte: one of the first half and its counterpart of the second."""
    lower = (len(whole) + 1) // 2
    packed = whole[:lower].copy()
    packed[: len(whole) - lower] += 16 * whole[lower:]
    return packed


@settings(deadline=None)  # the first example waits for numba
@given(
    st.sampled_from(("int8", "int4")),
    st.integers(1, 3),
    st.one_of(st.integers(1, 12), st.integers(3 * AT_ONCE, 3 * AT_ONCE + 20)),
    st.integers(0, 1 << 32),
    st.sampled_from((0.0, 1e-38, 1e-8, 1e-3, 1.0, 1e20)),
    st.sampled_from((1.0, -1.0, 0.0)),
)
def test_all_loops_give_the_bits_of_plain_code(
    loops: ModuleType, name: str, period: int, groups: int, seed: int, change: float, sign: float
) -> None:
    """`period`: how many groups have draws of their own. `sign`: of every change, and 0 for both."""
    rng = np.random.default_rng(seed)
    size, top = WIDTH * groups, TOPS[name]
    r = rng.standard_normal(size, dtype=np.float32)
    moves = rng.standard_normal(size, dtype=np.float32)
    w = r + np.float32(change) * (np.float32(sign) * np.abs(moves) if sign else moves)
    v = ((rng.integers(0, 256, WIDTH * min(period, groups)) + 1) / 256).astype(np.float32)
    half = size if name == "int8" else (size + 1) // 2
    out, scales = np.empty(half, np.uint8), np.empty(groups, np.float32)
    loops.code_groups(w, r, top + 1 - v, WIDTH, top, half, out, scales)
    whole, expected = plain_integers(w, r, top + 1 - v, top)
    assert scales.tobytes() == expected.tobytes()
    assert out.tobytes() == (whole if name == "int8" else halves(whole)).tobytes()
    moved = v - (top + np.float32(0.5))
    decoded = np.empty_like(r)
    loops.decode_groups(r, moved, WIDTH, half, out, scales, decoded)
    assert decoded.tobytes() == plain_weights(whole, r, moved, scales).tobytes()
    loops.decode_groups(r, moved, WIDTH, half, out, scales, r)
    assert r.tobytes() == decoded.tobytes()


@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_the_scale_of_a_group_that_is_not_finite_is_not_finite_either(loops: ModuleType, wrong: float) -> None:
    w, r = np.ones((2, 3 * WIDTH), np.float32)
    w[WIDTH + 5] = wrong
    out, scales = np.empty(w.size, np.uint8), np.empty(3, np.float32)
    with np.errstate(invalid="ignore"):
        loops.code_groups(w, r, np.full(WIDTH, 128, np.float32), WIDTH, TOPS["int8"], w.size, out, scales)
    assert np.isfinite(scales).tolist() == [True, False, True]


def test_the_codec_takes_numpys_loops_where_numba_is_missing_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tramfl.learning.model.fused_loops", None)
    codec.loops.cache_clear()
    try:
        assert codec.loops(True) == (group_loops.code_groups, group_loops.decode_groups)
    finally:
        codec.loops.cache_clear()


def test_small_tensors_do_not_load_numba() -> None:
    code = (
        "import sys, numpy as np; from tramfl.learning.model import codec;"
        "w = np.ones((codec.FUSED_FROM // 512, 256), np.float32); v = codec.dither(np.zeros(8, np.uint8));"
        "codec.decode(codec.code(w, 0 * w, 'int4', v), 0 * w, 'int4', v, w); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

from __future__ import annotations

import hashlib
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.config import Codec
from tramfl.learning.model.codec import (
    BLOCK,
    LARGEST_SCALE,
    Array,
    Coded,
    Floats,
    code,
    coded_bytes,
    decode,
    dither,
    dither_key,
    is_coded,
)
from tramfl.notation import BadInput

SMALLER: tuple[Codec, ...] = ("float16", "int8", "int4")
STEPS = {"int8": 256, "int4": 16}
V = dither(dither_key(3, 4))


def tensors(shape: tuple[int, ...], seed: int = 0, change: float = 0.01) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape, dtype=np.float32)
    return reference + np.float32(change) * rng.standard_normal(shape, dtype=np.float32), reference


def there_and_back(values: Floats, reference: Floats, codec: Codec, round_: int = 1) -> Floats:
    out, v = np.empty_like(reference), dither(dither_key(0, round_))
    decode(code(values, reference, codec, v), reference, codec, v, out)
    return out


def steps_of(values: Floats, reference: Floats, codec: Codec) -> Array:
    """One step of each channel, where a channel is one group."""
    difference: Array = np.abs(values.astype(np.float64) - reference).max(axis=1, keepdims=True)
    return difference / ((STEPS[codec] - 1) / 2)


@given(
    st.integers(1, 40),
    st.integers(8, 256),
    st.sampled_from(("int8", "int4")),
    st.integers(0, 1000),
    st.sampled_from((1e-8, 1e-3, 1.0, 1e6)),
)
def test_a_decoded_weight_is_at_most_half_a_step_off(
    channels: int, width: int, codec: Codec, seed: int, change: float
) -> None:
    values, reference = tensors((channels, width), seed, change)
    step = steps_of(values, reference, codec)
    off = np.abs(there_and_back(values, reference, codec, seed).astype(np.float64) - values)
    rounding = np.spacing(np.maximum(np.abs(values), np.abs(reference)))
    assert (off <= step * 0.50001 + 2 * rounding).all()


@pytest.mark.parametrize("codec", SMALLER)
@pytest.mark.parametrize(
    ("shape", "width"),
    [
        ((3, 8), 8),
        ((5, 3, 3, 3), 27),
        ((300, 1000), 250),
        ((2, BLOCK + 5), BLOCK + 5),
        ((7, 11), 11),
        ((31, 512), 256),
        ((9, 64, 3, 3), 192),
    ],
)
def test_blocks_do_not_change_a_bit(codec: Codec, shape: tuple[int, ...], width: int) -> None:
    values, reference = tensors(shape)
    coded = code(values, reference, codec, V)
    if codec == "float16":
        expected = reference + coded.values.astype(np.float32)
    else:
        assert coded.scales is not None
        whole = coded.values.reshape(-1)
        if codec == "int4":
            whole = np.concatenate([whole & 15, whole >> 4])[: reference.size]
        rows = whole.reshape(-1, width)
        at_once = max(1, BLOCK // width)
        drawn = np.resize(np.resize(V, (min(at_once, len(rows)), width)), rows.shape)
        shifted = rows.astype(np.float32) + (drawn - np.float32(STEPS[codec] / 2))
        expected = reference + (shifted * coded.scales[:, None]).reshape(shape)
    out = np.empty_like(reference)
    decode(coded, reference, codec, V, out)
    assert out.tobytes() == expected.tobytes()
    in_place = reference.copy()
    decode(coded, in_place, codec, V, in_place)
    assert in_place.tobytes() == expected.tobytes()


def test_a_coded_tensor_and_what_it_decodes_to_are_these_bytes() -> None:
    """As written down once: files of another machine, or of another NumPy, mean the same."""
    reference: Floats = np.arange(0, 3, 0.125, dtype=np.float32).reshape(3, 8)
    values = reference + np.array([[0.5], [-0.25], [0.0]], np.float32) * (np.arange(8, dtype=np.float32) - 3)
    v = dither(np.arange(8, dtype=np.uint8))
    assert (256 * v[:4]).tolist() == [187, 246, 155, 63]
    assert (v.min(), v.max()) == (1 / 256, 1.0)
    coded = code(values, reference, "int4", v)
    assert coded.scales is not None
    assert coded.values.tobytes().hex() == "52432608798c8d7f7d7b8977"
    out = np.empty_like(reference)
    decode(coded, reference, "int4", v, out)
    assert hashlib.sha256(out.tobytes()).hexdigest()[:16] == "ad6dbc06ac5577d4"


def test_float16_rounds_every_difference_as_ieee_asks() -> None:
    """Around every float16 that there is, and half-way between two of them: NumPy's own conversion is the judge."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = every[np.isfinite(every)].astype(np.float32)
    bits = exact.view(np.int32)[:, None] + np.array([-4097, -4096, -4095, -1, 0, 1, 4095, 4096, 4097], np.int32)
    near = bits.view(np.float32)
    halfway = np.nextafter(every[:0x7BFF], np.float16(np.inf)).astype(np.float32) / 2 + exact[:0x7BFF] / 2
    values: Floats = np.concatenate([near[np.abs(near) < 65520], halfway, -halfway])
    values = values[: len(values) // 8 * 8].reshape(-1, 8)
    zero = np.zeros_like(values)
    coded = code(values, zero, "float16", V)
    assert coded.values.tobytes() == values.astype(np.float16).tobytes()
    out = np.empty_like(values)
    decode(coded, zero, "float16", V, out)
    np.testing.assert_array_equal(out, coded.values.astype(np.float32))
    with pytest.raises(BadInput, match="not finite"):
        code(np.full((1, 8), 65520, np.float32), np.zeros((1, 8), np.float32), "float16", V)


def test_one_large_difference_makes_the_steps_of_its_own_group_large_and_no_others() -> None:
    values, reference = tensors((2, 1024))
    values[0, 0] = 100
    off = np.abs(there_and_back(values, reference, "int4") - values)
    assert off[0, :256].max() > 1
    assert off[0, 256:].max() < 0.01


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_rounding_is_unbiased_over_the_rounds(codec: Codec) -> None:
    values, reference = tensors((4, 64))
    rounds = 2000
    total = np.zeros(values.shape)
    for round_ in range(rounds):
        total += there_and_back(values, reference, codec, round_)
    step = steps_of(values, reference, codec)
    # An even error of up to half a step has this deviation; five standard errors are never left by chance.
    assert (np.abs(total / rounds - values) <= 5 * step / np.sqrt(12 * rounds)).all()


@pytest.mark.parametrize("codec", SMALLER)
def test_weights_that_have_not_changed_come_back_bit_for_bit(codec: Codec) -> None:
    _, reference = tensors((6, 50))
    assert there_and_back(reference, reference, codec).tobytes() == reference.tobytes()


@pytest.mark.parametrize("codec", SMALLER)
def test_the_size_is_known_before_anything_is_coded(codec: Codec) -> None:
    for shape in ((3, 9), (4, 3, 3, 3), (1, 8), (2, 512), (3, 521)):
        coded = code(*tensors(shape), codec, V)
        found = coded.values.nbytes + (coded.scales.nbytes if coded.scales is not None else 0)
        assert found == coded_bytes(shape, codec)


def test_what_has_one_dimension_or_few_weights_a_channel_is_not_coded() -> None:
    assert is_coded((4, 8), float32=True)
    assert not any(is_coded(shape, float32=True) for shape in ((), (5,), (4, 7), (0, 9), (3, 0)))
    assert not is_coded((4, 8), float32=False)


@pytest.mark.parametrize("codec", SMALLER)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_weights_that_are_not_finite_are_refused(codec: Codec, wrong: float) -> None:
    values, reference = tensors((3, 9))
    values[1, 4] = wrong
    reference[1, 4] = -wrong if wrong == 3e38 else reference[1, 4]
    with pytest.raises(BadInput, match="learning rate"):
        code(values, reference, codec, V)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1e-3, 10 * LARGEST_SCALE])
def test_hostile_scales_are_refused(scale: float) -> None:
    values, reference = tensors((3, 9))
    coded = code(values, reference, "int8", V)
    assert coded.scales is not None
    coded.scales[2] = scale
    with pytest.raises(BadInput, match="scales"):
        decode(coded, reference, "int8", V, np.empty_like(reference))


@pytest.mark.parametrize("codec", SMALLER)
def test_tensors_of_another_length_or_type_are_refused(codec: Codec) -> None:
    values, reference = tensors((3, 9))
    good = code(values, reference, codec, V)
    flat = good.values.reshape(-1)
    wrong = [
        Coded(flat[:-1], good.scales),
        Coded(np.append(flat, flat[:1]), good.scales),
        Coded(good.values.astype(np.int32), good.scales),
    ]
    if codec == "float16":
        for value in (np.inf, -np.inf, np.nan):
            one = good.values.copy()
            one[1, 2] = value
            wrong.append(Coded(one, None))
    else:
        assert good.scales is not None
        wrong += [Coded(good.values, None), Coded(good.values, good.scales[:2])]
        wrong.append(Coded(good.values, good.scales.astype(np.float64)))
    for coded in wrong:
        with pytest.raises(BadInput):
            decode(coded, reference, codec, V, np.empty_like(reference))


def test_every_codec_but_float32_is_smaller() -> None:
    sizes = [coded_bytes((64, 64, 3, 3), codec) for codec in get_args(Codec)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("key", [np.zeros(7, np.uint8), np.zeros(8, np.int64), np.zeros((2, 4), np.uint8)])
def test_a_dither_needs_its_eight_bytes(key: Array) -> None:
    with pytest.raises(BadInput, match="8 bytes"):
        dither(key)

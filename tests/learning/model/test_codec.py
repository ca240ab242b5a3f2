from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.config import Codec
from tramfl.learning.model.codec import (
    BLOCK,
    LARGEST_SCALE,
    Coded,
    Floats,
    code,
    coded_bytes,
    decode,
    dither,
    is_coded,
)
from tramfl.notation import BadInput

SMALLER: tuple[Codec, ...] = ("float16", "int8", "int4")
STEPS = {"int8": 127, "int4": 7}


def tensors(shape: tuple[int, ...], seed: int = 0, change: float = 0.01) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape, dtype=np.float32)
    return reference + np.float32(change) * rng.standard_normal(shape, dtype=np.float32), reference


def there_and_back(values: Floats, reference: Floats, codec: Codec, round_: int = 1) -> Floats:
    out = np.empty_like(reference)
    decode(code(values, reference, codec, dither(0, round_)), reference, codec, out)
    return out


@given(
    st.integers(1, 40),
    st.integers(8, 300),
    st.sampled_from(("int8", "int4")),
    st.integers(0, 1000),
    st.sampled_from((1e-8, 1e-3, 1.0, 1e6)),
)
def test_a_decoded_weight_is_less_than_one_step_off(
    channels: int, width: int, codec: Codec, seed: int, change: float
) -> None:
    values, reference = tensors((channels, width), seed, change)
    difference = np.abs(values.astype(np.float64) - reference)
    step = difference.max(axis=1, keepdims=True) / STEPS[codec]
    off = np.abs(there_and_back(values, reference, codec, seed).astype(np.float64) - values)
    rounding = np.spacing(np.maximum(np.abs(values), np.abs(reference)))
    assert (off <= step * 1.00001 + 2 * rounding).all()


@pytest.mark.parametrize("codec", SMALLER)
@pytest.mark.parametrize("shape", [(3, 8), (5, 3, 3, 3), (300, 1000), (2, BLOCK + 5), (7, 11)])
def test_blocks_do_not_change_a_bit(codec: Codec, shape: tuple[int, ...]) -> None:
    values, reference = tensors(shape)
    coded = code(values, reference, codec, dither(3, 4))
    if codec == "float16":
        expected = reference + coded.values.astype(np.float32)
    else:
        assert coded.scales is not None
        whole = coded.values.reshape(-1)
        if codec == "int4":
            low, high = whole & 15, whole >> 4
            whole = np.concatenate([low, high])[: reference.size].astype(np.int16)
            whole = np.where(whole > 7, whole - 16, whole)
        product = whole.reshape(shape[0], -1).astype(np.float32) * coded.scales[:, None]
        expected = reference + product.reshape(shape)
    out = np.empty_like(reference)
    decode(coded, reference, codec, out)
    assert out.tobytes() == expected.tobytes()
    in_place = reference.copy()
    decode(coded, in_place, codec, in_place)
    assert in_place.tobytes() == expected.tobytes()


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_rounding_is_unbiased_over_the_rounds(codec: Codec) -> None:
    values, reference = tensors((4, 64))
    rounds = 2000
    total = np.zeros(values.shape)
    for round_ in range(rounds):
        total += there_and_back(values, reference, codec, round_)
    step = (np.abs(values - reference).max(axis=1, keepdims=True) / STEPS[codec]).astype(np.float64)
    # Half a step is the largest standard deviation of one draw; five standard errors are never left by chance.
    assert (np.abs(total / rounds - values) <= 5 * 0.5 * step / np.sqrt(rounds)).all()


@pytest.mark.parametrize("codec", SMALLER)
def test_weights_that_have_not_changed_come_back_bit_for_bit(codec: Codec) -> None:
    _, reference = tensors((6, 50))
    assert there_and_back(reference, reference, codec).tobytes() == reference.tobytes()


@pytest.mark.parametrize("codec", SMALLER)
def test_the_size_is_known_before_anything_is_coded(codec: Codec) -> None:
    for shape in ((3, 9), (4, 3, 3, 3), (1, 8)):
        coded = code(*tensors(shape), codec, dither(0, 0))
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
        code(values, reference, codec, dither(0, 0))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1e-3, 10 * LARGEST_SCALE])
def test_hostile_scales_are_refused(scale: float) -> None:
    values, reference = tensors((3, 9))
    coded = code(values, reference, "int8", dither(0, 0))
    assert coded.scales is not None
    coded.scales[2] = scale
    with pytest.raises(BadInput, match="scales"):
        decode(coded, reference, "int8", np.empty_like(reference))


@pytest.mark.parametrize("codec", SMALLER)
def test_tensors_of_another_length_or_type_are_refused(codec: Codec) -> None:
    values, reference = tensors((3, 9))
    good = code(values, reference, codec, dither(0, 0))
    flat = good.values.reshape(-1)
    wrong = [
        Coded(flat[:-1], good.scales),
        Coded(np.append(flat, flat[:1]), good.scales),
        Coded(good.values.astype(np.int32), good.scales),
    ]
    if codec == "float16":
        wrong.append(Coded(np.full((3, 9), np.inf, np.float16), None))
    else:
        assert good.scales is not None
        wrong += [Coded(good.values, None), Coded(good.values, good.scales[:2])]
        wrong.append(Coded(good.values, good.scales.astype(np.float64)))
    for coded in wrong:
        with pytest.raises(BadInput):
            decode(coded, reference, codec, np.empty_like(reference))


def test_every_codec_but_float32_is_smaller() -> None:
    sizes = [coded_bytes((64, 64, 3, 3), codec) for codec in get_args(Codec)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4

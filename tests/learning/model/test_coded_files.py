from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tramfl.learning.model.codec import code, dither, dither_key
from tramfl.learning.model.coded_files import (
    CODEC,
    DITHER,
    REFERENCE,
    SCALES,
    Raw,
    RawFile,
    check_coded,
    decoded_file,
    written,
)
from tramfl.learning.model.weights import from_bytes, to_bytes
from tramfl.notation import BadInput

FIRST = {
    "conv.weight": torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(1)),
    "norm.weight": torch.ones(4),
    "norm.count": torch.tensor(7),
    "half": torch.ones(2, 9, dtype=torch.bfloat16),
}
REFERENCE_FILE = to_bytes(FIRST)


def coded_state() -> dict[str, torch.Tensor]:
    weight = FIRST["conv.weight"].numpy()
    key = dither_key(0, 1)
    coded = code(weight + np.float32(0.1), weight, "int4", dither(key))
    assert coded.scales is not None
    changed = {DITHER: torch.from_numpy(key), "norm.weight": torch.full((4,), 2.0), "norm.count": torch.tensor(8)}
    scales = torch.from_numpy(coded.scales)
    return {**FIRST, **changed, "conv.weight": torch.from_numpy(coded.values), SCALES + "conv.weight": scales}


def coded_file(state: dict[str, torch.Tensor] | None = None, **about: str) -> bytes:
    metadata = {CODEC: "int4", REFERENCE: hashlib.sha256(REFERENCE_FILE).hexdigest(), "drawn": "[]", **about}
    return to_bytes(coded_state() if state is None else state, metadata)


def test_a_coded_file_becomes_the_plain_file_that_it_stands_for() -> None:
    plain = from_bytes(decoded_file(coded_file(), REFERENCE_FILE))
    assert {name: (t.dtype, t.shape) for name, t in plain.items()} == {
        name: (t.dtype, t.shape) for name, t in FIRST.items()
    }
    assert torch.allclose(plain["conv.weight"], FIRST["conv.weight"] + 0.1, atol=0.02)
    assert plain["norm.count"] == 8
    assert torch.equal(plain["half"], FIRST["half"])
    assert RawFile.of(decoded_file(coded_file(), REFERENCE_FILE)).about == {"drawn": "[]"}


def test_a_plain_file_stays_as_it_is() -> None:
    assert decoded_file(REFERENCE_FILE, b"") is REFERENCE_FILE


def test_a_written_file_is_the_one_that_safetensors_writes() -> None:
    assert written(RawFile.of(REFERENCE_FILE).tensors, {}) == REFERENCE_FILE


def test_a_file_is_decoded_without_pytorch() -> None:
    program = "import sys, tramfl.learning.model.coded_files; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


State = dict[str, torch.Tensor]


def _without(name: str) -> Callable[[State], State]:
    return lambda state: {key: tensor for key, tensor in state.items() if key != name}


def _with(name: str, tensor: torch.Tensor) -> Callable[[State], State]:
    return lambda state: {**state, name: tensor}


@pytest.mark.parametrize(
    "change",
    [
        _without("conv.weight"),
        _without("norm.weight"),
        _without(SCALES + "conv.weight"),
        _with("more", torch.zeros(1)),
        _with(SCALES + "norm.weight", torch.zeros(4)),
        _with("norm.weight", torch.zeros(5)),
        _with("conv.weight", torch.zeros(53, dtype=torch.uint8)),
        _with("conv.weight", torch.zeros(54, dtype=torch.int64)),
        _with(SCALES + "conv.weight", torch.full((4,), torch.nan)),
        _with(SCALES + "conv.weight", torch.zeros(3)),
        _without(DITHER),
        _with(DITHER, torch.zeros(9, dtype=torch.uint8)),
        _with(DITHER, torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_files_that_do_not_fit_their_reference_are_refused(change: Callable[[State], State]) -> None:
    with pytest.raises(BadInput):
        decoded_file(coded_file(change(coded_state())), REFERENCE_FILE)


def test_another_reference_or_codec_is_refused() -> None:
    with pytest.raises(BadInput, match="another reference"):
        decoded_file(coded_file(), to_bytes({**FIRST, "norm.count": torch.tensor(9)}))
    with pytest.raises(BadInput, match="int3"):
        decoded_file(coded_file(codec="int3"), REFERENCE_FILE)


def test_hostile_scales_are_seen_without_the_reference() -> None:
    check_coded(RawFile.of(coded_file()))
    with pytest.raises(BadInput, match="scales"):
        check_coded(RawFile.of(coded_file({**coded_state(), SCALES + "conv.weight": torch.full((4,), -1.0)})))
    with pytest.raises(BadInput, match="cannot be"):
        check_coded(
            RawFile.of(coded_file({**coded_state(), SCALES + "conv.weight": torch.zeros(4, dtype=torch.int64)}))
        )


def test_a_damaged_coded_file_is_refused_or_decoded_but_never_breaks_the_reader() -> None:
    """Any bytes may come: each gives a plain file of the reference's tensors, or one sentence."""
    rng = np.random.default_rng(0)
    content = coded_file()
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(600):
        damaged = bytearray(content)
        for place in rng.integers(0, header, rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        cut = bytes(damaged[: rng.integers(0, len(damaged))]) if rng.random() < 0.2 else bytes(damaged)
        try:
            plain = from_bytes(decoded_file(cut, REFERENCE_FILE))
        except BadInput:
            continue
        assert {name: t.shape for name, t in plain.items()} == {name: t.shape for name, t in FIRST.items()}


def test_an_empty_tensor_is_written_and_read() -> None:
    content = written({"a": Raw("F32", (0, 3), memoryview(b""))}, {"k": "v"})
    assert from_bytes(content)["a"].shape == (0, 3)

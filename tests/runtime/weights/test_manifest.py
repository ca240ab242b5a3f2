from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tramfl.learning.model.weights import to_bytes
from tramfl.notation import BadInput
from tramfl.runtime.weights import manifest as module
from tramfl.runtime.weights.manifest import Manifest, Tensor, WrongModel

STATE = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.int64), "c": torch.tensor(1.0), "d": torch.zeros(0)}


@pytest.fixture
def model(tmp_path: Path) -> Manifest:
    path = tmp_path / "model.safetensors"
    path.write_bytes(to_bytes(STATE))
    return Manifest.of(path)


def header_and_size(content: bytes) -> tuple[bytes, int]:
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], len(content)


def table(model: Manifest) -> dict[str, Any]:
    """A right header, to be made wrong."""
    return dict(json.loads(header_and_size(to_bytes(STATE))[0]))


def check(model: Manifest, header: bytes) -> None:
    model.check(header, 8 + len(header) + model.data_bytes)


def test_a_manifest_is_read_without_torch(model: Manifest) -> None:
    assert model.tensors == {
        "a": Tensor("F32", (2, 3)),
        "b": Tensor("I64", (4,)),
        "c": Tensor("F32", ()),
        "d": Tensor("F32", (0,)),
    }
    assert model.data_bytes == 24 + 32 + 4


def test_the_same_model_passes_whatever_its_numbers_metadata_and_order(model: Manifest) -> None:
    other = {name: torch.ones_like(tensor) for name, tensor in STATE.items()}
    model.check(*header_and_size(to_bytes(other, {"round": "7", "who": "é" * 100})))
    right = table(model)
    check(model, json.dumps(dict(reversed(right.items()))).encode() + b"   ")


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                                   torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
                                   torch.float8_e5m2, torch.complex64])  # fmt: skip
def test_every_dtype_that_weights_come_in_is_known(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(to_bytes({"x": torch.zeros(3).to(dtype)}))
    assert Manifest.of(path).data_bytes == 3 * torch.zeros(1).to(dtype).element_size()


def renamed(table: dict[str, Any]) -> None:
    table["z"] = table.pop("a")


def missing(table: dict[str, Any]) -> None:
    del table["d"]


def further(table: dict[str, Any]) -> None:
    table["e"] = table["d"]


def reshaped(table: dict[str, Any]) -> None:
    table["a"]["shape"] = [3, 2]


def other_dtype(table: dict[str, Any]) -> None:
    table["a"]["dtype"] = "I32"


def unknown_dtype(table: dict[str, Any]) -> None:
    table["a"]["dtype"] = "PICKLE"


def overlapping(table: dict[str, Any]) -> None:
    table["a"]["data_offsets"] = table["b"]["data_offsets"]


def swapped_ends(table: dict[str, Any]) -> None:
    table["a"]["data_offsets"].reverse()


def beyond_the_end(table: dict[str, Any]) -> None:
    table["c"]["data_offsets"] = [900, 904]


def negative(table: dict[str, Any]) -> None:
    table["c"]["data_offsets"] = [-4, 0]


def not_a_number(table: dict[str, Any]) -> None:
    table["a"]["shape"] = [2.0, 3]


def truth_for_a_number(table: dict[str, Any]) -> None:
    table["b"]["shape"] = [4, True]


def huge(table: dict[str, Any]) -> None:
    table["a"]["shape"] = [2, 10**300]


def infinite(table: dict[str, Any]) -> None:
    table["a"]["shape"] = [2, float("inf")]


def more_about_it(table: dict[str, Any]) -> None:
    table["a"]["code"] = "x"


def metadata_of_numbers(table: dict[str, Any]) -> None:
    table["__metadata__"] = {"round": 3}


def half_a_character(table: dict[str, Any]) -> None:
    table["__metadata__"] = {"who": "\ud800"}


@pytest.mark.parametrize(
    "change",
    [renamed, missing, further, reshaped, other_dtype, unknown_dtype, overlapping, swapped_ends, beyond_the_end,
     negative, not_a_number, truth_for_a_number, huge, infinite, more_about_it, metadata_of_numbers,
     half_a_character],
)  # fmt: skip
def test_a_header_that_is_not_the_models_is_refused(model: Manifest, change: Any) -> None:
    wrong = table(model)
    check(model, json.dumps(wrong).encode())
    change(wrong)
    with pytest.raises(WrongModel):
        check(model, json.dumps(wrong).encode())


@pytest.mark.parametrize(
    "header",
    [b"", b"{}", b"[]", b"null", b"{", b'{"a": \xff}', b"[" * 60_000, b'{"a":' * 12_000, b'{"a": 1' + b"0" * 5000
     + b"}", b'{"a": {}, "a": {}}', b" {}", b"{}\n{}", b"\x80\x04\x95pickle", b'{"a": NaN}', b'{"a": -Infinity}'],
)  # fmt: skip
def test_hostile_json_is_refused(model: Manifest, header: bytes) -> None:
    with pytest.raises(WrongModel):
        check(model, header)


def test_a_key_given_twice_is_refused_even_deep_inside(model: Manifest) -> None:
    text = json.dumps(table(model))
    with pytest.raises(WrongModel, match="twice"):
        check(model, text.replace('"dtype"', '"dtype": "F32", "dtype"', 1).encode())


def test_sizes_are_refused_before_anything_is_read(model: Manifest) -> None:
    for size in (0, 8, model.data_bytes, 8 + model.data_bytes + model.max_header_bytes + 1, 1 << 50):
        with pytest.raises(WrongModel):
            model.check_size(size)
    for length in (0, 1 << 63, model.header_bytes - 1, model.header_bytes + 1):
        with pytest.raises(WrongModel):
            model.check_length(length, 8 + model.header_bytes + model.data_bytes)


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1])
def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(to_bytes(STATE)[:cut])
    with pytest.raises(BadInput, match=r"model\.safetensors is not safetensors"):
        Manifest.of(path)
    with pytest.raises(BadInput, match="cannot be read"):
        Manifest.of(tmp_path / "none")


def test_a_header_of_absurd_length_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little"))
    with pytest.raises(BadInput, match="too long"):
        Manifest.of(path)
    assert module.MAX_HEADER_BYTES < 1 << 40

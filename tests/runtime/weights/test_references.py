from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tramfl.learning.model.coded_files import CODEC, REFERENCE, SCALES
from tramfl.learning.model.weights import digest, to_bytes
from tramfl.learning.training.transit import TransitCoder
from tramfl.notation import BadInput
from tramfl.runtime.weights import References, WeightStore, readout_at

FIRST = {"weight": torch.randn(4, 9, generator=torch.Generator().manual_seed(0)), "bias": torch.zeros(4)}
OWN = to_bytes(FIRST)


@pytest.fixture
def references(tmp_path: Path) -> References:
    (tmp_path / f"{digest(OWN)}.safetensors").write_bytes(OWN)
    return References(tmp_path, digest(OWN))


def coded(scale: float | None = None, **about: str) -> bytes:
    coder = TransitCoder("int4", 0, FIRST)
    state = {name: tensor + 0.1 for name, tensor in FIRST.items()}
    packed = coder.packed(state, coder.through(state, 1))
    if scale is not None:
        packed[SCALES + "weight"][2] = scale
    return to_bytes(packed, {CODEC: "int4", REFERENCE: digest(OWN), **about})


def test_a_coded_file_names_its_reference(references: References, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(coded())
    assert references.named_by(tmp_path / "w") == digest(OWN)
    assert references.path(digest(OWN)).exists()
    assert References(tmp_path, None).named_by(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "content",
    [
        coded(scale=float("nan")),
        coded(scale=float("inf")),
        coded(scale=-1.0),
        coded(scale=1e38),
        coded(codec="int3"),
        coded(codec="float32"),
        to_bytes(FIRST),
        coded()[:40],
        b"nothing of the kind",
    ],
)
def test_hostile_coded_files_are_refused_before_they_are_stored(
    references: References, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(BadInput):
        references.named_by(tmp_path / "w")


@pytest.mark.parametrize("name", ["../../key", "", "A" * 64, "0" * 63])
def test_a_name_that_is_no_digest_leads_to_no_file(references: References, name: str) -> None:
    with pytest.raises(BadInput, match="not the digest of a reference"):
        references.path(name)


def test_a_fetched_reference_with_other_tensors_is_refused_and_removed(
    references: References, tmp_path: Path
) -> None:
    for wrong in ({"weight": torch.zeros(4, 8), "bias": torch.zeros(4)}, {"weight": torch.zeros(4, 9)}):
        path = tmp_path / "fetched.safetensors"
        path.write_bytes(to_bytes(wrong))
        with pytest.raises(BadInput, match="other tensors"):
            references.check(path)
        assert not path.exists()
    (tmp_path / "good").write_bytes(to_bytes({"weight": torch.ones(4, 9), "bias": torch.zeros(4)}))
    references.check(tmp_path / "good")


def test_damaged_headers_of_coded_files_end_in_one_sentence(references: References, tmp_path: Path) -> None:
    rng, content = np.random.default_rng(1), coded()
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(300):
        damaged = bytearray(content)
        for place in rng.integers(0, header, rng.integers(1, 5)):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / "w").write_bytes(damaged)
        try:
            assert references.named_by(tmp_path / "w") is not None
        except BadInput:
            continue


def test_a_read_out_is_known_by_its_file_and_none_where_the_file_is_wrong(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "run")
    assert readout_at(store) is None
    content = to_bytes(FIRST, {"made-with": "a" * 64, "round": "7"})
    store.readout.write_bytes(content)
    found = readout_at(store)
    assert found is not None
    assert (found.round, found.weights, found.digest) == (7, "a" * 64, digest(content))
    for wrong in (b"x", to_bytes(FIRST), to_bytes(FIRST, {"made-with": "../x", "round": "7"})):
        store.readout.unlink()
        store.readout.write_bytes(wrong)
        assert readout_at(store) is None

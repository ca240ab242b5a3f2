"""Samples in memory, on disk and read as they are used give the same batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tramfl.learning.data.datasets import Dataset
from tramfl.learning.data.parts import Arrays
from tramfl.learning.training.samples import ArraySamples, ImageSamples, StreamSamples

CPU = torch.device("cpu")
ORDER = torch.tensor([5, 1, 7, 0, 3, 2, 6])


class Drawing(torch.utils.data.Dataset[Any]):
    """Draws from all three global generators when it is read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        drawn = [float(index), torch.rand(()).item(), float(np.random.rand()), random.random()]  # noqa: NPY002
        return drawn, index % 2


def batches(samples: Any, seed: int = 0) -> list[tuple[Any, torch.Tensor]]:
    return list(samples.batches(ORDER, 3, seed))


def test_what_a_data_set_draws_follows_from_the_seed_not_from_the_number_of_workers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    alone = batches(StreamSamples(Drawing(), CPU, 0), seed=4)
    assert torch.equal(torch.rand(2), expected), "training's own draws go on as before"
    two = StreamSamples(Drawing(), CPU, 2)
    for _ in range(2):  # workers stay from pass to pass
        for (one, targets), (other, same) in zip(alone, batches(two, seed=4), strict=True):
            assert torch.equal(one, other)
            assert torch.equal(targets, same)
    assert torch.cat([inputs for inputs, _ in alone])[:, 0].tolist() == ORDER.tolist()
    assert not torch.equal(alone[0][0], batches(StreamSamples(Drawing(), CPU, 0), seed=5)[0][0])
    assert alone[0][0].dtype == torch.float32


def test_a_pass_that_is_given_up_leaves_the_next_one_whole() -> None:
    samples = StreamSamples(Drawing(), CPU, 1)
    next(samples.batches(ORDER, 2))
    assert [len(targets) for _, targets in batches(samples)] == [3, 4]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.uint8, np.int64, np.bool_])
def test_arrays_of_any_type_keep_it_but_for_double_precision(dtype: Any, tmp_path: Path) -> None:
    inputs = (np.arange(8 * 6).reshape(8, 2, 3) % 2).astype(dtype)
    targets = np.arange(8, dtype=np.int32)
    np.save(tmp_path / "inputs.npy", inputs)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    kept, read = (batches(ArraySamples(Arrays(i, targets), CPU)) for i in (inputs, mapped))
    expected = torch.float32 if dtype is np.float64 else torch.from_numpy(inputs).dtype
    for (one, target), (other, same) in zip(kept, read, strict=True):
        assert one.dtype == other.dtype == expected
        assert target.dtype == torch.int64
        assert torch.equal(one, other)
        assert torch.equal(target, same)
    assert torch.equal(kept[0][0].double(), torch.from_numpy(inputs[ORDER[:3].numpy()]).double())


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured as Linux shows it")
def test_a_read_only_memory_map_of_images_is_never_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 256 << 20
    made = np.lib.format.open_memmap(tmp_path / "i.npy", mode="w+", dtype=np.uint8, shape=(size >> 12, 1, 64, 64))
    made[::7] = 9
    made.flush()
    monkeypatch.setattr("tramfl.learning.training.samples._PREPARED_BYTES", 1 << 20)
    images = np.load(tmp_path / "i.npy", mmap_mode="r")
    labels = np.arange(len(images)) % 3
    before = anonymous_bytes()
    data = Dataset.from_arrays("maps", images, labels, images[:4], labels[:4])
    samples = ImageSamples(data.train_images, data.train_labels, mean=data.mean, std=data.std, device=CPU)
    for _ in samples.batches(torch.arange(0, len(samples), 8), 32):
        pass
    arrays = ArraySamples(Arrays(images, labels), CPU)
    for _ in arrays.batches(torch.arange(0, len(samples), 8), 32):
        pass
    assert anonymous_bytes() - before < size * 0.75
    assert data.mean == pytest.approx((float(images[:70].mean()) / 255,), rel=0.05)


def test_a_table_of_inputs_stays_a_table() -> None:
    inputs = {"ids": np.arange(16).reshape(8, 2), "mask": np.ones((8, 2), dtype=np.float32)}
    samples = ArraySamples(Arrays(inputs, np.arange(8.0)), CPU)
    (first, targets), *_ = batches(samples)
    assert first["ids"].tolist() == [[10, 11], [2, 3], [14, 15]]
    assert first["mask"].shape == (3, 2)
    assert targets.dtype == torch.float32
    assert samples.shape == {"ids": (2,), "mask": (2,)}

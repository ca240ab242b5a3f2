"""A folder of images, one folder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tramfl.learning.data.datasets import Dataset
from tramfl.learning.data.parts import Stream
from tramfl.notation import BadInput

Image = pytest.importorskip("PIL.Image")


def draw(path: Path, grey: int, size: tuple[int, int] = (10, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path)


def test_a_folder_a_class_is_split_evenly_and_read_as_it_is_used(tmp_path: Path) -> None:
    for name, grey in (("cat", 0), ("dog", 255)):
        for number in range(10):
            draw(tmp_path / name / f"{number}.png", grey)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    data = Dataset.from_folder(tmp_path, image_size=4)
    assert data.classes == ("cat", "dog")
    assert data.label_counts.tolist() == [8, 8]
    assert len(data.test) == 4
    assert isinstance(data.train, Stream)
    inputs, target = data.train.sample(15)
    assert (inputs.shape, inputs.dtype, target) == ((3, 4, 4), np.float32, 1)
    np.testing.assert_allclose(inputs, 1.0)
    grey = Dataset.from_folder(tmp_path, image_size=4, mean=(0.0,), std=(1.0,)).train.sample(0)[0]
    assert grey.shape == (1, 4, 4)


def test_train_and_test_folders_are_taken_as_they_are_and_a_site_may_lack_a_class(tmp_path: Path) -> None:
    draw(tmp_path / "train/b/1.png", 1)
    draw(tmp_path / "test/a/1.png", 1)
    data = Dataset.from_folder(tmp_path, image_size=4, classes=("a", "b"))
    assert data.label_counts.tolist() == [0, 1]
    assert len(data.test) == 1


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        Dataset.from_folder(tmp_path / "none", image_size=4)
    with pytest.raises(BadInput, match="has no folders in it"):
        Dataset.from_folder(tmp_path, image_size=4)
    (tmp_path / "cat").mkdir()
    with pytest.raises(BadInput, match="no training images of cat"):
        Dataset.from_folder(tmp_path, image_size=4)
    for number in range(5):
        (tmp_path / "cat" / f"{number}.png").write_text("not an image")
    with pytest.raises(BadInput, match=r"0\.png cannot be read as an image"):
        Dataset.from_folder(tmp_path, image_size=4)

"""A folder of images, one folder a class, as `tramfl.Data`; images are read as they are used.

    scans/train/CLASS/*.png and scans/test/CLASS/*.png, or
    scans/CLASS/*.png, of which a share of each class becomes the test part

Files count in the order of their names, so that every machine sees the same data. Needs Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tramfl.learning.data.own import Data
from tramfl.notation import BadInput

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


class FolderImages:
    """Image files with a class each: `images[i]` is a float32 array, channels x height x width, and a number."""

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.files = [str(file) for file, _ in files]
        self.targets = np.array([number for _, number in files], dtype=np.int64)
        self._size = image_size
        self._mean = np.asarray(mean, dtype=np.float32)[:, None, None]
        self._std = np.asarray(std, dtype=np.float32)[:, None, None]
        self._mode = "L" if len(mean) == 1 else "RGB"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - an extra

        try:
            with Image.open(self.files[index]) as image:
                scaled = image.convert(self._mode).resize((self._size, self._size), Image.Resampling.BILINEAR)
        except (UnidentifiedImageError, OSError) as error:
            raise BadInput(f"{self.files[index]} cannot be read as an image ({error}).") from None
        pixels = np.asarray(scaled, dtype=np.float32).reshape(self._size, self._size, -1).transpose(2, 0, 1) / 255
        return ((pixels - self._mean) / self._std).astype(np.float32, copy=False), int(self.targets[index])


def data_from_folder(
    folder: Path,
    *,
    image_size: int,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] = (0.5, 0.5, 0.5),
    std: Sequence[float] = (0.5, 0.5, 0.5),
    test_share: float = 0.2,
) -> Data:
    """The images in `folder`, scaled to a square of `image_size` pixels a side.

    One number in `mean` and `std` means grey images, three mean colour. `classes` are the names of the folders in
    their order; a site that does not have all of them must name them all.
    """
    try:
        import PIL  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise BadInput("Dataset.from_folder reads images with Pillow: pip install 'tramfl[images]'.") from None
    if len(mean) not in (1, 3) or len(std) != len(mean) or min(std) <= 0:
        raise BadInput("from_folder: mean and std need one number (grey) or three (colour) each, std above 0.")
    if not 0 < test_share < 1:
        raise BadInput(f"from_folder: test_share = {test_share}: give a share between 0 and 1.")
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    names = tuple(classes) if classes is not None else _class_names(folder / "train" if divided else folder)
    if divided:
        train, test = _files(folder / "train", names), _files(folder / "test", names)
    else:
        train, test = _split(_files(folder, names), test_share)
    for what, files in (("training", train), ("test", test)):
        if not files:
            raise BadInput(f"{folder} has no {what} images of {', '.join(names)}.")
    parts = [FolderImages(files, image_size, mean, std) for files in (train, test)]
    return Data(parts[0], parts[1], classes=names, name=folder.name)


def _class_names(folder: Path) -> tuple[str, ...]:
    try:
        names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    except OSError as error:
        raise BadInput(f"{folder} cannot be read: {error.strerror}.") from None
    if not names:
        raise BadInput(f"{folder} has no folders in it; images belong into one folder a class.")
    return names


def _files(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """Every image with its class."""
    found = []
    for number, name in enumerate(names):
        place = folder / name
        files = sorted(f for f in place.rglob("*") if f.suffix.lower() in SUFFIXES) if place.is_dir() else []
        found += [(file, number) for file in files]
    return found


def _split(files: list[tuple[Path, int]], test_share: float) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    """Spread the test images evenly over each class's files; the same split on every machine."""
    train: list[tuple[Path, int]] = []
    test: list[tuple[Path, int]] = []
    seen: dict[int, int] = {}
    for file, number in files:
        place = seen[number] = seen.get(number, 0) + 1
        chosen = int(place * test_share + 1e-9) > int((place - 1) * test_share + 1e-9)
        (test if chosen else train).append((file, number))
    return train, test

"""Data sets of images as plain arrays, from one data folder, and where missing files come from.

Neither scikit-learn, which `digits` comes with, nor torch is imported. Nothing is ever unpickled: idx files,
CIFAR-10's binary release and npz archives without objects.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tramfl.learning.data.download import Report
from tramfl.learning.data.releases import DATA_VARIABLE, IDX_RELEASES, Arrays, read_cifar10, read_idx_release
from tramfl.notation import BadInput
from tramfl.references import call_with_known, is_reference, referred

if TYPE_CHECKING:
    from tramfl.learning.data.own import Data

Pixels = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]

_ROWS = 1024
"""Images looked at together where a set may not fit into memory."""

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10")
"""The data sets known by name."""
DIGITS_FILE = Path("datasets", "data", "digits.csv.gz")
"""Where scikit-learn has the images, in its own folder: 64 pixels from 0 to 16 and the label a line."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with labels, divided into training and test samples."""

    name: str
    classes: tuple[str, ...]
    """What each label stands for."""
    train_images: Pixels
    """Samples x channels x height x width; bytes (0 to 255) or float32 on any scale."""
    train_labels: Labels
    test_images: Pixels
    test_labels: Labels
    mean: tuple[float, ...]
    """Per channel, where bytes count as 0 to 1."""
    std: tuple[float, ...]
    node_of_sample: Labels | None = None
    """The node that has each training sample, for `partition.layout = "own"`."""
    balanced: tuple[Labels, tuple[str, ...]] | None = None
    """The stratum of each training sample and the strata's names, where labels are not what is balanced."""

    @property
    def strata(self) -> Labels:
        """What is balanced: one whole number a training sample."""
        return self.train_labels if self.balanced is None else self.balanced[0]

    @property
    def balances_classes(self) -> bool:
        """Whether the strata are the labels."""
        return self.balanced is None

    @property
    def strata_names(self) -> tuple[str, ...]:
        """The names of the strata."""
        return self.classes if self.balanced is None else self.balanced[1]

    @property
    def outputs(self) -> int:
        """How many numbers a network is to give for an image: one a class."""
        return len(self.classes)

    @property
    def knows_outputs(self) -> bool:
        """Whether `outputs` is certain."""
        return True

    @property
    def validation(self) -> None:
        """Nodes keep a share of their training samples aside instead."""
        return

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @property
    def label_counts(self) -> Labels:
        """Training samples of each label."""
        return np.bincount(self.train_labels, minlength=len(self.classes)).astype(np.int64)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        train_images: Any,
        train_labels: Any,
        test_images: Any,
        test_labels: Any,
        *,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        node_of_sample: Any = None,
    ) -> Dataset:
        """A data set from the user's arrays; what does not fit is refused by name."""
        train = _images(train_images, f"{name}: train_images")
        test = _images(test_images, f"{name}: test_images")
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise BadInput(
                f"{name}: test_images are {test.dtype} of {test.shape[1:]}, train_images {train.dtype} of "
                f"{train.shape[1:]}; they must agree."
            )
        train_y = _labels(train_labels, len(train), f"{name}: train_labels")
        test_y = _labels(test_labels, len(test), f"{name}: test_labels")
        count = int(max(train_y.max(), test_y.max())) + 1
        names = tuple(classes) if classes is not None else tuple(str(c) for c in range(count))
        if len(names) < count:
            raise BadInput(f"{name}: there is a label {count - 1}, but classes names only {len(names)}.")
        if mean is None or std is None:
            mean, std = _moments(train)
        if len(mean) != train.shape[1] or len(std) != train.shape[1] or min(std) <= 0:
            raise BadInput(
                f"{name}: mean and std need one number for each of {train.shape[1]} channels, std above 0."
            )
        nodes = None if node_of_sample is None else _labels(node_of_sample, len(train), f"{name}: node_of_sample")
        moments = tuple(map(float, mean)), tuple(map(float, std))
        return cls(name, names, train, train_y, test, test_y, *moments, nodes)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        image_size: int,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
        test_share: float = 0.2,
    ) -> Data:
        """Images in one folder a class, read as they are used: see `tramfl.learning.data.folders`."""
        from tramfl.learning.data.folders import data_from_folder  # noqa: PLC0415 - it needs Pillow

        return data_from_folder(
            Path(folder), image_size=image_size, classes=classes, mean=mean, std=std, test_share=test_share
        )


def on_disk(array: Any) -> bool:
    """Whether an array is a memory map, or a view of one."""
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def data_folder(explicit: Path | None = None) -> Path:
    """Where data sets lie: `explicit`, else TRAMFL_DATA, else the user's cache."""
    if explicit is not None:
        return explicit.expanduser()
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tramfl"


def load_dataset(name: str, data_dir: Path, *, download: bool = True, report: Report | None = None) -> Dataset:
    """The data set called `name`; files missing from `data_dir` are fetched unless `download` is off."""
    if name == "digits":
        return _digits()
    if name in IDX_RELEASES:
        return _published(name, read_idx_release(name, data_dir, download, report))
    if name == "cifar10":
        return _published(name, read_cifar10(data_dir, download, report))
    if name.startswith("npz:"):
        return _npz(Path(name.removeprefix("npz:")).expanduser())
    if is_reference(name):
        return _own(name, data_dir)
    raise BadInput(f"dataset = {name!r}: use {', '.join(NAMES)}, npz:PATH or package.module:attribute.")


# ---- digits: bundled with scikit-learn, so that the first run needs no file at all


def _digits() -> Dataset:
    # The file itself: to import scikit-learn takes as long as to import PyTorch.
    found = find_spec("sklearn")
    file = Path(found.origin if found is not None and found.origin else ".").parent / DIGITS_FILE
    if not file.is_file():
        raise BadInput("dataset = 'digits' comes with scikit-learn: install tramfl[torch].")
    table = np.loadtxt(file, delimiter=",")
    images = table[:, :-1].astype(np.float32).reshape(-1, 1, 8, 8) / 16
    labels = table[:, -1].astype(np.int64)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        # Every fifth image of a label: the same split for ever, on any version of any generator.
        test[np.flatnonzero(labels == label)[4::5]] = True
    return Dataset.from_arrays("digits", images[~test], labels[~test], images[test], labels[test])


# ---- published releases: what their arrays do not say

_CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"),
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
_MEAN: dict[str, tuple[float, ...]] = {
    "mnist": (0.1307,),
    "fashion-mnist": (0.2860,),
    # ImageNet's: the network for these images comes pre-trained on images normalised so.
    "cifar10": (0.485, 0.456, 0.406),
}
_STD: dict[str, tuple[float, ...]] = {
    "mnist": (0.3081,),
    "fashion-mnist": (0.3530,),
    "cifar10": (0.229, 0.224, 0.225),
}


def _published(name: str, arrays: Arrays) -> Dataset:
    return Dataset.from_arrays(name, *arrays, classes=_CLASSES[name], mean=_MEAN[name], std=_STD[name])


# ---- the user's own


def _npz(path: Path) -> Dataset:
    keys = ("train_images", "train_labels", "test_images", "test_labels")
    try:
        with np.load(path, allow_pickle=False) as opened:
            if missing := [key for key in keys if key not in opened]:
                raise BadInput(f"{path} lacks {', '.join(missing)}; it needs the arrays {', '.join(keys)}.")
            arrays = [opened[key] for key in keys]
            classes = [str(c) for c in opened["classes"]] if "classes" in opened else None
    except FileNotFoundError:
        raise BadInput(f"dataset = 'npz:{path}': there is no such file.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} cannot be read as an npz archive of plain arrays ({error}).") from None
    return Dataset.from_arrays(str(path), *arrays, classes=classes)


def _own(reference: str, data_dir: Path) -> Dataset:
    found = referred(reference, "dataset")
    if isinstance(found, type) or (callable(found) and not isinstance(found, Dataset)):
        found = call_with_known(found, data_dir=data_dir)
    return images_in(found, reference)


def images_in(found: Any, reference: str) -> Dataset:
    """A Dataset as it is, or made of any object with the four arrays as attributes."""
    if isinstance(found, Dataset):
        return found
    keys = ("train_images", "train_labels", "test_images", "test_labels")
    if missing := [key for key in keys if not hasattr(found, key)]:
        raise BadInput(f"dataset = {reference!r}: the object lacks {', '.join(missing)}.")
    extras = {key: getattr(found, key, None) for key in ("classes", "mean", "std")}
    return Dataset.from_arrays(reference, *(getattr(found, key) for key in keys), **extras)


# ---- checks


def _images(given: Any, what: str) -> Pixels:
    array = np.asarray(given)
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4 or not array.size:
        raise BadInput(f"{what} has shape {array.shape}; it needs samples x channels x height x width.")
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise BadInput(f"{what} is {array.dtype}; give uint8 (0 to 255) or floating point numbers.")
    if not all(np.isfinite(array[start : start + _ROWS]).all() for start in range(0, len(array), _ROWS)):
        raise BadInput(f"{what} has a value that is not finite.")
    return array.astype(np.float32, copy=False)


def _labels(given: Any, samples: int, what: str) -> Labels:
    array = np.asarray(given)
    if array.shape != (samples,):
        raise BadInput(f"{what} has shape {array.shape}; {samples} images need shape ({samples},).")
    if not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise BadInput(f"{what} must be whole numbers from 0, and is {array.dtype}.")
    return array.astype(np.int64)


def _moments(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel; a channel without variation keeps its scale."""
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    if not on_disk(images):
        mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
        std = images.std(axis=(0, 2, 3), dtype=np.float64)
    else:
        mean, std = _moments_in_pieces(images)
    return tuple((mean / scale).tolist()), tuple(np.where(std > 0, std / scale, 1.0).tolist())


def _moments_in_pieces(images: Pixels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same for a memory map, which may not fit into memory: its pieces are read twice."""
    pieces = [slice(start, start + _ROWS) for start in range(0, len(images), _ROWS)]
    count = len(images) * images.shape[2] * images.shape[3]
    mean = np.sum([images[p].sum(axis=(0, 2, 3), dtype=np.float64) for p in pieces], axis=0) / count
    centre = mean[:, None, None]
    spread = np.sum([((images[p] - centre) ** 2).sum(axis=(0, 2, 3)) for p in pieces], axis=0) / count
    return mean, np.sqrt(spread)

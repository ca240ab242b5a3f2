"""Samples as a training loop takes them: batches of inputs and targets on the device, in a given order.

    ImageSamples    images and labels in memory, scaled and normalised; the paper's data
    ArraySamples    arrays and tensors of any shape and type; a memory map stays on disk
    StreamSamples   data sets that are read as they are used, by worker processes if wanted

All give the same batches for the same order, whatever their memory or the number of workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler, default_collate, get_worker_info

from tramfl.draws import generator
from tramfl.learning.chance import Purpose
from tramfl.learning.data.datasets import Dataset, Pixels, on_disk
from tramfl.learning.data.own import AnyData
from tramfl.learning.data.parts import Arrays, Part, split_sample
from tramfl.learning.seeding import seed_numpy_and_python, seeded_everywhere
from tramfl.notation import BadInput

Batch = tuple[Any, Any]
"""Inputs (a tensor, or a table of tensors by name) and targets."""

_PREPARED_BYTES = 1 << 28
"""Images up to this size are scaled and normalised once; larger sets batch by batch, at about 1 % of a step."""
_GATHERED_BYTES = 1 << 24
"""Batches are gathered together up to this size: fewer, larger reads."""
_AHEAD = 2
"""Batches that each worker reads ahead."""


class Samples(Protocol):
    """Samples that a node trains or is tested on."""

    device: torch.device
    shape: Any
    """Of one sample's inputs."""

    def __len__(self) -> int: ...

    def batches(self, order: Tensor, batch_size: int, seed: int = 0) -> Iterator[Batch]:
        """Inputs and targets of the samples in `order`; a last batch of one joins the one before it.

        What the user's own data draws while it is read follows from `seed`.
        """
        ...


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; auto is CUDA, else Apple's MPS, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(f"training.device = {name!r} cannot be used here ({first}).") from None
    return device


def training_samples(data: AnyData, image_size: int | None, device: torch.device, workers: int) -> Samples:
    """The training part of the data."""
    if isinstance(data, Dataset):
        return _images(data, data.train_images, data.train_labels, image_size, device)
    if image_size is not None:
        raise BadInput(
            f"training.image_size = {image_size}: it scales a Dataset of images, and {data.name} is a tramfl.Data;"
            " scale the inputs there."
        )
    return samples_of(data.train, device, workers)


def test_samples(
    data: AnyData, image_size: int | None, device: torch.device, workers: int, most: int | None
) -> tuple[Samples, NDArray[np.int64]]:
    """The test part of the data, and which of its samples are used where not all are."""
    count = len(data.test_labels) if isinstance(data, Dataset) else len(data.test)
    kept = np.sort(generator(0, Purpose.TEST_SUBSET).permutation(count)[:most])
    if isinstance(data, Dataset):
        # Only those are normalised and kept on the device.
        chosen = (
            (data.test_images, data.test_labels) if most is None else (data.test_images[kept], data.test_labels[kept])
        )
        return _images(data, *chosen, image_size, device), np.arange(len(kept))
    return samples_of(data.test, device, workers), kept


def samples_of(part: Part, device: torch.device, workers: int) -> Samples:
    """A part of the user's data as samples."""
    return ArraySamples(part, device) if isinstance(part, Arrays) else StreamSamples(part.dataset, device, workers)


def example(samples: Samples, count: int) -> Batch:
    """A batch of the first `count` samples, over and over where there are fewer."""
    order = torch.arange(count) % len(samples)
    return next(iter(samples.batches(order.to(samples.device), count)))


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """How `count` samples are cut into batches."""
    whole, left = divmod(count, batch_size)
    sizes = [batch_size] * whole
    if left == 1 and whole:
        # Batch norm learns nothing from one sample, and refuses it where feature maps are a single pixel.
        sizes[-1] += 1
    elif left:
        sizes.append(left)
    return sizes


def _groups(sizes: Sequence[int], sample_bytes: int, batch_size: int) -> Iterator[tuple[int, list[int]]]:
    """Batches that are gathered together: where the first begins, and how long each is."""
    together = max(1, _GATHERED_BYTES // max(1, sample_bytes * batch_size))
    start = 0
    for first in range(0, len(sizes), together):
        group = list(sizes[first : first + together])
        yield start, group
        start += sum(group)


# ---- images


class ImageSamples:
    """Images and labels, ready to be gathered as normalised batches."""

    def __init__(
        self,
        images: Pixels,
        labels: NDArray[np.int64],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int | None = None,
        device: torch.device,
    ) -> None:
        self.device = device
        self.labels = torch.from_numpy(labels).to(device)
        self._side = image_size if images.shape[2:] != (image_size, image_size) else None
        side_y, side_x = (image_size, image_size) if image_size else images.shape[2:]
        self.shape: tuple[int, int, int] = (images.shape[1], side_y, side_x)
        unit = 255.0 if images.dtype == np.uint8 else 1.0
        # (pixel / unit - mean) / std as one multiplication and one addition.
        self._scale = torch.tensor([1 / (unit * s) for s in std], device=device).reshape(-1, 1, 1)
        self._shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).reshape(-1, 1, 1)
        self._image_bytes = 4 * math.prod(self.shape)
        self._prepared = len(images) * self._image_bytes <= _PREPARED_BYTES
        self._rows = _rows_of(images, device)
        if self._prepared:
            everything = torch.arange(len(images), device=device)
            self._rows = _Resident(self._prepare(self._rows.gather(everything)), device)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Tensor, batch_size: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of the samples in `order`; a last batch of one joins the one before it."""
        sizes = batch_sizes(len(order), batch_size)
        for start, group in _groups(sizes, self._image_bytes, batch_size):
            chosen = order[start : start + sum(group)]
            images, labels = self._gather(chosen), self.labels.index_select(0, chosen)
            yield from zip(images.split_with_sizes(group), labels.split_with_sizes(group), strict=True)

    def _gather(self, chosen: Tensor) -> Tensor:
        pixels = self._rows.gather(chosen)
        return pixels if self._prepared else self._prepare(pixels)

    def _prepare(self, pixels: Tensor) -> Tensor:
        images = pixels.to(torch.float32)
        if self._side is not None:
            shrinks = self._side < max(images.shape[2:])
            images = functional.interpolate(
                images, size=(self._side, self._side), mode="bilinear", align_corners=False, antialias=shrinks
            )
        return images.mul(self._scale).add_(self._shift)


def _images(
    data: Dataset, images: Pixels, labels: NDArray[np.int64], image_size: int | None, device: torch.device
) -> ImageSamples:
    return ImageSamples(images, labels, mean=data.mean, std=data.std, image_size=image_size, device=device)


# ---- arrays and tensors


class _Resident:
    """Rows of a tensor on the device."""

    def __init__(self, tensor: Tensor, device: torch.device) -> None:
        self._tensor = tensor.to(device)

    def gather(self, chosen: Tensor) -> Tensor:
        return self._tensor.index_select(0, chosen)  # five times as fast as [chosen]


class _OnDisk:
    """Rows of a memory map, or of an array that may not be written: only what is gathered is copied."""

    def __init__(self, array: NDArray[Any], device: torch.device) -> None:
        self._array, self._device = array, device

    def gather(self, chosen: Tensor) -> Tensor:
        return torch.from_numpy(self._array[chosen.cpu().numpy()]).to(self._device)


def _rows_of(array: Any, device: torch.device) -> _Resident | _OnDisk:
    if isinstance(array, Tensor):
        return _Resident(array.detach(), device)
    if on_disk(array) or not array.flags.writeable:
        return _OnDisk(array, device)
    return _Resident(torch.from_numpy(np.ascontiguousarray(array)), device)


class ArraySamples:
    """Inputs and targets of any shape and type; 64-bit floats become PyTorch's default, whole targets 64-bit."""

    def __init__(self, part: Arrays, device: torch.device) -> None:
        self.device = device
        self._count = len(part)
        table = part.inputs if isinstance(part.inputs, Mapping) else {"": part.inputs}
        self._inputs = {name: _rows_of(array, device) for name, array in table.items()}
        self._targets = _rows_of(part.targets, device)
        self._sample_bytes = sum(math.prod(array.shape[1:]) * array.dtype.itemsize for array in table.values())
        shapes = {name: tuple(array.shape[1:]) for name, array in table.items()}
        self.shape: Any = shapes.get("", shapes)

    def __len__(self) -> int:
        return self._count

    def batches(self, order: Tensor, batch_size: int, seed: int = 0) -> Iterator[Batch]:
        """Inputs and targets of the samples in `order`; a last batch of one joins the one before it."""
        sizes = batch_sizes(len(order), batch_size)
        for start, group in _groups(sizes, self._sample_bytes, batch_size):
            chosen = order[start : start + sum(group)]
            pieces = {n: usual(r.gather(chosen)).split_with_sizes(group) for n, r in self._inputs.items()}
            targets = usual_target(self._targets.gather(chosen)).split_with_sizes(group)
            for place, target in enumerate(targets):
                yield pieces[""][place] if "" in pieces else {n: p[place] for n, p in pieces.items()}, target


def usual(tensor: Tensor) -> Tensor:
    """64-bit floats, which NumPy and Python make without being asked, as PyTorch's default type."""
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


def usual_target(tensor: Tensor) -> Tensor:
    """As `usual`; whole numbers become 64-bit, which PyTorch's losses expect."""
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    return tensor.to(torch.int64) if whole else usual(tensor)


# ---- data sets that are read as they are used


class _Seeded(torch.utils.data.Dataset[Any]):
    """The user's data set, each batch of it read with generators seeded for that batch.

    So what the data set draws depends neither on the number of workers nor on what was read before.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, request: Sequence[int]) -> list[Any]:
        seed, indices = request[0], list(request[1:])
        if get_worker_info() is not None:
            torch.default_generator.manual_seed(seed)
            seed_numpy_and_python(seed)
            return self._read(indices)
        with seeded_everywhere(seed):
            return self._read(indices)

    def _read(self, indices: list[int]) -> list[Any]:
        together = getattr(self._dataset, "__getitems__", None)
        return list(together(indices)) if callable(together) else [self._dataset[index] for index in indices]


class _Plan(Sampler[list[int]]):
    """Which samples make up each batch, for the pass that begins next; the batch's seed comes first."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def _together(samples: list[Any]) -> Batch:
    pairs = [split_sample(sample) for sample in samples]
    inputs = default_collate([_array(inputs) for inputs, _ in pairs])
    return inputs, default_collate([_array(target) for _, target in pairs])


def _array(given: Any) -> Any:
    """A list of numbers as one array; PyTorch would make a list of batches of it."""
    return np.asarray(given) if isinstance(given, list) else given


def _start_worker(_: int) -> None:
    # The process that trains decides when to stop; an interrupt from the keyboard reaches the workers as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A training process that is killed must not leave workers behind, which would keep its pipes open.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class StreamSamples:
    """A map-style data set, read as it is used; at most two batches a worker are in memory."""

    def __init__(self, dataset: Any, device: torch.device, workers: int) -> None:
        self.device = device
        self._count = len(dataset)
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset),
            batch_sampler=self._plan,
            num_workers=workers,
            collate_fn=_together,
            persistent_workers=workers > 0,
            prefetch_factor=_AHEAD if workers else None,
            worker_init_fn=_start_worker,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # a pass draws a number, which must not come from training's own
        )
        self.shape: Any = _shape(_together(_Seeded(dataset).__getitems__([0, 0]))[0])

    def __len__(self) -> int:
        return self._count

    def batches(self, order: Tensor, batch_size: int, seed: int = 0) -> Iterator[Batch]:
        """Inputs and targets of the samples in `order`; a last batch of one joins the one before it."""
        indices, start = order.tolist(), 0
        plan: list[list[int]] = []
        for place, size in enumerate(batch_sizes(len(indices), batch_size)):
            plan.append([(seed + place) % 2**63, *indices[start : start + size]])
            start += size
        self._plan.batches = plan
        if plan:
            for inputs, targets in self._loader:
                yield self._moved(inputs), usual_target(targets).to(self.device, non_blocking=True)

    def _moved(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return {name: self._moved(value) for name, value in inputs.items()}
        if isinstance(inputs, tuple | list):
            return tuple(self._moved(value) for value in inputs)
        return usual(inputs).to(self.device, non_blocking=True) if isinstance(inputs, Tensor) else inputs


def _shape(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _shape(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(_shape(value) for value in inputs)
    return tuple(inputs.shape[1:])

"""One part of the user's data (training, test or validation): arrays, or samples that are read one by one.

    Arrays    inputs and targets with one row a sample; a memory map stays on disk, and only batches are copied
    Stream    anything with `len(x)` and `x[i]`, such as a torch Dataset or a Hugging Face dataset

Nothing here imports torch: tensors and data sets are recognised by what they offer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import BadInput
from tramfl.references import users_code

TARGET_KEYS = ("label", "labels", "target", "targets")
"""In samples that are tables by name, the first of these that is there is the target; the rest are the inputs."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and targets, one row a sample."""

    inputs: Any
    """An array or tensor, or a table of them by name, which a model then takes as keyword arguments."""
    targets: Any

    def __len__(self) -> int:
        return len(self.targets)

    def sample(self, index: int) -> tuple[Any, Any]:
        """Inputs and target of one sample."""
        inputs = self.inputs
        one = {k: v[index] for k, v in inputs.items()} if isinstance(inputs, Mapping) else inputs[index]
        return one, self.targets[index]

    @property
    def known_targets(self) -> Any:
        """The targets, known without reading a sample."""
        return self.targets


@dataclass(frozen=True, eq=False)
class Stream:
    """Samples that are read as they are used: `dataset[i]` gives one."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def sample(self, index: int) -> tuple[Any, Any]:
        """Inputs and target of one sample."""
        with users_code("reading the data"):
            return split_sample(self.dataset[index])

    @property
    def known_targets(self) -> Any:
        """The targets where the data set lists them, as torchvision's do; None where samples must be read."""
        return _listed_targets(self.dataset)


Part = Arrays | Stream


def part_of(given: Any, what: str) -> Part:
    """What the user gave, as a part; `what` is what an error speaks of."""
    if isinstance(given, Arrays | Stream):
        return given
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise BadInput(f"{what} is a {type(given).__name__} of {len(given)}; give a pair (inputs, targets).")
        return _arrays(given[0], given[1], what)
    if (tensors := _tensor_pair(given)) is not None:
        return Arrays(*tensors)
    if hasattr(given, "column_names") and hasattr(given, "with_format"):
        return _hugging_face(given, what)
    if not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
        raise BadInput(
            f"{what} is a {type(given).__name__}; give a pair (inputs, targets) of arrays or tensors, or a map-style"
            " data set: one with len(x) and x[i]."
        )
    if not len(given):
        raise BadInput(f"{what} has no samples.")
    return Stream(given)


def _arrays(inputs: Any, targets: Any, what: str) -> Arrays:
    rows = _rows(targets, f"{what}: targets")
    if isinstance(inputs, Mapping):
        found: Any = {str(name): _rows(array, f"{what}: inputs {name!r}") for name, array in inputs.items()}
        lengths = {name: len(array) for name, array in found.items()}
    else:
        found = _rows(inputs, f"{what}: inputs")
        lengths = {"inputs": len(found)}
    for name, length in lengths.items():
        if length != len(rows):
            raise BadInput(f"{what} has {length} {name} and {len(rows)} targets; they must be as many.")
    if not len(rows):
        raise BadInput(f"{what} has no samples.")
    return Arrays(found, rows)


def _rows(given: Any, what: str) -> Any:
    """An array or tensor as it is, anything else as an array."""
    if not isinstance(given, np.ndarray) and not hasattr(given, "detach"):
        try:
            given = np.asarray(given)
        except ValueError:
            raise BadInput(f"{what}: the rows are not of one shape; pad them, or give a torch Dataset.") from None
    if isinstance(given, np.ndarray) and given.dtype.kind not in "biufc":
        raise BadInput(f"{what} is an array of {given.dtype}; give numbers (text must become token ids first).")
    if not getattr(given, "shape", ()):
        raise BadInput(f"{what} is a single number; give one row a sample.")
    return given


class HuggingFaceRows:
    """A Hugging Face dataset as samples: tensors by column name, and the target apart."""

    def __init__(self, rows: Any, target: str) -> None:
        self._rows = rows.with_format("torch")
        self.target = target
        names = getattr(rows.features[target], "names", None)
        self.classes: tuple[str, ...] | None = tuple(names) if names else None
        self.targets = np.asarray(rows.with_format("numpy")[target][:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return split_sample(self._rows[int(index)])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Several samples in one read."""
        table = self._rows[[int(i) for i in indices]]
        return [split_sample({name: column[i] for name, column in table.items()}) for i in range(len(indices))]


def _hugging_face(rows: Any, what: str) -> Stream:
    target = next((key for key in TARGET_KEYS if key in rows.column_names), None)
    if target is None:
        columns = ", ".join(rows.column_names)
        raise BadInput(f"{what} has the columns {columns}: name the one to predict label, with rename_column.")
    for name in rows.column_names:
        kind = str(getattr(rows.features[name], "dtype", ""))
        if kind in ("string", "large_string"):
            raise BadInput(
                f"{what}: the column {name!r} is text; turn it into token ids with map, and drop it with"
                " remove_columns."
            )
    if not len(rows):
        raise BadInput(f"{what} has no samples.")
    return Stream(HuggingFaceRows(rows, target))


def split_sample(sample: Any) -> tuple[Any, Any]:
    """Inputs and target of a sample: a pair as it is; of a table by name, the target and the rest."""
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    if isinstance(sample, Mapping):
        target = next((key for key in TARGET_KEYS if key in sample), None)
        if target is not None:
            inputs = {key: value for key, value in sample.items() if key != target}
            return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), sample[target]
    raise BadInput(
        f"a sample is a {type(sample).__name__}; it must be a pair (inputs, target), or a table by name with one of"
        f" {', '.join(TARGET_KEYS)} in it."
    )


def _listed_targets(dataset: Any) -> Any:
    """What a data set says its targets are: `targets` or `labels`, also within wrappers such as Subset."""
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        inner = _listed_targets(dataset.dataset)
        return None if inner is None else np.asarray(inner)[np.asarray(dataset.indices, dtype=np.int64)]
    if hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes"):
        parts = [_listed_targets(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)
    if (pair := _tensor_pair(dataset)) is not None:
        return pair[1]
    for name in ("targets", "labels"):
        found = getattr(dataset, name, None)
        if found is not None and not callable(found) and len(found) == len(dataset):
            return found
    return None


def _tensor_pair(dataset: Any) -> tuple[Any, Any] | None:
    """Inputs and targets of torch's TensorDataset."""
    tensors = getattr(dataset, "tensors", None)
    is_pair = type(dataset).__name__ == "TensorDataset" and isinstance(tensors, tuple) and len(tensors) == 2
    return tensors if is_pair else None


def whole_numbers(given: Any) -> NDArray[np.int64] | None:
    """Whole numbers from 0, one a sample, as int64; None where that is not what these are."""
    if given is None:
        return None
    array = given.numpy(force=True) if hasattr(given, "numpy") else np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        return None
    return array.astype(np.int64)


def shape_of(inputs: Any) -> Any:
    """The shape of one sample's inputs; a table of shapes where they are a table by name."""
    if isinstance(inputs, Mapping):
        return {name: shape_of(value) for name, value in inputs.items()}
    return tuple(int(n) for n in np.shape(inputs))


def strata_by(balance: Callable[[Any], Any], part: Part) -> list[Any]:
    """The stratum of every sample as the user's function gives it; each sample is read once."""
    with users_code("app: balance"):
        return [balance(part.sample(index)) for index in range(len(part))]


def width_of(target: Any) -> int:
    """How many numbers a target has."""
    return max(1, int(math.prod(np.shape(target))))

"""`tramfl.Data`: the user's own data, of any shape and type, and what of it is balanced.

What is predicted (targets) is separate from what is balanced (strata). The scheduler equalises the strata: records,
reports and sites call them labels. By default the strata are the targets, where these are whole numbers from 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramfl.learning.data.datasets import Dataset, images_in, load_dataset
from tramfl.learning.data.download import Report
from tramfl.learning.data.parts import part_of, shape_of, strata_by, whole_numbers, width_of
from tramfl.notation import BadInput
from tramfl.references import call_with_known, is_reference, referred, users_code


class Data:
    """Training and test samples, each a map-style torch Dataset or a pair (inputs, targets) of arrays or tensors."""

    def __init__(
        self,
        train: Any,
        test: Any,
        validation: Any = None,
        strata: Any = None,
        classes: Sequence[str] | None = None,
        *,
        node_of_sample: Any = None,
        name: str = "own data",
    ) -> None:
        """`validation` takes the place of the share of training samples that nodes keep aside.

        `strata` has one whole number, or one name of `classes`, for each training sample. `classes` names the strata
        in their order: sites must agree on it, whatever strata each of them has. `node_of_sample` is the number of
        the node that has each training sample, for `partition.layout = "own"`.
        """
        self.name = name
        self.train = part_of(train, f"{name}: train")
        self.test = part_of(test, f"{name}: test")
        self.validation = None if validation is None else part_of(validation, f"{name}: validation")
        self._given_strata = strata
        self._given_classes = None if classes is None else tuple(map(str, classes))
        self.node_of_sample = None if node_of_sample is None else self._nodes(node_of_sample)
        inputs, self._target = self.train.sample(0)
        self.input_shape = shape_of(inputs)
        """Of one sample."""

    def balanced_by(self, balance: Callable[[Any], Any]) -> Data:
        """The same data with the strata that `balance` gives; every training sample is read once for it."""
        same = copy.copy(self)
        same.__dict__.pop("_named_strata", None)
        same._given_strata = strata_by(balance, self.train)
        return same

    @property
    def strata(self) -> NDArray[np.int64]:
        """What is balanced: one whole number a training sample."""
        return self._named_strata[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the strata."""
        return self._named_strata[1]

    @property
    def balances_classes(self) -> bool:
        """Whether the strata are the targets."""
        return self._given_strata is None

    @property
    def strata_names(self) -> tuple[str, ...]:
        """The names of the strata."""
        return self._named_strata[1]

    @cached_property
    def outputs(self) -> int:
        """How many numbers a network is to give for a sample: one a class of the targets, or their width."""
        if self._given_strata is None:
            return len(self.classes)
        known = [whole_numbers(part.known_targets) for part in (self.train, self.test)]
        if known[0] is not None:
            return 1 + max(int(found.max(initial=0)) for found in known if found is not None)
        return width_of(self._target) if self.knows_outputs else len(self.classes)

    @property
    def knows_outputs(self) -> bool:
        """Whether `outputs` is certain: of classes that are not listed, only the strata give an idea how many."""
        listed = self._given_strata is None or self.train.known_targets is not None
        return listed or whole_numbers(np.reshape(self._target, -1)) is None

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Training samples of each stratum."""
        return np.bincount(self.strata, minlength=len(self.classes)).astype(np.int64)

    def content(self) -> dict[str, Any]:
        """What a fingerprint of the data is made of."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        return {**parts, "strata": self.strata, "classes": self.classes, "node_of_sample": self.node_of_sample}

    @cached_property
    def _named_strata(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        what, given, names, highest = f"{self.name}: strata", self._given_strata, self._given_classes, -1
        if given is None:
            given, names, highest = self._targets(names)
        plain = given if hasattr(given, "dtype") else np.asarray(given)
        if isinstance(plain, np.ndarray) and plain.dtype.kind in "US":
            return _by_name(plain.astype(str), names, what)
        numbers = whole_numbers(plain)
        if numbers is None or numbers.shape != (len(self.train),):
            raise BadInput(
                f"{what} must be {len(self.train)} whole numbers from 0, one a training sample, or names of classes;"
                f" they are {getattr(plain, 'dtype', type(plain).__name__)} of shape {np.shape(plain)}."
            )
        count = max(int(numbers.max(initial=0)), highest) + 1
        names = names or tuple(str(label) for label in range(count))
        if len(names) < count:
            raise BadInput(f"{self.name}: there is a stratum {count - 1}, but classes names only {len(names)}.")
        return numbers, names

    def _targets(self, names: tuple[str, ...] | None) -> tuple[Any, tuple[str, ...] | None, int]:
        """The targets as strata, their names where the data knows them, and the highest target in the test part."""
        known = self.train.known_targets
        found = whole_numbers(known)
        if found is None:
            why = "does not list its targets" if known is None else "has targets that are not whole numbers from 0"
            raise BadInput(
                f"{self.name}: train {why}, so what is balanced is not known; give strata=, one whole number for"
                " each training sample, or an App with balance=, a function from a sample to one."
            )
        listed = names or getattr(getattr(self.train, "dataset", None), "classes", None)
        tested = whole_numbers(self.test.known_targets)
        highest = -1 if tested is None else int(tested.max(initial=-1))
        return found, None if listed is None else tuple(map(str, listed)), highest

    def _nodes(self, given: Any) -> NDArray[np.int64]:
        nodes = whole_numbers(given)
        if nodes is None or nodes.shape != (len(self.train),):
            raise BadInput(f"{self.name}: node_of_sample must be {len(self.train)} whole numbers from 0.")
        return nodes


AnyData = Data | Dataset
"""What a learner trains on: `Dataset` is the image case, with its own normalisation and scaling."""


def load_data(name: str, data_dir: Path, *, download: bool = True, report: Report | None = None) -> AnyData:
    """The data that a scenario names: a data set of images, or whatever `package.module:attribute` gives."""
    if name.startswith("npz:") or not is_reference(name):
        return load_dataset(name, data_dir, download=download, report=report)
    found = referred(name, "dataset")
    if isinstance(found, type) or (callable(found) and not isinstance(found, Dataset | Data)):
        with users_code(f"dataset = {name!r}"):
            found = call_with_known(found, data_dir=data_dir)
    if isinstance(found, Mapping) and {"train", "test"} <= found.keys():
        found = Data(found["train"], found["test"], found.get("validation"), name=name)
    return found if isinstance(found, Data) else images_in(found, name)


def _by_name(
    given: NDArray[np.str_], names: tuple[str, ...] | None, what: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    found = tuple(str(name) for name in np.unique(given))
    names = names or found
    if unknown := [name for name in found if name not in names]:
        raise BadInput(f"{what}: there is a {unknown[0]!r}, and classes has only {', '.join(names)}.")
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[str(name)] for name in given], dtype=np.int64), names

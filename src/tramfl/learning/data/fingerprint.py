"""A fingerprint of data: equal data have equal ones, and other data almost surely another.

Arrays and tensors count with their type, shape and bytes; of those above 64 MB, rows spread evenly over the whole
count, so that a memory-mapped array is not read to its end. Of a torch Dataset, which may be slow to read, its length
and a few samples count. They are read twice from the same seed: where the readings differ, the samples are drawn in a
way that no seed reaches, and the length alone counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from tramfl.references import users_code

MOST_BYTES = 64 * 2**20
SAMPLES = 8
"""Samples of a data set that is read lazily."""


def fingerprint(data: Any) -> str:
    """The fingerprint of a data set, of arrays, tensors, or of a container of such."""
    digest = hashlib.sha256()
    _add(digest, data.content() if hasattr(data, "content") else data)
    return digest.hexdigest()[:32]


def _add(digest: Any, thing: Any) -> None:
    if hasattr(thing, "detach") and hasattr(thing, "numpy"):  # a tensor
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray | np.generic):
        _add_array(digest, np.asarray(thing))
    elif is_dataclass(thing) and not isinstance(thing, type):
        for each in fields(thing):
            digest.update(each.name.encode())
            _add(digest, getattr(thing, each.name))
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            digest.update(repr(key).encode())
            _add(digest, value)
    elif isinstance(thing, str | bytes | int | float | bool | type(None)):
        digest.update(f"{type(thing).__name__}:{thing!r};".encode())
    elif isinstance(thing, list | tuple):
        digest.update(f"{len(thing)};".encode())
        for value in thing if len(thing) <= 4 * SAMPLES else _spread(thing):
            _add(digest, value)
    elif hasattr(thing, "__getitem__") and hasattr(thing, "__len__"):  # a map-style torch Dataset
        digest.update(f"{type(thing).__qualname__} of {len(thing)};".encode())
        first, second = _samples_of(thing), _samples_of(thing)
        digest.update(first if first == second else b"")
    elif hasattr(thing, "__array_interface__"):  # an image
        _add_array(digest, np.asarray(thing))
    else:
        digest.update(f"{type(thing).__module__}.{type(thing).__qualname__};".encode())


def _samples_of(dataset: Sequence[Any]) -> bytes:
    """The digest of a few samples, as they are read where random numbers follow from a seed."""
    digest = hashlib.sha256()
    with _seeded(), users_code("reading the data"):
        for value in _spread(dataset):
            _add(digest, value)
    return digest.digest()


def _seeded() -> AbstractContextManager[None]:
    try:
        from tramfl.learning.seeding import seeded_everywhere
    except ImportError:  # without PyTorch nothing is trained
        return nullcontext()
    return seeded_everywhere(0)


def _spread(things: Sequence[Any]) -> list[Any]:
    places = np.unique(np.linspace(0, max(len(things) - 1, 0), SAMPLES).astype(int)) if len(things) else ()
    return [things[int(place)] for place in places]


def _add_array(digest: Any, array: np.ndarray[Any, Any]) -> None:
    digest.update(f"{array.dtype.str}{array.shape};".encode())
    if array.dtype == object:
        _add(digest, array.tolist())
        return
    if array.nbytes > MOST_BYTES and array.ndim:
        rows = max(1, MOST_BYTES // max(1, array.nbytes // len(array)))
        array = array[np.unique(np.linspace(0, len(array) - 1, rows).astype(np.int64))]
    digest.update(np.ascontiguousarray(array).tobytes())

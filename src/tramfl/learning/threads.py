"""The cores that PyTorch trains on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def use_threads(threads: int) -> None:
    """Train on this many cores; results are bit-equal only between runs with the same number."""
    torch.set_num_threads(threads)


@contextmanager
def threads_as_they_were() -> Iterator[None]:
    """Afterwards the process has the threads that it had before, whatever a run inside has set."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Random numbers of code that does not take a generator: torch's, NumPy's and Python's own follow from a seed.

Networks draw from torch's global generator (first weights, dropout). The user's code may also draw from
`numpy.random` and `random`. Inside these contexts all of that follows from the seed; outside it goes on as before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from numpy.random import mtrand


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's draws on the CPU follow from `seed` inside, and go on outside as if nothing had been drawn."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """As `seeded`, for the user's code: what it draws from `numpy.random` and `random` follows from `seed` too."""
    # NumPy's global state takes 0.15 ms to copy and put back; another generator in its place takes 2 microseconds.
    numpys, pythons = mtrand.get_bit_generator(), random.getstate()
    mtrand.set_bit_generator(_SPARES.pop() if _SPARES else np.random.MT19937())
    try:
        with seeded(seed):
            seed_numpy_and_python(seed)
            yield
    finally:
        _SPARES.append(mtrand.get_bit_generator())
        mtrand.set_bit_generator(numpys)
        random.setstate(pythons)


_SPARES: list[np.random.BitGenerator] = []
"""Generators that take the place of NumPy's global one; one for each level of nesting."""


def seed_numpy_and_python(seed: int) -> None:
    """Seed the two global generators beside torch's."""
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the user's code may draw from this generator
    random.seed(seed)


@contextmanager
def drawing_from(seed: int, device: torch.device, *, everywhere: bool = False) -> Iterator[None]:
    """What is drawn on the CPU and on `device` follows from `seed` inside, and goes on as before outside.

    `everywhere` includes NumPy's and Python's generators; it is for runs with code of the user's.
    """
    with seeded_everywhere(seed) if everywhere else seeded(seed):
        if device.type == "cpu":
            yield
        else:
            with _seeded_device(seed, device):
                yield


@contextmanager
def _seeded_device(seed: int, device: torch.device) -> Iterator[None]:
    with ExitStack() as stack:
        if device.type == "cuda":
            before = torch.cuda.get_rng_state(device)
            stack.callback(torch.cuda.set_rng_state, before, device)
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True))
        elif device.type == "mps":
            stack.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
            torch.mps.manual_seed(seed)
        yield

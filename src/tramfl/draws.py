"""Every random draw as a pure function of the run's seed and of what is drawn. NumPy only; imports nothing of tramfl.

Nothing here depends on how often it was called before, so a run that was interrupted and resumed, or a round that was
decided again, draws the same as one that was not; and a simulated run draws the same as a real one.
"""

from __future__ import annotations

import numpy as np

_DECIDING = 102
_FIRST_HOLDER = 103
"""Keep each purpose apart from every other use of the seed."""


def generator(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """The generator for one purpose at one place of the run."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *place)))


def whole_seed(seed: int, purpose: int, *place: int) -> int:
    """The same as one number, for libraries that want to be seeded."""
    return int(_sequence(seed, purpose, *place).generate_state(1, np.uint64)[0]) >> 1


def deciding(seed: int, round_: int) -> np.random.Generator:
    """What a policy draws from in round k = 1, 2, ..."""
    return generator(seed, _DECIDING, round_)


def first_holder(seed: int, nodes: int) -> int:
    """Who decides the first round."""
    return int(generator(seed, _FIRST_HOLDER).integers(nodes))


def _sequence(*numbers: int) -> np.random.SeedSequence:
    """SeedSequence(numbers)."""
    try:
        # Of numbers that fit it makes just these words, one by one, which takes longer.
        return np.random.SeedSequence(np.array(numbers, dtype=np.uint32))
    except OverflowError:
        return np.random.SeedSequence(numbers)

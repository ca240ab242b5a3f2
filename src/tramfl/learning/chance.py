"""Every random draw of learning as a pure function of the run's seed and of what is drawn. NumPy only.

Nothing here depends on how often it was called before, so a run that was interrupted and resumed, or a
round that was decided again, draws the same as one that was not.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for; streams of different purpose are independent."""

    POOL = 1
    """The order in which a node goes through a label's samples: node, label, pass."""
    ORDER = 2
    """The order of an allotment in training: round, node."""
    DROPOUT = 3
    """What the network draws while it trains: round, node."""
    DIVIDE = 4
    """Which node gets which samples."""
    INITIAL = 5
    """The network's first weights."""
    TEST_ORDER = 6
    """The order in which test samples are looked at."""
    TEST_SUBSET = 7
    """Which test samples are used, where not all are."""


def generator(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """The generator for one purpose at one place of the run."""
    return np.random.default_rng(_sequence(seed, purpose, *place))


def whole_seed(seed: int, purpose: int, *place: int) -> int:
    """The same as one number, for libraries that want to be seeded."""
    return int(_sequence(seed, purpose, *place).generate_state(1, np.uint64)[0]) >> 1


def _sequence(*numbers: int) -> np.random.SeedSequence:
    """SeedSequence(numbers)."""
    try:
        # Of numbers that fit it makes just these words, one by one, which takes three times as long.
        return np.random.SeedSequence(np.array(numbers, dtype=np.uint32))
    except OverflowError:
        return np.random.SeedSequence(numbers)

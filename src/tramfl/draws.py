"""The two draws that a simulated run and a real one must make alike. Imports nothing of tramfl.

Each is a function of the seed and the place in the run, so that a run decided again decides the same.
"""

from __future__ import annotations

import numpy as np

_DECIDING = 102
_FIRST_HOLDER = 103
"""Keep each purpose apart from every other use of the seed."""


def deciding(seed: int, round_: int) -> np.random.Generator:
    """What a policy draws from in round k = 1, 2, ..."""
    return np.random.default_rng((seed, _DECIDING, round_))


def first_holder(seed: int, nodes: int) -> int:
    """Who decides the first round."""
    return int(np.random.default_rng((seed, _FIRST_HOLDER)).integers(nodes))

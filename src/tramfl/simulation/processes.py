"""Loads that last, as processes in steps: a step is a round, or a slot where `loads.clock` is "slot".

Every process gives numbers in [0, 1], one per node and one per pair of nodes, as a function of the seed and the step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from tramfl.draws import generator
from tramfl.notation import Reals

STREAM = 101
"""Keeps the draws of loads apart from every other use of the seed."""


class LoadProcess(ABC):
    """Numbers in [0, 1] that are carried from one step to the next."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._step = 0
        self._state = self._begin()

    def at(self, step: int) -> Reals:
        """The numbers at step 1, 2, ...: carried on from the last step asked for, or from the beginning."""
        if step < self._step:
            self._step, self._state = 0, self._begin()
        while self._step < step:
            self._step += 1
            self._state = self._next(self._state, self._step)
        return self._shown(self._state)

    def _rng(self, step: int) -> np.random.Generator:
        return generator(self._seed, STREAM, step)

    @abstractmethod
    def _begin(self) -> Reals:
        """The state before the first step."""

    @abstractmethod
    def _next(self, state: Reals, step: int) -> Reals:
        """The state one step later."""

    def _shown(self, state: Reals) -> Reals:
        """The numbers that belong to a state."""
        return state


class Autoregressive(LoadProcess):
    """AR(1): x_k = phi x_{k-1} + sqrt(1 - phi^2) e_k with normal e_k; shown is the quantile of x_k.

    Every step alone looks like the paper's uniform draws.
    """

    def __init__(self, count: int, seed: int, memory: float) -> None:
        self._memory = memory
        super().__init__(count, seed)

    def _begin(self) -> Reals:
        return self._rng(0).standard_normal(self._count)

    def _next(self, state: Reals, step: int) -> Reals:
        phi = self._memory
        return phi * state + math.sqrt(1.0 - phi * phi) * self._rng(step).standard_normal(self._count)

    def _shown(self, state: Reals) -> Reals:
        return np.array([0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) for x in state.tolist()])


class Bursts(LoadProcess):
    """Markov on and off: nearly everything is free between bursts, nearly nothing within.

    A state's whole part says whether a burst is on. Its fraction is how much is free, drawn when the state begins:
    from the lowest tenth of the range in a burst, from the highest half between two.
    """

    def __init__(self, count: int, seed: int, length: float, pause: float) -> None:
        self._length, self._pause = max(1.0, length), max(1.0, pause)
        super().__init__(count, seed)

    def _begin(self) -> Reals:
        chance, level = self._rng(0).random((2, self._count))
        state: Reals = (chance < self._length / (self._length + self._pause)) + 0.999 * level
        return state

    def _next(self, state: Reals, step: int) -> Reals:
        chance, level = self._rng(step).random((2, self._count))
        on = state >= 1.0
        changed = chance < np.where(on, 1.0 / self._length, 1.0 / self._pause)
        following: Reals = np.where(changed, ~on + 0.999 * level, state)
        return following

    def _shown(self, state: Reals) -> Reals:
        level = state % 1.0
        return np.where(state >= 1.0, 0.1 * level, 0.5 + 0.5 * level)


class DayAndNight(LoadProcess):
    """A sine with a phase of its own for every load, and AR(1) noise around it: busy by day, free by night."""

    MEMORY, NOISE = 0.9, 0.1

    def __init__(self, count: int, seed: int, period: float) -> None:
        self._period = period
        self._phase = generator(seed, STREAM, 0, 1).random(count)
        super().__init__(count, seed)

    def _begin(self) -> Reals:
        return self._rng(0).standard_normal(self._count)

    def _next(self, state: Reals, step: int) -> Reals:
        phi = self.MEMORY
        return phi * state + math.sqrt(1.0 - phi * phi) * self._rng(step).standard_normal(self._count)

    def _shown(self, state: Reals) -> Reals:
        day = 0.5 + 0.5 * np.sin(2 * math.pi * (self._step / self._period + self._phase))
        return np.clip(day + self.NOISE * state, 0.0, 1.0)

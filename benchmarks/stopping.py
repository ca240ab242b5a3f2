"""How long to wait for a better load, where loads last: dynamic programming against the rule of `express`.

    python benchmarks/stopping.py

One hop over one link to one node, both AR(1) with the paper's shares (cifar10: 1.8 s to send and 0.75 s to train when
idle), and 1 s a wait. Printed for each persistence are the mean seconds until the hop is done: without waiting, at
best, by the paper's rule (wait while the hop takes longer than the average and one wait), and by that of express (the
average and the price of a wait). The figures are the same on every machine.
"""

from __future__ import annotations

import math

import numpy as np

from tramfl.notation import Reals
from tramfl.scheduling.express import SLOWNESS

GRID = np.linspace(-3, 3, 61)
CHANCE = np.exp(-GRID * GRID / 2) / np.exp(-GRID * GRID / 2).sum()
QUANTILE = np.array([0.5 * (1 + math.erf(z / math.sqrt(2))) for z in GRID])
SECONDS = (1.8 / (0.005 + 0.995 * QUANTILE))[:, None] + (0.75 / (0.01 + 0.99 * QUANTILE))[None, :]
BOTH = np.outer(CHANCE, CHANCE)


def steps(persistence: float) -> Reals:
    """The chance of each load after a wait."""
    spread = max(1e-9, 1 - persistence**2) ** 0.5
    kernel: Reals = np.exp(-0.5 * ((GRID[None, :] - persistence * GRID[:, None]) / spread) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    return kernel


def mean_seconds(kernel: Reals, threshold: float | None) -> float:
    """The mean time by a threshold on the hop's seconds, or at best."""
    value = SECONDS.copy()
    for _ in range(3000):
        waited = 1 + kernel @ value @ kernel.T
        now = np.minimum(SECONDS, waited) if threshold is None else np.where(threshold > SECONDS, SECONDS, waited)
        if np.abs(now - value).max() < 1e-6:
            break
        value = now
    return float((BOTH * value).sum())


def by_rule(kernel: Reals, price: float) -> float:
    """The mean time where a hop is taken if it lasts less than the mean time and `price`: the fixed point."""
    mean = 8.0
    for _ in range(100):
        mean += 0.3 * (mean_seconds(kernel, mean + price) - mean)
    return mean


def main() -> None:
    print(f"{'persistence':>12}{'no waiting':>12}{'at best':>12}{'paper':>12}{'express':>12}")
    for phi in (0.0, 0.5, 0.9, 0.97, 0.99):
        kernel = steps(phi)
        found = (
            float((BOTH * SECONDS).sum()),
            mean_seconds(kernel, None),
            by_rule(kernel, 1.0),
            by_rule(kernel, 1 + SLOWNESS * phi / (1 - phi)),
        )
        print(f"{phi:12g}", *(f"{value:11.2f}" for value in found))


if __name__ == "__main__":
    main()

"""Your own network, data and loads in one page: `python examples/own_model.py`.

Four weather stations see different kinds of days. One small network visits them, and nobody's readings travel.
"""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tramfl
from tramfl.config import Budget, Partition, Scenario, TrainingSettings
from tramfl.learning.data.datasets import Dataset
from tramfl.simulation.loads import RoundLoads

KINDS = ("calm", "breezy", "windy", "stormy")


class Forecaster(nn.Module):
    """Any module that takes a batch of inputs and gives logits will do."""

    def __init__(self, classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(input_shape), 24), nn.ReLU(), nn.Linear(24, classes)
        )

    def forward(self, readings: Tensor) -> Tensor:
        logits: Tensor = self.layers(readings)
        return logits


def readings(days: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A day is 24 hourly wind speeds, and what kind of day it was."""
    kinds = rng.integers(len(KINDS), size=days)
    gusts = rng.normal(0.0, 3.0, size=(days, 24))
    return (4.0 + 3.0 * kinds[:, None] + gusts).reshape(days, 1, 1, 24), kinds


class DayAndNight:
    """Stations compute at night: what they can spare goes up and down with the round, one after the other."""

    def at(self, round_: int) -> RoundLoads:
        share = [0.55 + 0.45 * math.sin(round_ / 3 + station) for station in range(4)]
        links = [[math.inf if i == j else 1e6 / (1 + abs(i - j)) for j in range(4)] for i in range(4)]
        return RoundLoads([2e6 * s for s in share], links)


def main() -> None:
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays("wind", *readings(1200, rng), *readings(400, rng), classes=KINDS)
    scenario = Scenario(
        name="weather-stations",
        variance_limit=100.0,
        partition=Partition(layout="dirichlet", nodes=4, alpha=0.5),
        training=TrainingSettings(batch_size=16, learning_rate=0.02),
        budget=Budget(targets=(0.9,), rounds=80),
    )
    table = Table("policy", "rounds", "samples", "virtual seconds to 90 %", title="Four stations, one network")
    for policy in ("load-aware", "random", "variance-first"):
        result = tramfl.simulate(scenario, model=Forecaster, data=data, loads=DayAndNight(), policy=policy, seed=1)
        seconds = result.seconds_to(0.9)
        reached = "--" if seconds is None else f"{seconds:.2f}"
        table.add_row(policy, str(result.summary.rounds), f"{result.summary.samples:,}", reached)
    Console().print(table)
    # result.rounds, result.usage and result.candidates are lists of plain rows: pandas.DataFrame(result.rounds).


if __name__ == "__main__":
    main()

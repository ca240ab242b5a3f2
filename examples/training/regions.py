"""Tabular regression balanced by region: `python examples/training/regions.py`.

Four utilities predict a household's consumption from a table of readings. What is predicted is a number; what is
balanced is the region a household is in, so that no region dominates the model. The run aims at a mean absolute
error.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import tramfl
from tramfl.config import Scenario, settings_from

REGIONS = ("coast", "hills", "plain", "city")
FEATURES = 12


def model(input_shape: tuple[int, ...]) -> nn.Module:
    """A small network for rows of a table."""
    return nn.Sequential(nn.Linear(input_shape[0], 32), nn.ReLU(), nn.Linear(32, 1))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Smooth L1: a few odd readings do not rule the fit."""
    return functional.smooth_l1_loss(outputs[:, 0], targets)


def households(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Readings, consumption and region."""
    rng = np.random.default_rng(seed)
    region = rng.choice(len(REGIONS), size=count, p=(0.5, 0.1, 0.15, 0.25))
    readings = rng.normal(size=(count, FEATURES)) + 0.5 * region[:, None]
    weights = np.linspace(-1, 1, FEATURES)
    consumption = readings @ weights + 1.5 * region + np.abs(readings[:, 0]) + rng.normal(0.0, 0.1, count)
    return readings, consumption, region


readings, consumption, region = households(2000, 1)
utility = np.random.default_rng(3).choice(4, size=2000, p=(0.4, 0.3, 0.2, 0.1))
data = tramfl.Data(
    train=(readings, consumption),
    test=households(500, 2)[:2],
    strata=region,
    classes=REGIONS,
    node_of_sample=utility,
    name="households",
)
app = tramfl.App(model=model, data=data, loss=loss, metrics=["mae", "r2"])
SETTINGS = {
    "name": "utilities",
    "variance_limit": 900.0,
    "training": {"learning_rate": 0.05, "clip_norm": 1.0, "schedule": "cosine", "schedule_samples": 20_000},
    "budget": {"metric": "mae", "targets": [0.9, 0.75], "rounds": 150},
}


def main() -> None:
    torch.set_num_threads(1)
    scenario = settings_from(SETTINGS, Scenario, "regions.py")
    result = tramfl.simulate(scenario, app=app)
    last = result.rounds[-1]
    print(f"{result.summary.rounds} rounds, mean absolute error {last['mae']:.3f}, R2 {last['r2']:.3f}")
    for name, used in zip(result.labels, result.rows[-1].used, strict=True):
        print(f"  {name}: {used:,} samples used")
    print(f"a mean absolute error of 0.75 after {result.seconds_to(0.75):.4f} virtual seconds")


if __name__ == "__main__":
    main()

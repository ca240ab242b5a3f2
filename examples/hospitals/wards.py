"""What a site brings: its model and its own data, as one object. `wards:app` is its name in site.toml.

The same object runs in simulation and at every site of a real federation; in this folder:

    tramfl run study.toml --app wards:app
    tramfl init study --sites north,south,west --scenario study.toml
    (in every study/sites/*/site.toml: app = "wards:app", and app_folder = the path of this folder)

A hospital would read its own records here; this one draws them, so that the example runs anywhere.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

import tramfl
from tramfl.learning.data.datasets import Dataset

FINDINGS = ("none", "mild", "severe")
CASES = {"north": (300, 120, 20), "south": (40, 200, 150), "west": (180, 30, 110)}
"""Patients of each hospital by finding: no two are alike."""


class Reader(nn.Module):
    """Any module that takes a batch of inputs and gives logits will do."""

    def __init__(self, classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(input_shape), 32), nn.ReLU(), nn.Linear(32, classes)
        )

    def forward(self, curves: Tensor) -> Tensor:
        logits: Tensor = self.layers(curves)
        return logits


def records(site: str | None = None) -> Dataset:
    """The records of one hospital; of all of them where none is named, as a simulation asks."""
    wanted = [site] if site is not None else list(CASES)
    cases = np.sum([CASES[name] for name in wanted], axis=0)
    rng = np.random.default_rng([sum(map(ord, name)) for name in wanted])
    train = _curves(cases, rng)
    # Everybody tests on the same public cases.
    test = _curves(np.array([100, 100, 100]), np.random.default_rng(0))
    # Fixed figures: every site must scale its inputs alike.
    return Dataset.from_arrays("curves", *train, *test, classes=FINDINGS, mean=(0.0,), std=(1.0,))


def _curves(cases: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    findings = np.repeat(np.arange(len(FINDINGS)), cases)
    time = np.linspace(0.0, 1.0, 32)
    rates = 2.0 + 2.0 * findings + rng.normal(0.0, 0.4, findings.size)
    curves = np.sin(2 * np.pi * rates[:, None] * time) + rng.normal(0.0, 0.9, (findings.size, time.size))
    return curves.reshape(-1, 1, 1, time.size), findings


app = tramfl.App(model=Reader, data=records)

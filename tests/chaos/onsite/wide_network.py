"""Networks for digits whose weights take several chunks to send: 2.4 MB, 2.5 MB coded in four bits, and 45 MB."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

HIDDEN = 8192
POISON = "TRAMFL_TRIAL_POISON"
"""A file: where it exists, what this site trains is spoilt."""


def wide(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """One hidden layer, much wider than digits need."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )


class Laden(nn.Module):
    """The same, with ballast that is never used and travels as it is: a coded file takes several chunks, too."""

    def __init__(self, classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.wide = wide(classes, input_shape)
        self.ballast = nn.Parameter(torch.zeros(1 << 19))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.wide(inputs)
        return logits


class Spoilt(nn.Module):
    """Passes everything on, unless this site is to train nonsense: then training sees inputs of another scale."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs, or nonsense."""
        spoilt = self.training and POISON in os.environ and Path(os.environ[POISON]).exists()
        return 1e4 * inputs if spoilt else inputs


def deep(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """A second wide layer: about 45 MB."""
    channels, height, width = input_shape
    wide = 3328
    return nn.Sequential(
        nn.Flatten(),
        Spoilt(),
        nn.Linear(channels * height * width, wide),
        nn.ReLU(),
        nn.Linear(wide, wide),
        nn.ReLU(),
        nn.Linear(wide, classes),
    )

"""A network for digits whose weights take several chunks to send: about 2.4 MB."""

from __future__ import annotations

from torch import nn

HIDDEN = 8192


def wide(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """One hidden layer, much wider than digits need."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )

"""A folder of images with augmentation: `python examples/training/folder.py [FOLDER]`.

Images lie in one folder a class and are read as they are used, so the set may be larger than memory. Flips and shifts
make each pass over them different. Without a FOLDER the example draws a small one of its own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import tramfl
from tramfl.config import Scenario, settings_from

SHAPES = ("disc", "frame", "stripes")
SIZE = 24
SETTINGS = {
    "name": "shapes",
    "variance_limit": 200.0,
    "partition": {"layout": "pathological", "nodes": 3, "classes_per_node": 2},
    "training": {
        "learning_rate": 0.02,
        "augmentation": ["flip", "crop"],
        "label_smoothing": 0.05,
        "batch_norm": "normal",
    },
    "budget": {"targets": [0.9], "rounds": 60},
}


def model(classes: int) -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, classes)),
    )


def draw(folder: Path, each: int = 80) -> None:
    """Noisy shapes of any colour, as PNG files in one folder a class."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE]
    for name in SHAPES:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            row, column, reach = *rng.integers(9, 15, size=2), rng.integers(4, 8)
            distance = np.maximum(abs(y - row), abs(x - column))
            mask = {
                "disc": (y - row) ** 2 + (x - column) ** 2 <= reach**2,
                "frame": (distance <= reach) & (distance >= reach - 2),
                "stripes": (distance <= reach) & ((y + row) % 4 < 2),
            }[name]
            pixels = rng.integers(0, 60, (SIZE, SIZE, 3)) + mask[..., None] * rng.integers(90, 190, 3)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:03}.png")


def main() -> None:
    torch.set_num_threads(1)
    scenario = settings_from(SETTINGS, Scenario, "folder.py")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(made) / "shapes"
        if not folder.exists():
            draw(folder)
        data = tramfl.Dataset.from_folder(folder, image_size=SIZE)
        result = tramfl.simulate(scenario, app=tramfl.App(model=model, data=data))
    print(f"{len(data.train):,} training images of {', '.join(data.classes)}")
    print(f"{result.summary.rounds} rounds, accuracy {result.summary.test_accuracy:.1%}")


if __name__ == "__main__":
    main()

"""Fine-tuning with a frozen backbone, where only adapters travel: `python examples/training/adapters.py`.

Every site has the same pre-trained backbone; here it is drawn from a seed, as a stand-in for a downloaded one.
Low-rank adapters (LoRA) beside its layers and a head are trained. Only these travel between sites: the frozen weights
are compared by their digest before a run begins, and never sent.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import tramfl
from tramfl.config import Scenario, settings_from

KINDS = ("healthy", "rust", "blight")
WIDTH, RANK = 256, 4


class Adapted(nn.Module):
    """A frozen linear layer, and a product of two thin matrices beside it that is trained."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        changed: Tensor = self.frozen(inputs) + self.up(self.down(inputs))
        return changed


def pretrained() -> list[nn.Linear]:
    """The layers of the backbone: the same at every site."""
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        return [nn.Linear(64, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]


def model(classes: int) -> nn.Module:
    """Backbone with adapters, and a head."""
    layers: list[nn.Module] = []
    for layer in pretrained():
        layers += [Adapted(layer), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, classes))


def leaves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of leaves, and what is wrong with them."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(KINDS), size=count)
    centres = np.random.default_rng(0).normal(size=(len(KINDS), 64))
    return centres[kinds] + rng.normal(0.0, 3.0, size=(count, 64)), kinds


def records(site: str | None = None) -> tramfl.Data:
    """The records of one site; of all of them where none is named, as a simulation asks."""
    seed = 1 if site is None else 10 + sum(map(ord, site))
    return tramfl.Data(train=leaves(900, seed), test=leaves(400, 2), classes=KINDS, name="leaves")


app = tramfl.App(model=model, data=records)
SETTINGS = {
    "name": "adapters",
    "variance_limit": 200.0,
    "partition": {"layout": "dirichlet", "nodes": 3},
    "training": {"optimizer": "adam", "learning_rate": 0.002},
    "budget": {"targets": [0.85], "rounds": 60},
}


def main() -> None:
    torch.set_num_threads(1)
    scenario = settings_from(SETTINGS, Scenario, "adapters.py")
    result = tramfl.simulate(scenario, app=app)
    whole = 8 * sum(weight.nbytes for weight in model(len(KINDS)).parameters())
    sent = result.summary.cost.model_bits
    print(f"{sent / 1e6:.2f} of {whole / 1e6:.2f} Mbit travel ({sent / whole:.0%})")
    print(f"{result.summary.rounds} rounds, accuracy {result.summary.test_accuracy:.1%}")


if __name__ == "__main__":
    main()

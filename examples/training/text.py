"""Text classification with token ids and an embedding network: `python examples/training/text.py`.

Three newsrooms file short messages of four topics; no newsroom has all of them. A message is a row of token ids,
padded with 0. The network averages the embeddings of its tokens. AdamW trains it, and the run aims at a macro F1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import tramfl
from tramfl.config import Scenario, settings_from

TOPICS = ("sport", "money", "weather", "music")
WORDS, LENGTH = 400, 16


class Reader(nn.Module):
    """The mean of a message's embeddings, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24, padding_idx=0)
        self.decide = nn.Linear(24, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens > 0).unsqueeze(-1).float()
        mean = (self.embed(tokens) * there).sum(1) / there.sum(1).clamp(min=1)
        logits: Tensor = self.decide(mean)
        return logits


def messages(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Every topic has words of its own among words that all topics use."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(len(TOPICS), size=count)
    common = rng.integers(200, WORDS, size=(count, LENGTH))
    own = 1 + 50 * topics[:, None] + rng.integers(49, size=(count, LENGTH))
    tokens = np.where(rng.random((count, LENGTH)) < 0.3, own, common)
    lengths = rng.integers(6, LENGTH + 1, size=count)
    return np.where(np.arange(LENGTH) < lengths[:, None], tokens, 0), topics


data = tramfl.Data(train=messages(1500, 1), test=messages(500, 2), classes=TOPICS, name="messages")
app = tramfl.App(model=Reader, data=data, metrics=["f1", "auroc"])
SETTINGS = {
    "name": "newsrooms",
    "seed": 1,
    "variance_limit": 400.0,
    "partition": {"layout": "dirichlet", "nodes": 3, "alpha": 0.4},
    "training": {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01},
    "cost": {"flops_per_sample": 1e6},
    "budget": {"metric": "f1", "targets": [0.9], "rounds": 60},
}


def main() -> None:
    torch.set_num_threads(1)
    scenario = settings_from(SETTINGS, Scenario, "text.py")
    result = tramfl.simulate(scenario, app=app)
    last = result.rounds[-1]
    print(f"{result.summary.rounds} rounds, macro F1 {last['f1']:.3f}, AUROC {last['auroc']:.3f}")
    print(f"macro F1 of 0.9 after {result.seconds_to(0.9):.3f} virtual seconds")


if __name__ == "__main__":
    main()

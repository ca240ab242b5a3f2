"""Real sites with a frozen backbone: only the head of the network travels between them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.runtime.federations import LocalFederation
from tramfl.config import Budget, Partition, Scenario, TrainingSettings
from tramfl.learning.model.weights import from_bytes

TUNED = """
import numpy as np, torch, tramfl
from torch import nn

def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(8, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU())
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(300, 3))

def data(site=None):
    labels = np.arange(60) % 3
    inputs = np.random.default_rng(0).normal(size=(60, 8)) + labels[:, None]
    return tramfl.Data((inputs, labels), (inputs, labels), classes=("x", "y", "z"))

app = tramfl.App(model=lambda: network(1), data=data, metrics=["f1"])
other = tramfl.App(model=lambda: network(2), data=data, metrics=["f1"])
"""
SCENARIO = replace(
    Scenario(),
    app="tuned_module:app",
    policy="random",
    partition=Partition(layout="iid", nodes=2),
    variance_limit=500.0,
    training=TrainingSettings(optimizer="adam", carry_optimizer=True),
    budget=Budget(rounds=100_000),
)
HEAD = {"1.weight", "1.bias"}
STATE = {f"optimizer/0/{name}/{key}" for name in HEAD for key in ("step", "exp_avg", "exp_avg_sq")}


def test_only_the_head_travels_between_sites_that_have_the_same_frozen_part(tmp_path: Path) -> None:
    (tmp_path / "tuned_module.py").write_text(TUNED)
    with LocalFederation(tmp_path / "f", SCENARIO, 2, environment={"PYTHONPATH": str(tmp_path)}) as federation:
        federation.start()
        federation.ready()
        federation.order("start", "run")
        for node in range(2):
            federation.recorded("hop", lambda row, node=node: row.node == node)  # type: ignore[misc]
        rows = federation.recorded("test", lambda row: row.test_accuracy is not None)
        tested = [row for row in rows if row.test_accuracy is not None]
        assert all(isinstance(row.metrics, dict) and 0 <= row.metrics["f1"] <= 1 for row in tested)
        federation.order("stop")
        federation.rest()
        for name in federation.names:
            stored = federation.stored(name)
            assert stored
            for content in stored:
                assert from_bytes(content).keys() == HEAD | STATE
                # 903 numbers of the head, twice more for Adam's moments; the frozen part alone has 93,900.
                assert len(content) < 3 * 4 * 903 + 2000

"""Run folders made up from a seed: input for the tests of reporting, not results of anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tomli_w

from tramfl.config import Budget, Scenario, as_table
from tramfl.notation import Candidate, ModelCost, label_variance
from tramfl.record import CONFIG_FILE, ROUNDS_FILE, SUMMARY_FILE, Row, RowDecision, RowLoads, RowWriter, Summary

LABELS = 10
HELD = {
    3: [[300 if i * 3 <= c < i * 3 + 3 + (i == 2) else 0 for c in range(LABELS)] for i in range(3)],
    5: [[(180 - 20 * i) if c < 9 - 2 * i or c == 9 - i else 0 for c in range(LABELS)] for i in range(5)],
    10: [[100 if (c - i) % LABELS < 3 else 0 for c in range(LABELS)] for i in range(10)],
}
PACE = {"load-aware": 2.5, "variance-first": 1.0, "time-first": 0.6, "random": 0.8}
"""How quickly the made-up accuracy grows with the rounds."""

MakeRun = Callable[..., Path]


def synthetic_run(
    folder: Path,
    *,
    policy: str = "load-aware",
    seed: int = 0,
    rounds: int = 60,
    nodes: int = 5,
    scenario: str = "digits-5-uneven",
    targets: Sequence[float] = (0.7, 0.9),
    training: bool = True,
    reason: str = "Node {node} trains most samples per second of the whole run: {score:.1f}.",
    resolved: dict[str, Any] | None = None,
    summary: bool = True,
    **settings: Any,
) -> Path:
    """A run folder with plausible rows: costs by the loads drawn, an accuracy that saturates."""
    folder.mkdir(parents=True, exist_ok=True)
    scene = Scenario(name=scenario, policy=policy, seed=seed, budget=Budget(targets=tuple(targets)), **settings)
    known = {
        "held": HELD[nodes],
        "labels": [str(c) for c in range(LABELS)],
        "versions": {"tramfl": "0.1.0", "torch": "2.9.0"},
    }
    cost = {"flops_per_sample": 71.57e6, "model_bits": 38.42e6}
    table = as_table(scene) | {"resolved": known | {"cost": cost} if resolved is None else resolved}
    (folder / CONFIG_FILE).write_text(tomli_w.dumps(table), encoding="utf-8")
    rows = _rows(policy, seed, rounds, nodes, training, reason)
    writer = RowWriter(folder / ROUNDS_FILE)
    for row in rows:
        writer.write(row)
    writer.close()
    if summary:
        (folder / SUMMARY_FILE).write_bytes(msgspec.json.encode(_summary(scene, rows, ModelCost(**cost))))
    return folder


def _rows(policy: str, seed: int, rounds: int, nodes: int, training: bool, reason: str) -> list[Row]:
    rng = np.random.default_rng([seed, sum(map(ord, policy))])
    held, used = np.array(HELD[nodes]), np.zeros(LABELS, dtype=np.int64)
    total, holder, rows, skill = 0.0, 0, [], 0.0
    for k in range(1, rounds + 1):
        flops, links = 10e12 * rng.uniform(0.01, 1, nodes), 200e6 * rng.uniform(0.005, 1, nodes)
        order = np.argsort(-flops * links)
        node = {"load-aware": int(order[rng.integers(2)]), "time-first": int(order[0])}.get(
            policy, int(rng.integers(nodes))
        )
        skip = policy == "load-aware" and rng.random() < 0.05
        short = used <= used[held[node] > 0].min() + 100 if policy != "time-first" else np.full(LABELS, True)
        samples = (
            np.zeros(LABELS, dtype=np.int64)
            if skip
            else np.where(short, held[node] // 5, 0) + (held[node] > 0) * rng.integers(0, 5, LABELS)
        )
        used = used + samples
        compute = float(samples.sum()) * 71.57e6 / float(flops[node])
        transfer = 0.0 if skip or node == holder else 38.42e6 / float(links[node])
        idle = 1.0 if skip else 0.0
        total += compute + transfer + idle
        skill += 0.0 if skip else PACE.get(policy, 1.2) / 20
        accuracy = float(np.clip(0.97 - 0.87 * np.exp(-skill) + rng.normal(0, 0.02), 0, 1))
        candidates = tuple(
            Candidate(i, int(held[i].sum()) // 5, 0.01, 0.2, 100.0 + i, 90.0, 5000.0, True) for i in range(nodes)
        )
        why = "Waiting 1 s beats every node." if skip else reason.format(node=node, score=used.sum() / total)
        measured = training and not skip
        bandwidth = tuple(None if i == holder else b for i, b in enumerate(links.tolist()))
        rows.append(
            Row(
                round=k, holder=holder, node=None if skip else node, samples=tuple(samples.tolist()),
                loads=RowLoads(tuple(flops.tolist()), bandwidth),
                compute_seconds=compute, transfer_seconds=transfer, idle_seconds=idle, total_seconds=total,
                used=tuple(used.tolist()), label_variance=label_variance(used.tolist()),
                decision=RowDecision(policy, why, compute + transfer + idle, candidates),
                test_accuracy=accuracy if measured else None,
                test_loss=2.3 * (1 - accuracy) + 0.1 if measured else None,
                validation_loss=1.8 * (1 - accuracy) * float(rng.uniform(0.6, 1.2)) if measured else None,
            )
        )  # fmt: skip
        holder = holder if skip else node
    return rows


def _summary(scene: Scenario, rows: Sequence[Row], cost: ModelCost) -> Summary:
    reached = {
        f"{t:g}": next((r.total_seconds for r in rows if (r.test_accuracy or 0) >= t), None)
        for t in scene.budget.targets
    }
    measured = [row.test_accuracy for row in rows if row.test_accuracy is not None]
    return Summary(
        scenario=scene.name, policy=scene.policy, seed=scene.seed, status="finished", rounds=len(rows),
        skipped_rounds=sum(row.node is None for row in rows), samples=sum(rows[-1].used),
        total_seconds=rows[-1].total_seconds, compute_seconds=sum(r.compute_seconds for r in rows),
        transfer_seconds=sum(r.transfer_seconds for r in rows), idle_seconds=sum(r.idle_seconds for r in rows),
        label_variance=rows[-1].label_variance, largest_label_variance=max(r.label_variance for r in rows),
        seconds_to_target=reached, test_accuracy=measured[-1] if measured else None, cost=cost,
    )  # fmt: skip


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a run folder under a name of the test's own choice: `make_run("a", policy="random")`."""

    def make(name: str = "run", **options: Any) -> Path:
        return synthetic_run(tmp_path / name, **options)

    return make

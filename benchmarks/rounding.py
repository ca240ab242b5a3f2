"""What int4 loses of a change, by how many weights share a scale: `python -m benchmarks.rounding [SCENARIO]`.

The scenario is played by load-aware with weights as they are. After its last round: the mean squared error that the
codec's shared dither would leave, over the mean square of the change since w_0, for each coded tensor. `cut` bounds
the largest change of a group at four times its root mean square. The codec has groups of 256 and cuts nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from msgspec.structs import replace

from tramfl.config import Budget
from tramfl.learning.model.codec import Array, dither, dither_key
from tramfl.learning.model.coded_files import RawFile
from tramfl.learning.training.building import build_learner
from tramfl.simulation.grid import play_cell
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_named

STEPS = 16
CUT = 4.0
GROUPS = (None, 512, 256, 128)


def error(change: Array, group: int | None, cut: float | None) -> float:
    """The mean squared error of a tensor's change, over its mean square."""
    channel = change[0].size
    width = next((w for w in range(group, group // 2 - 1, -1) if channel % w == 0), channel) if group else channel
    d = change.reshape(-1, width).astype(np.float64)
    largest = np.abs(d).max(axis=1, keepdims=True)
    if cut is not None:
        largest = np.minimum(largest, cut * np.sqrt((d * d).mean(axis=1, keepdims=True)))
    scale = np.maximum(largest, 1e-30) / ((STEPS - 1) / 2)
    v = np.resize(dither(dither_key(0, 1)), d.shape)
    q = np.clip(np.floor(d / scale + (STEPS + 1) / 2 - v), 0, STEPS - 1)
    return float(np.square(scale * (q + v - STEPS / 2) - d).sum() / np.square(d).sum())


def main() -> None:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="mnist-5")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    base = scenario_named(chosen.scenario)
    seldom = replace(base.evaluation, every=1000, test_samples=100)
    scenario = replace(base, seed=100, evaluation=seldom, budget=Budget(samples=chosen.samples))
    first = RawFile.of((learner := build_learner(scenario, chosen.data_dir)).weights(learner.initial())).tensors
    with TemporaryDirectory() as folder:
        play_cell(Request(scenario=scenario, out=Path(folder), threads=1, keep_rows=False, data_dir=chosen.data_dir))
        last = RawFile.of((Path(folder) / "model.safetensors").read_bytes()).tensors
    kinds = [(group, cut) for group in GROUPS for cut in (None, CUT)]
    heads = [f"{group or 'a channel'}{'' if cut is None else ', cut'}" for group, cut in kinds]
    print(f"| tensor | shape | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    for name, tensor in first.items():
        if tensor.is_coded:
            change = last[name].array - tensor.array
            found = " | ".join(f"{error(change, group, cut):.4f}" for group, cut in kinds)
            print(f"| {name} | {' x '.join(map(str, tensor.shape))} | {found} |")


if __name__ == "__main__":
    main()

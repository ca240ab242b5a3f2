"""How much memory training takes on data larger than it: `python benchmarks/memory.py [--megabytes 100]`.

The limit is stated first. A data set ten times as large lies in a file; its samples are read as they are used, with
two workers, and a whole pass over it is trained. The peak is what this process and its workers have at most beyond
what they had before the data was opened. Shared pages count once (proportional set size). Pages of the file do not
count: the system may drop them at any time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from tramfl.config import Cost, Evaluation, Partition, Scenario, TrainingSettings
from tramfl.learning.app import App
from tramfl.learning.data.own import Data
from tramfl.learning.training.building import build_learner

FLOATS = 1 << 16
"""Numbers in a sample: a quarter of a megabyte."""


class Records(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples that are pieces of one file."""

    def __init__(self, path: Path, count: int) -> None:
        self._path, self.targets = path, [index % 4 for index in range(count)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self._path.open("rb") as file:
            file.seek(index * 4 * FLOATS)
            return torch.frombuffer(bytearray(file.read(4 * FLOATS)), dtype=torch.float32), self.targets[index]


def anonymous(process: psutil.Process) -> int:
    """Bytes that are this process's own or shared with its workers, without pages of files."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0))


class Peak(threading.Thread):
    """Looks at this process and its workers all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest, self._over = 0, threading.Event()

    def run(self) -> None:
        """Until the end."""
        me = psutil.Process()
        while not self._over.wait(0.05):
            total = 0
            for process in (me, *me.children()):
                try:
                    total += anonymous(process)
                except (OSError, psutil.Error, KeyError, ValueError):
                    continue
            self.highest = max(self.highest, total)

    def end(self) -> int:
        """The most bytes that were seen."""
        self._over.set()
        self.join()
        return self.highest


def trained(data: Data, workers: int) -> None:
    """One pass over all samples."""
    scenario = Scenario(
        partition=Partition(layout="iid", nodes=1, validation_share=0),
        training=TrainingSettings(batch_size=8, workers=workers),
        evaluation=Evaluation(subset=8),
        cost=Cost(flops_per_sample=1.0),
    )
    learner = build_learner(scenario, app=App(model=lambda: nn.Linear(FLOATS, 4), data=data))
    learner.train(0, learner.initial(), tuple(learner.held[0].tolist()), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="the limit")
    limit = parser.parse_args().megabytes * 10**6
    torch.set_num_threads(1)
    count = 10 * limit // (4 * FLOATS)
    small = torch.zeros(4, FLOATS)
    trained(Data((small, torch.arange(4)), (small, torch.arange(4))), 0)  # what every training needs is there by now
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples"
        with path.open("wb") as file:
            file.truncate(count * 4 * FLOATS)
        mapped = np.memmap(path, dtype=np.float32, mode="r", shape=(count, FLOATS))
        labels = np.arange(count) % 4
        cases: dict[str, tuple[Any, int]] = {
            "torch Dataset, 2 workers": (Data(Records(path, count), Records(path, 8)), 2),
            "memory map": (Data((mapped, labels), (mapped[:8], labels[:8])), 0),
        }
        print(f"a set of {count * 4 * FLOATS / 1e6:,.0f} MB, limit {limit / 1e6:,.0f} MB\n")
        met = True
        for name, (data, workers) in cases.items():
            before = anonymous(psutil.Process())
            peak = Peak()
            peak.start()
            trained(data, workers)
            used = peak.end() - before
            met &= used <= limit
            print(f"{name:28}{used / 1e6:8,.0f} MB at most beyond what was there before")
    print(f"\ngoal: at most {limit / 1e6:,.0f} MB: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Express against load-aware: the time to 30,000 samples, scheduling only, on every layout and kind of load.

    python benchmarks/policies.py [--seeds 10] [--first-seed 0] [--jobs 1] [--trace FILE] [--quick] [--results FILE]

Each cell is the geometric mean over the seeds of express's time over load-aware's, with the 95 % confidence interval
of the paired ratios (Student's t on their logarithms). Results are kept in a file, so that an interrupted sweep goes
on where it stopped; they do not depend on --jobs. With --trace FILE, a CSV that `benchmarks/convert_traces.py`
writes, there is one more kind of load. Exit code 1 says that a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
from pathlib import Path

from msgspec.structs import replace

from tramfl.config import Budget, LoadModel
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.regimes import REGIMES, Regime, trace_regime
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

SCENARIOS = [f"{data}-{layout}" for data in ("mnist", "cifar10") for layout in ("3", "5", "10", "5-uneven")]
SAMPLES = 30_000
POLICIES = ("load-aware", "express")
T_95 = {2: 12.71, 3: 4.30, 5: 2.78, 10: 2.26, 20: 2.09, 30: 2.05}
"""Student's t (95 %, two-sided) by the number of seeds."""
WORST, SLOW_NODE, LASTING, ALL = 1.03, 0.5, 0.85, 0.90
"""The bars."""

Cell = tuple[str, str, str, int]
"""Regime, scenario, policy, seed."""


def seconds(cell: Cell, trace: str | None) -> float:
    """The virtual time of one run."""
    regime, name, policy, seed = cell
    scenario = replace(scenario_named(name), policy=policy, seed=seed, budget=Budget(samples=SAMPLES))
    if regime == "one-slow-node":
        scenario = replace(scenario, loads=LoadModel(kind="constant", flops=(1e13, 1e13, 2e11)))
    else:
        scenario = {r.name: r for r in regimes(trace)}[regime].applied(scenario)
    experiment = Experiment(scenario, scheduling_only(scenario))
    return [row.total_seconds for row in experiment.rounds()][-1]


def regimes(trace: str | None) -> list[Regime]:
    return [*REGIMES, *([trace_regime(trace)] if trace else [])]


def _played(task: tuple[Cell, str | None]) -> tuple[Cell, float]:
    return task[0], seconds(*task)


def play(cells: list[Cell], trace: str | None, jobs: int, results: Path) -> dict[Cell, float]:
    """Every cell's time: from the file, or played now and added to it."""
    found: dict[Cell, float] = {}
    if results.exists():
        for line in results.read_text().splitlines():
            regime, name, policy, seed, time = json.loads(line)
            found[regime, name, policy, seed] = time
    todo = [(cell, trace) for cell in cells if cell not in found]
    with results.open("a") as file, multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for number, (cell, time) in enumerate(pool.imap(_played, todo, chunksize=4), start=1):
            found[cell] = time
            file.write(json.dumps([*cell, time]) + "\n")
            file.flush()
            print(f"\r{number}/{len(todo)}", end="", file=sys.stderr)
    return found


def ratio(found: dict[Cell, float], regime: str, name: str, seeds: range) -> tuple[float, float, float]:
    """Geometric mean of express over load-aware, and the ends of its confidence interval."""
    logs = [math.log(found[regime, name, "express", s] / found[regime, name, "load-aware", s]) for s in seeds]
    mean = statistics.fmean(logs)
    half = T_95.get(len(logs), 2.0) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trace", help="a CSV trace for ten nodes")
    parser.add_argument("--quick", action="store_true", help="two seeds, four layouts")
    parser.add_argument("--results", type=Path, default=Path("policies.jsonl"), help="where times are kept")
    options = parser.parse_args()
    names = SCENARIOS[::2] if options.quick else SCENARIOS
    seeds = range(options.first_seed, options.first_seed + (2 if options.quick else options.seeds))
    kinds = regimes(options.trace)
    cells: list[Cell] = [(r.name, n, p, s) for r in kinds for n in names for p in POLICIES for s in seeds]
    cells += [("one-slow-node", "cifar10-3", policy, seed) for policy in POLICIES for seed in seeds]
    found = play(cells, options.trace, options.jobs, options.results)
    print(f"\ntime of express over load-aware's to {SAMPLES:,} samples, seeds {seeds.start} to {seeds.stop - 1}\n")
    print(f"{'':18}", *(f"{regime.name:>20}" for regime in kinds))
    every: dict[str, list[float]] = {regime.name: [] for regime in kinds}
    for name in names:
        row = [ratio(found, regime.name, name, seeds) for regime in kinds]
        print(f"{name:18}", *(f"{mean:5.2f} [{low:4.2f}, {high:4.2f}]".rjust(20) for mean, low, high in row))
        for regime, (mean, _, _) in zip(kinds, row, strict=True):
            every[regime.name].append(mean)
    print(f"{'mean':18}", *(f"{statistics.fmean(every[regime.name]):20.3f}" for regime in kinds))
    return judge(every, kinds, ratio(found, "one-slow-node", "cifar10-3", seeds)[0])


def judge(every: dict[str, list[float]], kinds: list[Regime], slow_node: float) -> int:
    """Print the bars, and say whether all are met."""
    lasting = statistics.fmean(r for regime in kinds if regime.lasting for r in every[regime.name])
    overall = statistics.fmean(r for ratios in every.values() for r in ratios)
    worst = max(r for ratios in every.values() for r in ratios)
    missed = False
    for what, value, bar in (
        ("the worst cell", worst, WORST),
        ("cifar10-3, constant, one slow node", slow_node, SLOW_NODE),
        ("mean over cells in which loads last", lasting, LASTING),
        ("mean over all cells", overall, ALL),
    ):
        print(f"{what}: {value:.3f}, bar {bar:g}: {'met' if value <= bar else 'MISSED'}")
        missed |= value > bar
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""How many rounds a second a scheduling-only simulation plays: `python benchmarks/simulation.py [--quick]`.

Goal: at least 1,000 a second of processor time at 10 nodes x 10 labels, on the class of machine the project is
developed on. Since machines differ, the same run also times a fixed piece of NumPy work and prints the ratio.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from msgspec.structs import replace

from tramfl.simulation.experiment import Experiment
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

GOAL = 1000.0
POLICIES = ("load-aware", "random", "time-first", "variance-first", "tram")


def rounds_per_second(policy: str, rounds: int, repeats: int) -> float:
    """The best of some repeats, as other work on the machine only ever slows a run down."""
    scenario = scenario_named("mnist-10")
    budget = replace(scenario.budget, rounds=rounds, seconds=None, samples=None)
    scenario = replace(scenario, policy=policy, budget=budget)
    best = 0.0
    for _ in range(repeats):
        experiment = Experiment(scenario, scheduling_only(scenario))
        begin = time.process_time()
        played = sum(1 for _ in experiment.rounds())
        best = max(best, played / (time.process_time() - begin))
    return best


def yardstick(repeats: int) -> float:
    """Seconds to sort a million numbers, as a measure of the machine."""
    numbers = np.random.default_rng(0).random(1_000_000)
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        np.sort(numbers)
        times.append(time.process_time() - begin)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    rounds, repeats = (300, 2) if quick else (2000, 4)
    unit = yardstick(20)
    print("10 nodes x 10 labels, no training, the round machine of ten nodes and the record's rows included\n")
    print(f"{'policy':16}{'rounds/s':>10}{'rounds per sort of 1e6 numbers':>34}")
    speeds = {policy: rounds_per_second(policy, rounds, repeats) for policy in POLICIES}
    for policy, speed in speeds.items():
        print(f"{policy:16}{speed:10,.0f}{speed * unit:34.1f}")
    met = min(speeds.values()) >= GOAL
    print(f"\ngoal: at least {GOAL:,.0f} rounds/s with every policy: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

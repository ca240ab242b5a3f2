"""What it brings to give a hop up for its pace: the time to 30,000 samples over the time with deadlines alone.

    python benchmarks/giving_up.py [--seeds 10] [--first-seed 0] [--trace FILE]

Scheduling only, on every layout, loads in slots of 1 s that are predicted by blend. Each number is a geometric mean
over layouts and seeds of `loads.give_up = "slow"` over `"overdue"`, with the 95 % confidence interval of the paired
ratios (1.96 standard errors of their logarithms), and the rounds of all runs that exceed V with each of the two.
--trace FILE, a CSV that `benchmarks/convert_traces.py` writes, adds a kind of load.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from typing import Literal

from msgspec.structs import replace

from tramfl.config import Budget, LoadModel, Scenario
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.regimes import Regime, trace_regime
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

SCENARIOS = [f"{data}-{layout}" for data in ("mnist", "cifar10") for layout in ("3", "5", "10", "5-uneven")]
SAMPLES = 30_000
REGIMES = [
    Regime("ar1", "AR(1)", LoadModel(kind="ar1", clock="slot", prediction="blend")),
    Regime(
        "bursts", "on for 10 s, off for 20 s on average", LoadModel(kind="bursts", clock="slot", prediction="blend")
    ),
]


def played(scenario: Scenario, give_up: Literal["overdue", "slow"]) -> tuple[float, int]:
    """The virtual time of a run, and its rounds above V."""
    scenario = replace(scenario, loads=replace(scenario.loads, give_up=give_up))
    rows = list(Experiment(scenario, scheduling_only(scenario)).rounds())
    limit = scenario.variance_limit * (1 + 1e-9)
    return rows[-1].total_seconds, sum(row.label_variance > limit for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trace", help="a CSV trace for ten nodes")
    options = parser.parse_args()
    kinds = list(REGIMES)
    if options.trace:
        trace = trace_regime(options.trace)
        kinds.append(dataclasses.replace(trace, loads=replace(trace.loads, prediction="blend")))
    for policy in ("express", "load-aware"):
        for regime in kinds:
            logs, above = [], [0, 0]
            for name in SCENARIOS:
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    scenario = replace(scenario_named(name), policy=policy, seed=seed, budget=Budget(samples=SAMPLES))
                    (before, one), (after, other) = (
                        played(regime.applied(scenario), give_up) for give_up in ("overdue", "slow")
                    )
                    logs.append(math.log(after / before))
                    above = [above[0] + one, above[1] + other]
            mean, half = statistics.fmean(logs), 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
            low, high = math.exp(mean - half), math.exp(mean + half)
            print(
                f"{policy:11}{regime.name:8}{math.exp(mean):6.3f} [{low:5.3f}, {high:5.3f}],"
                f" rounds above V: {above[0]} and {above[1]}",
                flush=True,
            )


if __name__ == "__main__":
    main()

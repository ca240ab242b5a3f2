"""The fair grid of docs/methods.md: learning rate and length of a visit for every method, with equal effort.

    python benchmarks/methods.py SCENARIO OUT [METHOD...]

Plays nine settings of every method on seed 100, which no reported result uses, and prints each method's mean
virtual seconds to the scenario's last target; a run that does not get there counts with its whole budget. That is
the scenario's seconds and ten times its samples, so that a method that trains much at a time is not cut short. A
method in which every node keeps a model varies `exchange.rate` and `exchange.local_steps`; one whose model travels
varies `training.learning_rate` and V, which sets the length of a visit. Runs lie in OUT, and a second call goes on
there.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from statistics import fmean

from msgspec import structs

from tramfl.config import Scenario, as_table, settings_from, with_value
from tramfl.methods import method_named, method_names, with_method
from tramfl.record import Summary
from tramfl.simulation.grid import finished, play_cell
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_from

SEEDS = (100,)
RATES = (0.3, 1.0, 3.0)
STEPS = (2, 8, 32)
LIMITS = (0.25, 1.0, 4.0)
"""V over the scenario's."""
ROOM = 10
"""Samples of a run over the scenario's."""


def settings_of(scenario: Scenario) -> list[dict[str, float]]:
    """The nine settings of a method."""
    if scenario.keeps_models:
        return [{"exchange.rate": rate, "exchange.local_steps": steps} for rate, steps in product(RATES, STEPS)]
    rate, limit = scenario.training.learning_rate, scenario.variance_limit
    return [
        {"training.learning_rate": rate * factor, "variance_limit": limit * share}
        for factor, share in product(RATES, LIMITS)
    ]


def played(scenario: Scenario, keys: dict[str, float], seed: int, out: Path) -> Summary:
    table = as_table(scenario)
    for key, value in {**keys, "seed": seed}.items():
        table = with_value(table, key.split("."), value, "grid")
    mark = ",".join(f"{key.rpartition('.')[2]}={value:g}" for key, value in keys.items())
    place = out / scenario.method_name / f"{mark}-{seed}"
    request = Request(scenario=settings_from(table, Scenario, "grid"), out=place, threads=1, keep_rows=False)
    return finished(request) or play_cell(request)


def seconds(summary: Summary) -> float:
    """To the last target; the whole run where it was not reached."""
    reached = list(summary.seconds_to_target.values())[-1]
    return summary.total_seconds if reached is None else reached


def main(name: str, out: Path, methods: list[str]) -> None:
    named = scenario_from(name)
    samples = named.budget.samples
    base = structs.replace(
        named, budget=structs.replace(named.budget, samples=None if samples is None else ROOM * samples)
    )
    print(f"| method | best settings | seconds to {base.budget.targets[-1]:.0%} | all nine, best first |")
    print("|---|---|---|---|")
    for method in methods or method_names():
        scenario = with_method(base, method_named(method))
        found = []
        for keys in settings_of(scenario):
            summaries = [played(scenario, keys, seed, out) for seed in SEEDS]
            missed = sum(None in summary.seconds_to_target.values() for summary in summaries)
            found.append((fmean(map(seconds, summaries)), missed, keys))
        found.sort(key=lambda each: (each[1], each[0]))
        texts = [f"{mean:.3g}" + ("" if not missed else " (missed)") for mean, missed, _ in found]
        best = ", ".join(f"{key} = {value:g}" for key, value in found[0][2].items())
        print(f"| {method} | {best} | {texts[0]} | {', '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

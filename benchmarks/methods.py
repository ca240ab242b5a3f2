"""The fair grid of docs/methods.md: learning rate and length of a visit for every method, with equal effort.

    python -m benchmarks.methods SCENARIO OUT [METHOD...] [--rates 1,3] [--steps 8,32] [--travelling-rates 0.3,1]
                                 [--limits 1,4] [--seeds 100-102] [--set key=value...] [--test-every SAMPLES]
                                 [--jobs N]

Plays all settings of every method on seeds that no reported result uses, and prints the mean virtual seconds of
each setting to the scenario's last target. Settings with which more seeds get there come first; where none does, the
best test counts. The budget is the scenario's, with ten times its samples unless `--set` says otherwise, so that a
method that trains much at a time is not cut short.

A method in which every node keeps a model varies `exchange.rate` and `exchange.local_steps`; one whose model travels
varies the learning rate and V, which sets the length of a visit, both over the scenario's: as many settings, at lower
rates, for a model that travels learns from one node's labels at a time. Runs lie in OUT, and a second call goes on
there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from msgspec import structs

from tramfl.cli.options import changed
from tramfl.config import Scenario, as_table, settings_from, with_value
from tramfl.methods import method_named, method_names, with_method
from tramfl.reporting.runs import load_run
from tramfl.reporting.several import judged_by_mean_model
from tramfl.simulation.grid import finished, play_all, seeds_from
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_from, with_tests_every

SEEDS = "100-100"
RATES = "0.3,1,3,10,30"
"""Learning rates over the scenario's, where every node keeps a model."""
STEPS = "2,8,32,128,512"
TRAVELLING_RATES = "0.1,0.3,1,3,10"
LIMITS = "1,4,16,64,256"
"""V over the scenario's."""
ROOM = 10
"""Samples of a run over the scenario's."""

Keys = dict[str, float]


def settings_of(scenario: Scenario, chosen: argparse.Namespace) -> list[Keys]:
    """All settings of a method."""
    if scenario.keeps_models:
        return [
            {"exchange.rate": rate, "exchange.local_steps": int(steps)}
            for rate, steps in product(_numbers(chosen.rates), _numbers(chosen.steps))
        ]
    rate, limit = scenario.training.learning_rate, scenario.variance_limit
    return [
        {"training.learning_rate": rate * factor, "variance_limit": limit * share}
        for factor, share in product(_numbers(chosen.travelling_rates), _numbers(chosen.limits))
    ]


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def request_of(scenario: Scenario, keys: Keys, seed: int, out: Path, chosen: argparse.Namespace) -> Request:
    """What plays one setting of a method with a seed."""
    table = as_table(scenario)
    for key, value in {**keys, "seed": seed}.items():
        table = with_value(table, key.split("."), value, "grid")
    mark = ",".join(f"{key.rpartition('.')[2]}={value:g}" for key, value in keys.items())
    place = out / scenario.method_name / f"{mark}-{seed}"
    settings = with_tests_every(settings_from(table, Scenario, "grid"), chosen.test_every)
    return Request(scenario=settings, out=place, threads=1, keep_rows=False, data_dir=chosen.data_dir)


class Outcome(NamedTuple):
    """What came of a setting. The best one comes first; of equal ones, the first of the grid is taken."""

    missed: int
    """Seeds that did not reach the target."""
    seconds: float
    """Mean over the seeds that did."""
    short: float = 0.0
    """Where none did: what the best test of each seed lacked to 100 %, in the mean."""

    def __str__(self) -> str:
        missed = f" ({self.missed} missed)" if self.missed else ""
        return f"{1 - self.short:.1%}" if math.isinf(self.seconds) else f"{self.seconds:.3g}{missed}"


def outcome(requests: Sequence[Request]) -> Outcome:
    """What came of one setting, played with every seed.

    The mean of the nodes' models counts as well as the mean over them: the first of the two to reach the target.
    """
    found, best = [], []
    for request in requests:
        assert request.out is not None
        runs = [load_run(request.out)]
        runs += judged_by_mean_model(runs)
        reached = [
            seconds for run in runs if (seconds := list(run.summary.seconds_to_target.values())[-1]) is not None
        ]
        found.append(min(reached, default=None))
        best.append(max(row.test_accuracy for run in runs for row in run.rows if row.test_accuracy is not None))
    known = [seconds for seconds in found if seconds is not None]
    if not known:
        return Outcome(len(found), math.inf, 1 - fmean(best))
    return Outcome(len(found) - len(known), fmean(known))


def lines(base: Scenario, methods: list[str], out: Path, chosen: argparse.Namespace) -> Iterator[str]:
    """The table; a line appears once all settings of its method have been played."""
    yield f"| method | best settings | seconds to {base.budget.targets[-1]:.0%} | all, best first |"
    yield "|---|---|---|---|"
    for method in methods:
        scenario = with_method(base, method_named(method))
        played = [
            (keys, [request_of(scenario, keys, seed, out, chosen) for seed in seeds_from(chosen.seeds)])
            for keys in settings_of(scenario, chosen)
        ]
        missing = [request for _, requests in played for request in requests if finished(request) is None]
        for _ in play_all(missing, chosen.jobs):
            pass
        found = sorted(((outcome(requests), keys) for keys, requests in played), key=lambda each: each[0])
        best = ", ".join(f"{key} = {value:g}" for key, value in found[0][1].items())
        yield f"| {method} | {best} | {found[0][0]} | {', '.join(str(each) for each, _ in found)} |"


def main() -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("out", type=Path)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    for option, default, what in (
        ("--rates", RATES, "learning rates of methods in which every node keeps a model, over the scenario's"),
        ("--steps", STEPS, "their local steps"),
        ("--travelling-rates", TRAVELLING_RATES, "learning rates of a model that travels, over the scenario's"),
        ("--limits", LIMITS, "its V over the scenario's"),
    ):
        parser.add_argument(option, default=default, metavar="A,B", help=f"{what} (default: {default})")
    parser.add_argument("--seeds", default=SEEDS, help="written as 100-102 or 100,105")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="change a key of the scenario")
    parser.add_argument("--test-every", type=int, metavar="SAMPLES", help="trained for every model between two tests")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    named = scenario_from(chosen.scenario)
    samples = named.budget.samples
    roomy = structs.replace(
        named, budget=structs.replace(named.budget, samples=None if samples is None else ROOM * samples)
    )
    base = changed(roomy, named.name, chosen.set)
    for line in lines(base, chosen.methods or method_names(), chosen.out, chosen):
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""The races of docs/methods.md: every method in the four layouts, travelling ones also as the grid tuned them.

    python -m benchmarks.race OUT [--dataset digits] [--layouts 3,5] [--seeds 3] [--methods a,b] [--set key=value...]
                              [--untuned] [--test-every SAMPLES] [--jobs N]

`tramfl methods` has the settings that the grid (`benchmarks/methods.py`) chose for methods in which every node keeps
a model. Travelling ones keep the paper's learning rate and V there; here each of them runs a second time with the
learning rate and V that the grid chose for it on seed 100, as multiples of the scenario's, unless --untuned. Prints,
for every layout, time and traffic to each target, and accuracy at equal time and traffic. Runs lie in OUT, and a
second call goes on.

Testing ten models takes longer than many a round. With --test-every N, the script tests the nodes' models less often:
each time that the nodes have trained N samples more for every model, or after every round where a round is longer. It
tests a model that travels after every round, as the scenario says.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from tramfl.cli.options import changed
from tramfl.config import Scenario
from tramfl.methods import method_named, method_names, with_method
from tramfl.reporting.race import race_tables
from tramfl.reporting.runs import Run, load_run
from tramfl.simulation.grid import finished, play_all, seeds_from
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import LAYOUTS, scenario_named
from tramfl.simulation.setting import held_by_nodes

METHODS = [
    "load-aware",
    "express",
    *(name for name in method_names() if "exchange.rule" in method_named(name).settings),
]
"""Unless others are named: the two that travel, and all in which every node keeps a model."""
TUNED = {"load-aware": (0.3, 4.0), "express": (3.0, 0.25)}
"""What the grid chose for a travelling model: its learning rate and V over the scenario's."""


def entrants(base: Scenario, methods: list[str], *, tuned: bool) -> Iterator[tuple[str, Scenario]]:
    """Every method by its name in the table, and how it is played; travelling ones a second time where `tuned`."""
    for name in methods:
        yield name, with_method(base, method_named(name))
        if tuned and name in TUNED:
            rate, limit = TUNED[name]
            training = structs.replace(base.training, learning_rate=rate * base.training.learning_rate)
            other = structs.replace(base, training=training, variance_limit=limit * base.variance_limit)
            yield f"{name}, tuned", with_method(other, method_named(name))


def with_tests_every(scenario: Scenario, samples: int | None) -> Scenario:
    """The scenario with a test each time that its nodes have trained so many samples more for every model."""
    exchange = scenario.exchange
    if exchange is None or samples is None:
        return scenario
    nodes = len(held_by_nodes(scenario)[0])
    one_model = exchange.rule in ("fedavg", "cyclic")
    trainers = 1 if exchange.rule == "cyclic" else math.ceil(exchange.wait_for * nodes)
    round_ = trainers * exchange.local_steps * scenario.training.batch_size
    every = max(1, samples * (1 if one_model else nodes) // round_)
    return structs.replace(scenario, evaluation=structs.replace(scenario.evaluation, every=every))


def request_of(name: str, scenario: Scenario, out: Path, data_dir: Path | None) -> Request:
    """What plays one run, in a folder that says which row of the table it is for."""
    folder = out / scenario.name / f"{name.replace(', ', '-')}-{scenario.seed}"
    return Request(scenario=scenario, out=folder, threads=1, keep_rows=False, data_dir=data_dir)


def table_of(named: Sequence[tuple[str, Request]]) -> str:
    """The runs, each under the name of its row."""
    runs: list[Run] = []
    for name, request in named:
        assert request.out is not None
        run = load_run(request.out)
        runs.append(replace(run, summary=structs.replace(run.summary, policy=name)))
    return race_tables(runs)


def main() -> None:
    """Play what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--untuned", action="store_true", help="only the scenario's settings for travelling methods")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="change a key of every scenario")
    parser.add_argument("--test-every", type=int, metavar="SAMPLES", help="trained for every model between two tests")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    for layout in chosen.layouts.split(","):
        named = scenario_named(f"{chosen.dataset}-{layout}")
        base = changed(named, named.name, chosen.set)
        entered = [
            (name, with_tests_every(scenario, chosen.test_every))
            for name, scenario in entrants(base, chosen.methods.split(","), tuned=not chosen.untuned)
        ]
        requests = [
            (name, request_of(name, structs.replace(scenario, seed=seed), chosen.out, chosen.data_dir))
            for seed in seeds_from(chosen.seeds)
            for name, scenario in entered
        ]
        missing = [request for _, request in requests if finished(request) is None]
        for _ in play_all(missing, chosen.jobs):
            pass
        print(table_of(requests), end="", flush=True)


if __name__ == "__main__":
    main()

"""What each part of the method express brings, alone and together: `python -m benchmarks.ablation [SCENARIO...]`.

Every part is a set of settings on top of load-aware. Each cell is the mean over the seeds of the virtual seconds to
the target, over load-aware's mean on the same seeds: for a first test at the target, and for a mean of three tests
that stays there. Then the accuracy: the mean of the last ten tests before SAMPLES samples, in points above
load-aware's. Runs are kept in a folder, so an interrupted sweep goes on where it stopped. --figure FILE draws it.

With --same-route a coded hop costs what a float32 hop costs. Every part then visits the same nodes and trains the
same samples as load-aware: codec and read-out alone make a difference. The script ends where a route differs. It
prints the difference of the accuracy on equal seeds, with its 95 % confidence interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from msgspec.structs import replace

from tramfl.cli.options import changed
from tramfl.config import Scenario, as_table, settings_from, with_value
from tramfl.methods import EXPRESS
from tramfl.notation import BadInput
from tramfl.reporting.intervals import half_width
from tramfl.reporting.runs import Run, load_run
from tramfl.reporting.summary import Kind, seconds_by_seed
from tramfl.simulation.grid import finished, play_cell, seeds_from
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import with_training

PARTS: Mapping[str, Mapping[str, Any]] = {
    "load-aware": {},
    "float16": {"transit.codec": "float16"},
    "int8": {"transit.codec": "int8"},
    "int4": {"transit.codec": "int4"},
    "visit": {"evaluation.readout": "visit"},
    "average": {"evaluation.readout": "average"},
    "policy express": {"policy": "express"},
    "int4, average": {"transit.codec": "int4", "evaluation.readout": "average"},
    "express (all)": EXPRESS.settings,
}
COLOURS = {
    "load-aware": "#4d4d4d",
    "float16": "#c6dbef",
    "int8": "#6baed6",
    "int4": "#2171b5",
    "visit": "#a1d99b",
    "average": "#31a354",
    "policy express": "#9e9ac8",
    "int4, average": "#fdae6b",
    "express (all)": "#d94801",
}
"""What codes is blue, what averages green, what does both orange."""
TRIED: Mapping[str, Mapping[str, Any]] = {
    "express, int8": {**EXPRESS.settings, "transit.codec": "int8"},
    "express, rounds of any length": {**EXPRESS.settings, "max_round_in_hops": None},
    "express, V / 4": {**EXPRESS.settings, "variance_limit": 0.25},
    "express, V x 4": {**EXPRESS.settings, "variance_limit": 4.0},
    "express, momentum carried": {**EXPRESS.settings, "training.carry_optimizer": True},
    "express, calibration 0.02": {**EXPRESS.settings, "training.calibration": 0.02},
    "express, calibration 0.1": {**EXPRESS.settings, "training.calibration": 0.1},
}
"""What is not part of express: played where `--part` names it. `variance_limit` is a multiple of the scenario's."""
ON_ONE_ROUTE = ("load-aware", "int8", "int4, average")
"""What --same-route plays where no part is named."""
DEFAULT = ("digits-3", "digits-5", "digits-10", "digits-5-uneven")
TARGETS = {"digits": (0.8, 0.9), "mnist": (0.7, 0.9), "cifar10": (0.4, 0.45)}
SAMPLES = {"digits": 8_000, "mnist": 40_000, "cifar10": 14_000}
LAST_TESTS = 10
KINDS: tuple[Kind, ...] = ("first", "held")


def scenario_of(
    name: str, part: str, samples: int | None = None, tested: int | None = None, sets: Sequence[str] = ()
) -> Scenario:
    """A named scenario with one part of express, played to a number of samples so that all can be compared there."""
    base = changed(scenario_named(name), name, list(sets))
    dataset = base.dataset
    budget = replace(
        base.budget,
        targets=(*TARGETS[dataset], 1.0),
        samples=samples or SAMPLES[dataset],
        seconds=2000.0,
        held_for=3,
    )
    evaluation = replace(base.evaluation, test_samples=tested or base.evaluation.test_samples)
    table = as_table(replace(base, budget=budget, evaluation=evaluation))
    for key, value in {**PARTS, **TRIED}[part].items():
        chosen = value * base.variance_limit if key == "variance_limit" else value
        table = with_value(table, key.split("."), chosen, part)
    return settings_from(table, Scenario, part)


def with_plain_hops(scenario: Scenario, data_dir: Path | None) -> Scenario:
    """The scenario with a hop that costs what a float32 hop costs: the clock charges `model_bits` x coded / plain."""
    bits = scenario.cost.model_bits
    if bits is None:
        raise BadInput(f"{scenario.name}: --same-route needs cost.model_bits.")
    if scenario.transit.codec == "float32":
        return scenario
    charged = with_training(scenario, data_dir, threads=1)[0].cost.model_bits
    return replace(scenario, cost=replace(scenario.cost, model_bits=bits * (bits / charged)))


def check_same_route(run: Run, reference: Run, part: str) -> None:
    """BadInput where a run trained at other nodes, or on other samples, than the reference."""
    rounds = zip_longest(run.rows, reference.rows)
    for round_, (ours, theirs) in enumerate(rounds, 1):
        if ours is None or theirs is None or (ours.node, ours.samples) != (theirs.node, theirs.samples):
            raise BadInput(
                f"{run.scenario}, seed {run.seed}: from round {round_} on, `{part}` takes another route than"
                " load-aware; --same-route compares parts that change codec and read-out alone."
            )


def run_of(scenario: Scenario, part: str, out: Path, data_dir: Path | None) -> Run:
    """One run, played if it is not there yet."""
    named = part.replace(" ", "-").replace(",", "").replace("/", "over")
    folder = out / scenario.name / f"{named}-{scenario.seed}"
    request = Request(scenario=scenario, out=folder, threads=1, keep_rows=False, data_dir=data_dir)
    if finished(request) is None:
        play_cell(request)
    return load_run(folder)


def ratio(runs: Sequence[Run], reference: Sequence[Run], target: float, kind: Kind) -> str:
    """The mean time over the reference's, on the seeds with which both got there."""
    theirs, ours = (
        {seed: s for run in group for seed, s in seconds_by_seed([run], run.policy, target, kind).items()}
        for group in (runs, reference)
    )
    both = theirs.keys() & ours.keys()
    if not both:
        return "--"
    found = fmean(theirs[seed] for seed in both) / fmean(ours[seed] for seed in both)
    return f"{found:.2f}" + ("" if len(both) == len(runs) else f" ({len(both)})")


def accuracy(runs: Sequence[Run]) -> float:
    """Of the last tests, over the seeds, in percent."""
    return fmean(map(accuracy_of, runs))


def accuracy_of(run: Run) -> float:
    """Of the last tests of one run, in percent."""
    return 100 * fmean([row.test_accuracy for row in run.rows if row.test_accuracy is not None][-LAST_TESTS:])


def points(runs: Sequence[Run], reference: Sequence[Run]) -> list[float]:
    """How far each run is above the reference's run of the same seed, in points of accuracy."""
    theirs = {run.seed: accuracy_of(run) for run in reference}
    return [accuracy_of(run) - theirs[run.seed] for run in runs]


def main() -> None:
    """Play what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=DEFAULT)
    parser.add_argument("--part", choices=[*PARTS, *TRIED], action="append", help="only these")
    parser.add_argument("--same-route", action="store_true", help="let a coded hop cost what a float32 hop costs")
    parser.add_argument("--seeds", default="5")
    parser.add_argument("--samples", type=int, help="to train in each run, in place of SAMPLES")
    parser.add_argument("--test-samples", type=int, help="to test on, in place of all")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="change a key of every scenario")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    if chosen.same_route and (chosen.figure is not None or "load-aware" not in (chosen.part or ON_ONE_ROUTE)):
        parser.error("--same-route compares with the part load-aware, and draws no figure")
    wanted = chosen.part or (ON_ONE_ROUTE if chosen.same_route else PARTS)
    parts = [part for part in (*PARTS, *TRIED) if part in wanted]
    seeds = seeds_from(chosen.seeds)
    drawn: dict[str, list[float | None]] = {}
    for name in chosen.scenarios:
        scenarios = {
            part: scenario_of(name, part, chosen.samples, chosen.test_samples, chosen.set or ()) for part in parts
        }
        if chosen.same_route:
            scenarios = {part: with_plain_hops(found, chosen.data_dir) for part, found in scenarios.items()}
        runs: dict[str, list[Run]] = {part: [] for part in parts}
        for seed, part in product(seeds, parts):
            label = f"{part}, same route" if chosen.same_route else part
            runs[part].append(run_of(replace(scenarios[part], seed=seed), label, chosen.out, chosen.data_dir))
            if chosen.same_route:
                check_same_route(runs[part][-1], runs["load-aware"][-1], part)
        if "load-aware" not in runs:
            continue
        shown = ", ".join(map(str, seeds))
        if chosen.same_route:
            print(f"\n### {name}, same route, seeds {shown}\n")
            show_points(runs)
            continue
        print(f"\n### {name}, seeds {shown}\n")
        for part, times in show_times(runs, TARGETS[scenario_named(name).dataset]).items():
            drawn.setdefault(part, []).append(None if times[-2] == "--" else float(times[-2].split()[0]))
    if chosen.figure is not None:
        draw(drawn, chosen.scenarios, chosen.figure)


def show_times(runs: Mapping[str, Sequence[Run]], targets: Sequence[float]) -> dict[str, list[str]]:
    """Print the table of times and accuracy over load-aware's; return the times of each part."""
    ours = runs["load-aware"]
    heads = [f"{100 * target:g} % {words}" for target in targets for words in KINDS]
    print(f"| part | {' | '.join(heads)} | accuracy |\n|---|{'---|' * (len(heads) + 1)}")
    found = {}
    for part in runs:
        found[part] = [ratio(runs[part], ours, target, kind) for target in targets for kind in KINDS]
        above = accuracy(runs[part]) - accuracy(ours)
        shown = f"{accuracy(ours):.1f} %" if part == "load-aware" else f"{above:+.1f}"
        print(f"| {part} | {' | '.join(found[part])} | {shown} |", flush=True)
    return found


def show_points(runs: Mapping[str, Sequence[Run]]) -> None:
    """Print the accuracy of each part, and the points above load-aware on equal seeds."""
    print("| part | accuracy | points above load-aware | seed by seed |\n|---|---|---|---|")
    for part, group in runs.items():
        above = points(group, runs["load-aware"])
        half = half_width(above)
        mean = f"{fmean(above):+.2f}" + ("" if half is None else f" ± {half:.2f}")
        each = ", ".join(f"{value:+.2f}" for value in above)
        shown = " | " if part == "load-aware" else f"{mean} | {each}"
        print(f"| {part} | {accuracy(group):.2f} % | {shown} |", flush=True)


def draw(ratios: Mapping[str, Sequence[float | None]], scenarios: Sequence[str], to: Path) -> None:
    """Bars: the time to the higher target over load-aware's, a group for each scenario."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.84 / len(ratios)
    for place, (part, values) in enumerate(ratios.items()):
        at = [group + (place - len(ratios) / 2 + 0.5) * width for group in range(len(values))]
        bars = axes.bar(at, [value or 0.0 for value in values], width, label=part, color=COLOURS.get(part))
        axes.bar_label(bars, fmt="%.2f", fontsize=6, padding=1)
    target = max(TARGETS[scenario_named(scenarios[0]).dataset])
    axes.set_xticks(range(len(scenarios)), scenarios)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"time to {100 * target:g} % accuracy, load-aware = 1")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", fontsize=8, ncols=len(ratios), frameon=False, handlelength=1)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None)


if __name__ == "__main__":
    main()

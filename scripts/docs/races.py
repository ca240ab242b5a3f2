"""The races in full, written from the runs that are kept in benchmarks/results/races."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import PLACE, kept_runs
from tramfl.reporting.race import race_tables
from tramfl.reporting.runs import Run

RACES = PLACE / "races"
CLOCKS = {"rounds": "Loads drawn anew for every round", "slots": "Loads in time slots of 1 s"}
DATASETS = {"digits": "Digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}


def reference() -> str:
    """A page of Markdown: every race with time and traffic to targets, and accuracy at equal time and traffic."""
    place = RACES.relative_to(PLACE.parent.parent)
    lines = [
        "# The races in full",
        "",
        "Written from the kept runs when this site is built; [methods](../methods.md) says how they were played, and"
        f" what came of them. `python -m benchmarks.results race {place}/rounds` prints the same. Equal time and"
        " equal traffic are what `load-aware` needed to the higher target. `(ended)` marks a method whose budget had"
        " ended before that, short of its last target.",
        "",
    ]
    for clock, title in CLOCKS.items():
        runs = races(clock)
        for dataset, name in DATASETS.items():
            if alike := [run for run in runs if run.settings.dataset == dataset]:
                lines += [f"## {name}: {title[0].lower()}{title[1:]}", race_tables(alike)]
    return "\n".join(lines)


def races(clock: str, place: Path = RACES) -> Sequence[Run]:
    """The kept runs of one clock."""
    return kept_runs([place / clock])

"""Runs of several machines gathered in one folder, laid out as `tramfl compare` leaves them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tramfl.notation import BadInput
from tramfl.record import writing
from tramfl.reporting.runs import Run, load_run, load_runs, settings_of


def merge_runs(folders: Iterable[Path], out: Path) -> tuple[int, int]:
    """Copy every run below `folders` into `out`; how many were added, and how many were there.

    Of two copies of one run the longer one is kept; runs with one name and different settings are refused.
    """
    added = kept = 0
    for run in load_runs(folders):
        place = out / run.scenario / f"{run.policy.replace(':', '.')}-{run.seed}"
        if place.resolve() == run.folder.resolve() or (place.exists() and not _is_longer(run, load_run(place))):
            kept += 1
        else:
            _copy(run.folder, place)
            added += 1
    return added, kept


def _is_longer(run: Run, there: Run) -> bool:
    """Whether `run` has more rounds of the same run that is there; BadInput where it is another run."""
    if differing := [key for key, values in settings_of([run, there]).items() if len(values) > 1]:
        limits = ("budget.rounds", "budget.seconds", "budget.samples")
        if others := [key for key in differing if key not in limits]:
            raise BadInput(
                f"{run.folder} and {there.folder} have the same scenario, policy and seed but differ in"
                f" {', '.join(others)}; merge them into different folders."
            )
    common = min(len(run.rows), len(there.rows))
    if run.rows[:common] != there.rows[:common]:
        raise BadInput(
            f"{run.folder} and {there.folder} have the same settings but different rounds; one of them was made by"
            " another version or on other data, so keep one of them."
        )
    return len(run.rows) > len(there.rows)


def _copy(folder: Path, place: Path) -> None:
    """Copy a run's folder; a reader sees the whole copy or none."""
    part = place.with_name(place.name + ".part")
    with writing(place):
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(folder, part)
        if place.exists():
            shutil.rmtree(place)
        os.replace(part, place)

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import tramfl
from tramfl.reporting.bars import bars_tables
from tramfl.reporting.runs import Run, load_run


def played(method: str, folder: Path, reached: int | None) -> Run:
    """A run that reached 90 % in a round and holds it from the next one on."""
    tramfl.simulate("digits-3", method=method, rounds=4, targets=0.9, train=False, out=folder / method)
    run = load_run(folder / method)
    times = [None if reached is None else run.rows[reached - 1 + later].total_seconds for later in (0, 1)]
    summary = structs.replace(run.summary, seconds_to_target={"0.9": times[0]}, seconds_held={"0.9": times[1]})
    return Run(run.folder, run.settings, run.resolved, run.rows, summary)


def test_a_bar_is_the_time_over_that_of_load_aware_with_the_floor_of_the_same_samples(tmp_path: Path) -> None:
    ours, theirs = played("load-aware", tmp_path, 3), played("express", tmp_path, 2)
    first, held = (line for line in bars_tables([ours, theirs]).splitlines() if line.startswith("| express"))
    for line, at, of in ((first, 1, 2), (held, 2, 3)):
        ratio = theirs.rows[at].total_seconds / ours.rows[of].total_seconds
        cell = line.strip("| ").split("|")[-1].strip()
        assert float(cell.split()[0]) == pytest.approx(ratio, abs=0.005)
        assert cell.endswith("; 1 seed)")
        floor = sum(theirs.rows[at].used) * theirs.summary.cost.flops_per_sample / 1e13
        assert float(cell.partition("floor ")[2].split()[0]) == pytest.approx(floor, rel=0.05)


def test_a_seed_that_only_one_of_two_methods_brought_to_the_target_is_no_bar(tmp_path: Path) -> None:
    table = bars_tables([played("load-aware", tmp_path, 3), played("express", tmp_path, None)])
    assert not any(line.startswith("| express") for line in table.splitlines())

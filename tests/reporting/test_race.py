from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec import structs

import tramfl
from tramfl.reporting.race import race_tables
from tramfl.reporting.runs import Run, load_run


def played(method: str, folder: Path, accuracies: tuple[float, ...], reached: int | None) -> Run:
    """A run with the accuracies put in its rows, which reached 90 % in a round."""
    tramfl.simulate("digits-3", method=method, rounds=4, targets=0.9, train=False, out=folder / method)
    run = load_run(folder / method)
    rows = tuple(structs.replace(r, test_accuracy=a) for r, a in zip(run.rows, accuracies, strict=True))
    at = None if reached is None else rows[reached - 1].total_seconds
    return Run(
        run.folder, run.settings, run.resolved, rows, structs.replace(run.summary, seconds_to_target={"0.9": at})
    )


def test_a_race_shows_time_and_traffic_to_a_target_and_accuracy_after_as_much_of_both(tmp_path: Path) -> None:
    ours = played("load-aware", tmp_path, (0.2, 0.5, 0.95, 0.96), 3)
    theirs = played("gossip", tmp_path, (0.3, 0.4, 0.5, 0.6), None)
    lines = race_tables([ours, theirs]).splitlines()
    row = next(line for line in lines if line.startswith("| load-aware"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    hops = sum(r.node not in (None, r.holder) for r in ours.rows[:3])
    assert cells[3:] == ["95.0 %", "95.0 %"]
    assert float(cells[2]) == pytest.approx(hops * ours.summary.cost.model_bits / 1e9, rel=0.01)
    other = next(line for line in lines if line.startswith("| gossip"))
    assert [cell.strip() for cell in other.strip("|").split("|")][1:3] == ["--", "--"]


@pytest.mark.parametrize(("reached", "marked"), [(None, True), (4, False)])
def test_a_method_whose_budget_ended_before_the_time_that_is_compared_is_marked(
    tmp_path: Path, reached: int | None, marked: bool
) -> None:
    ours = played("load-aware", tmp_path, (0.2, 0.5, 0.8, 0.96), 4)
    slow = played("gossip", tmp_path, (0.3, 0.4, 0.5, 0.95), reached)
    share = 0.5 * ours.rows[-1].total_seconds / slow.rows[-1].total_seconds
    rows = tuple(structs.replace(row, total_seconds=share * row.total_seconds) for row in slow.rows)
    table = race_tables([ours, dataclasses.replace(slow, rows=rows)])
    (row,) = [line for line in table.splitlines() if line.startswith("| gossip")]
    assert ("95.0 % (ended)" in row) == marked
    assert "95.0 %" in row

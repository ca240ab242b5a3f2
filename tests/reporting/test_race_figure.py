"""The figure of a race: its lines are what the tests say, from folders and from kept runs alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.results import PLACE, main, read_back
from tramfl.reporting import load_run, write_figures
from tramfl.reporting.race_figure import best_so_far, gigabits, seconds
from tramfl.reporting.runs import Run

MakeRun = Callable[..., Path]
SEEDS = [PLACE / "express" / "mnist-3" / f"load-aware-{seed}.jsonl" for seed in range(3)]


def lines_of(file: Path) -> list[tuple[float, float, float]]:
    """Seconds, bits and accuracy of every test, read without the code under test."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    return [(line[2], line[3], line[5]) for line in lines if line[5] is not None]


def test_a_line_is_the_mean_of_the_best_tests_so_far() -> None:
    runs, tests = [read_back(file) for file in SEEDS], [lines_of(file) for file in SEEDS]
    for place, spent in ((0, seconds), (1, gigabits)):
        x, best = best_so_far(runs, spent)
        scale = 1e9 if place else 1.0
        assert max(run[0][place] for run in tests) <= x[0] * scale * (1 + 1e-9)
        assert x[-1] * scale == pytest.approx(max(run[-1][place] for run in tests))
        for at, value in list(zip(x, best, strict=True))[1::7]:
            expected = [max(t[2] for t in run if t[place] <= at * scale * (1 + 1e-12)) for run in tests]
            assert value == pytest.approx(sum(expected) / len(runs))


def test_kept_runs_are_drawn_a_file_a_scenario_always_the_same(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        main(
            ["figures", str(tmp_path / folder), *map(str, SEEDS), str(PLACE / "express" / "mnist-3"), "--seeds", "2"]
        )
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["mnist-3.svg"]
    content = (tmp_path / "a" / "mnist-3.svg").read_bytes()
    assert content == (tmp_path / "b" / "mnist-3.svg").read_bytes()
    for colour in ("#0072b2", "#56b4e9"):
        assert colour.encode() in content.lower()


def test_methods_have_the_figure_and_the_papers_policies_have_not(make_run: MakeRun, tmp_path: Path) -> None:
    ours = load_run(make_run("ours"))
    for other, has in (("random", False), ("own", True)):
        runs = [ours, load_run(make_run(other, policy=other))]
        names = {path.stem for path in write_figures(runs, tmp_path / other, "svg")}
        assert ("best-accuracy-over-time-and-traffic" in names) == has


def with_loss(run: Run, losses: tuple[float, ...]) -> Run:
    """The run with targets of the loss, which its rows have as given, one after the other."""
    budget = replace(run.settings.budget, metric="loss", targets=(0.1,))
    rows = tuple(replace(row, test_loss=value) for row, value in zip(run.rows, losses, strict=False))
    return Run(run.folder, replace(run.settings, budget=budget), run.resolved, rows, run.summary)


def test_the_lowest_loss_is_the_best(make_run: MakeRun) -> None:
    run = with_loss(load_run(make_run(rounds=4)), (0.9, 0.4, 0.6, 0.3))
    _, best = best_so_far([run], seconds)
    assert best.tolist() == [0.9, 0.4, 0.4, 0.3]


def test_a_method_that_sends_nothing_is_drawn_over_time_alone(make_run: MakeRun, tmp_path: Path) -> None:
    ours, other = load_run(make_run("ours")), load_run(make_run("own", policy="own"))
    still = tuple(replace(row, holder=0, node=0) for row in other.rows)
    quiet = Run(other.folder, other.settings, other.resolved, still, other.summary)
    assert not gigabits(quiet)[-1]
    drawn: Any = write_figures([ours, quiet], tmp_path / "out", "svg")
    assert any(path.stem == "best-accuracy-over-time-and-traffic" for path in drawn)


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no kept run below"):
        main(["figures", str(tmp_path / "out"), str(tmp_path)])
    assert not (tmp_path / "out").exists()

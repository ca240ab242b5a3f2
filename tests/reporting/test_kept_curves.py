"""`benchmarks/curves.py`: the lines of docs/methods.md's figures are what the kept tests say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.curves import best_so_far, gigabits, main, seconds
from benchmarks.results import PLACE, read_back

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


def test_a_figure_is_drawn_for_the_scenarios_and_methods_named(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        chosen = ["--layouts", "mnist-3", "--methods", "express", "--seeds", "2"]
        main([str(tmp_path / folder), str(PLACE / "express"), *chosen])
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["mnist-3.svg"]
    content = (tmp_path / "a" / "mnist-3.svg").read_bytes()
    assert content == (tmp_path / "b" / "mnist-3.svg").read_bytes()
    for colour in ("#0072b2", "#56b4e9"):
        assert colour.encode() in content.lower()


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such kept run below"):
        main([str(tmp_path), str(PLACE / "express"), "--layouts", "digits-3"])
    assert not list(tmp_path.iterdir())

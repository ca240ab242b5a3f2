from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tramfl.notation import BadInput
from tramfl.reporting import load_runs
from tramfl.reporting.merging import merge_runs

MakeRun = Callable[..., Path]


def test_runs_of_two_machines_become_one_comparison(make_run: MakeRun, tmp_path: Path) -> None:
    here = make_run("one/a", policy="random", seed=0)
    make_run("one/b", policy="load-aware", seed=0)
    make_run("two/b", policy="random", seed=1)
    make_run("two/a", policy="random", seed=0)  # both machines played it
    out = tmp_path / "all"
    assert merge_runs([here.parent, here.parent.parent / "two"], out) == (3, 0)
    assert {(run.policy, run.seed) for run in load_runs([out])} == {("random", 0), ("random", 1), ("load-aware", 0)}
    assert merge_runs([here.parent], out) == (0, 2)


def test_of_two_copies_the_longer_one_is_kept(make_run: MakeRun, tmp_path: Path) -> None:
    long = make_run("long", seed=3, rounds=20, summary=False)
    short = tmp_path / "short"
    shutil.copytree(long, short)
    rows = (short / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (short / "rounds.jsonl").write_bytes(b"".join(rows[:5]))
    assert merge_runs([short], tmp_path / "all") == (1, 0)
    assert merge_runs([long], tmp_path / "all") == (1, 0)
    assert merge_runs([short], tmp_path / "all") == (0, 1)
    assert len(load_runs([tmp_path / "all"])[0].rows) == 20


def test_different_runs_of_one_name_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    merge_runs([make_run("one", seed=1)], tmp_path / "all")
    with pytest.raises(BadInput, match="differ in wait_seconds; merge them into different folders"):
        merge_runs([make_run("two", seed=1, wait_seconds=3.0)], tmp_path / "all")

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Cli, Process, ended, wait_for_rows

GRID = ("compare", "--policies", "load-aware,random", "--seeds", "2", "--jobs", "2", "--out", "grid")
TINY = (*GRID, "--rounds", "4", "--target", "0.3,1")
SCHEDULES = (*GRID, "--jobs", "1", "--no-training", "--rounds", "4")
CELLS = [f"{policy}-{seed}" for seed in (0, 1) for policy in ("load-aware", "random")]


def folder(tmp_path: Path, cell: str) -> Path:
    return tmp_path / "grid" / "digits-5-uneven" / cell


def records(tmp_path: Path) -> dict[str, bytes]:
    return {cell: (folder(tmp_path, cell) / "rounds.jsonl").read_bytes() for cell in CELLS}


def test_a_grid_of_policies_and_seeds_ends_in_a_table_with_its_winner_and_is_not_played_twice(
    cli: Cli, tmp_path: Path
) -> None:
    done = cli(*TINY)
    assert done.code == 0
    table = {line.split("│")[1].strip(): line for line in done.out.splitlines() if line.startswith("│")}
    assert "★" in table["load-aware"]
    assert "±" in table["load-aware"]
    assert "--" in table["load-aware"], "100 % is reached by nobody"
    assert "Means over 2 seeds ± half of the 95 % confidence interval" in done.out
    assert "load-aware" in done.out.split("└")[1], "the verdict names the winner"
    assert "Report: grid/report.html" in done.out
    assert (tmp_path / "grid/report.html").stat().st_size > 100_000
    assert "[4/4]" in done.err
    for cell in CELLS:
        assert {"config.toml", "rounds.jsonl", "summary.json", "model.safetensors"} == {
            path.name for path in folder(tmp_path, cell).iterdir()
        }

    # Alone, a run gives the same rows as in the grid.
    assert cli("run", "--rounds", 4, "--target", "0.3,1", "--policy", "random", "--seed", 1, "--out", "one").code == 0
    assert (tmp_path / "one/rounds.jsonl").read_bytes() == records(tmp_path)["random-1"]

    # Again: nothing is left to play, and it says the same.
    before = {cell: (folder(tmp_path, cell) / "summary.json").stat().st_mtime_ns for cell in CELLS}
    again = cli(*TINY)
    assert again.out == done.out
    assert "4 runs were finished before." in again.err
    assert {cell: (folder(tmp_path, cell) / "summary.json").stat().st_mtime_ns for cell in CELLS} == before

    data = cli(*TINY, "--format", "json").data
    assert {(t["policy"], t["target"]): t["wins"] for t in data["times_to_target"]} == {
        ("load-aware", 0.3): True, ("random", 0.3): False, ("load-aware", 1.0): False, ("random", 1.0): False,
    }  # fmt: skip


def test_a_grid_goes_on_where_it_stopped_and_with_a_larger_budget(cli: Cli, tmp_path: Path) -> None:
    assert cli(*SCHEDULES, "--quiet").code == 0
    whole = records(tmp_path)
    half = folder(tmp_path, "random-0")
    lines = whole["random-0"].splitlines(keepends=True)
    (half / "rounds.jsonl").write_bytes(b"".join(lines[:2]))
    (half / "summary.json").unlink()
    (folder(tmp_path, "random-1") / "summary.json").write_text("{")
    done = cli(*SCHEDULES)
    assert "2 runs were finished before." in done.err
    assert records(tmp_path) == whole
    more = cli(*SCHEDULES[:-1], "6")
    assert more.code == 0
    assert "[4/4]" in more.err
    for cell, content in records(tmp_path).items():
        assert content.startswith(whole[cell])
        assert content.count(b"\n") == 6


def test_keys_and_seeds_span_a_grid_and_a_narrower_one_keeps_every_run_on_its_page(cli: Cli, tmp_path: Path) -> None:
    wide = ("compare", "--policies", "load-aware", "--jobs", "1", "--no-training", "--rounds", "3", "--out", "grid")
    done = cli(*wide, "--seeds", "7,10-11", "--grid", "wait_seconds=1,2")
    assert done.code == 0
    names = [f"digits-5-uneven,wait_seconds={value}" for value in (1, 2)]
    for name in names:
        assert {path.name for path in (tmp_path / "grid" / name).iterdir()} == {
            f"load-aware-{s}" for s in (7, 10, 11)
        }
    narrow = cli(*wide, "--seeds", "10-10", "--grid", "wait_seconds=2")
    assert "(with 5 other runs of that folder)" in narrow.out
    page = (tmp_path / "grid/report.html").read_text()
    assert all(name in page for name in names)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--grid", "wait_seconds"), "--grid wait_seconds: write a key once"),
        (("--grid", "wait_seconds=1,1"), "--grid wait_seconds=1,1: write a key once, with different values"),
        (("--grid", "seed=1,2"), "--grid seed: compare plays several; say which with --seeds."),
        (("--grid", "wait=1,2"), "grid: wait=1: unknown key `wait`"),
        (("--seeds", "0"), "--seeds 0: write how many (5), a range (10-19) or a list (3,7,20-22)."),
        (("--seeds", "a-b"), "--seeds a-b: write how many"),
        (("--seeds", "9-3"), "--seeds 9-3: write how many"),
    ],
)
def test_a_grid_that_cannot_be_read_is_refused(cli: Cli, option: tuple[str, str], words: str) -> None:
    done = cli("compare", *option)
    assert done.code == 2
    assert words in done.err


def test_other_settings_are_refused_and_overwrite_replaces_them(cli: Cli, tmp_path: Path) -> None:
    assert cli(*SCHEDULES, "--quiet").code == 0
    before = records(tmp_path)
    other = (*SCHEDULES, "--set", "variance_limit=7", "--quiet")
    cli(*other).refused("grid/digits-5-uneven/load-aware-0", "`variance_limit` is 100.0 there and 7.0 here", "--out")
    cli(*GRID, "--rounds", 4).refused("without training", "--no-training")
    assert records(tmp_path) == before
    assert cli(*other, "--overwrite").code == 0
    assert records(tmp_path) != before


def test_bad_input_is_refused_before_anything_is_played(cli: Cli, tmp_path: Path) -> None:
    cli("compare", "--policies", "load-aware,best").refused("no policy `best`", "variance-first")
    cli("compare", "--policies", "random,random").refused("every policy once")
    cli("compare", "--policies", ",").refused("every policy once")
    cli("compare", "digits-5", "digits-5").refused("every scenario")
    cli("compare", "digits-8").refused("`digits-8`")
    cli("compare", "--set", "seed=7").refused("--set seed", "--seeds")
    cli("compare", "--set", "policy=random").refused("--set policy", "--policies")
    assert not (tmp_path / "runs").exists()


def test_a_log_has_room_for_long_names(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"wards-of-the-northern-hospitals-in-{season}" for season in ("winter", "summer")]
    for name in names:
        scenario = cli("scenarios", "show", "digits-3").out.replace("digits-3", name)
        (tmp_path / f"{name}.toml").write_text(scenario)
    files = [f"{name}.toml" for name in names]
    policies = ("--policies", "load-aware,random", "--seeds", "1")
    done = cli("compare", *files, *policies, "--rounds", 2, "--target", "0.895,1", "--quiet")
    assert done.code == 0
    assert all(name in done.out for name in names)
    assert "89.5 %" in done.out


def test_what_goes_wrong_in_a_worker_is_one_sentence_too(cli: Cli) -> None:
    cli(*TINY, "--set", "dataset=npz:nowhere.npz", "--quiet").refused("nowhere.npz", "no such file")


def test_an_interrupted_grid_stops_at_once_and_goes_on_to_the_same_rows(
    cli: Cli, process: Process, slow_rounds: dict[str, str], tmp_path: Path
) -> None:
    limits = ("--rounds", "12", "--target", "1", "--set", "budget.samples=10000000", "--set", "budget.seconds=1e6")
    running = process(*GRID, *limits, **slow_rounds)
    first = folder(tmp_path, CELLS[0]) / "rounds.jsonl"
    wait_for_rows(first.parent, 4)
    os.killpg(running.pid, signal.SIGINT)
    done = ended(running)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert done.err.endswith("interrupted; the same command, without --overwrite, goes on where it stopped.\n")
    status = json.loads((folder(tmp_path, CELLS[0]) / "summary.json").read_text())["status"]
    assert status == "interrupted"
    assert not folder(tmp_path, CELLS[3]).exists(), "what was still queued is not begun"

    # To the end, but of the first cell alone: that is what was cut.
    assert cli("run", "--resume", "--out", folder(tmp_path, CELLS[0])).code == 0
    assert cli("run", *limits, "--out", "whole").code == 0
    assert first.read_bytes() == (tmp_path / "whole/rounds.jsonl").read_bytes()


def test_the_runs_of_a_grid_that_is_killed_end_after_the_round_in_hand(process: Process, tmp_path: Path) -> None:
    running = process(*GRID, "--no-training", "--rounds", "10000000")
    first = folder(tmp_path, CELLS[0])
    wait_for_rows(first, 1)
    os.kill(running.pid, signal.SIGKILL)
    assert ended(running).code == -signal.SIGKILL, "its pipes close once the runs have ended too"
    assert json.loads((first / "summary.json").read_text())["status"] == "interrupted"


def test_a_worker_that_is_killed_fails_the_grid_in_one_sentence(process: Process, tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
(Path.cwd() / "deadly.py").write_text(
    "import os\\nif __import__('multiprocessing').parent_process() is not None:\\n    os.kill(os.getpid(), 9)\\n"
)
sys.path.insert(0, str(Path.cwd()))
from tramfl.cli import main
if __name__ == "__main__":
    main()
"""
    done = ended(process(*TINY, "--set", "dataset=deadly:load", code=code))
    assert done.code == 1
    assert "killed" in done.err
    assert "Traceback" not in done.err


def test_a_local_ray_gives_the_same_rows_as_processes_do_and_the_same_sentence_where_a_run_fails(
    cli: Cli, process: Process, tmp_path: Path
) -> None:
    (tmp_path / "broken.toml").write_text("dataset = 'npz:nowhere.npz'\n")
    grid = ("compare", "digits-5-uneven", "--policies", "load-aware", "--rounds", "4", "--target", "1", "--jobs", "1")
    # Ray's workers give way to every other process: beside other tests they would get no time at all.
    environment = {"RAY_worker_niceness": "0"}
    on_ray = process(*grid, "broken.toml", "--seeds", "1", "--ray", "local", "--out", "ray", **environment)
    assert cli(*grid, "--seeds", "1", "--out", "here", "--quiet").code == 0
    done = ended(on_ray, seconds=400)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert done.err.endswith("npz:nowhere.npz': there is no such file.\n")
    of_ray = tmp_path / "ray/digits-5-uneven/load-aware-0"
    for name in ("rounds.jsonl", "summary.json", "model.safetensors"):
        assert (of_ray / name).read_bytes() == (tmp_path / "here/digits-5-uneven/load-aware-0" / name).read_bytes()
    again = cli(*grid, "--seeds", "1", "--out", "ray")
    assert "1 runs were finished before." in again.err
    assert again.code == 0


def test_a_ray_address_where_nobody_answers_is_refused(process: Process) -> None:
    ended(process(*TINY, "--ray", "nowhere")).refused("--ray nowhere", "--ray local")


def test_the_table_of_regimes_is_in_the_json_too(cli: Cli, tmp_path: Path) -> None:
    done = cli(*SCHEDULES, "--seeds", "1", "--regimes", "--format", "json", "digits-5-uneven")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["regimes"]
    assert {row["policy"] for row in rows} == {"load-aware", "random"}
    assert {row["scenario"].partition(",")[2] for row in rows} >= {"independent", "slots-blend", "bursts"}
    for row in rows:
        assert row["ratio"] > 0
        assert row["ratio"] == 1 or row["policy"] == "random"
        assert row["low"] is row["high"] is None, "one seed has no interval"
    assert (tmp_path / "grid/regimes.svg").exists()

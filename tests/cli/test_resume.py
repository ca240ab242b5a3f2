"""A run that stops, however it stops, goes on as if it had not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Cli, Process, ended, wait_for_rows

LONG = ("run", "--rounds", "12", "--target", "1", "--set", "budget.samples=10000000", "--set", "budget.seconds=1e6")
SHORT = ("run", "--rounds", "8", "--target", "1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the long run, uninterrupted."""
    from tramfl.cli.options import scenario_of
    from tramfl.simulation.play import Request, play

    folder = tmp_path_factory.mktemp("whole") / "run"
    sets = ["budget.samples=10000000", "budget.seconds=1e6"]
    scenario = scenario_of("digits-5-uneven", sets, budget__rounds=12, budget__targets=(1.0,))
    play(Request(scenario=scenario, out=folder, threads=1))
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in ("config.toml", "rounds.jsonl", "summary.json", "model.safetensors")
    }


def test_an_interrupted_run_is_valid_and_resumed_equals_an_uninterrupted_one(
    cli: Cli, process: Process, slow_rounds: dict[str, str], tmp_path: Path, whole: dict[str, bytes]
) -> None:
    running = process(*LONG, "--out", "run", **slow_rounds)
    wait_for_rows(tmp_path / "run", 4)
    os.killpg(running.pid, signal.SIGINT)
    done = ended(running)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "go on with: tramfl run --resume --out run" in done.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    written = (tmp_path / "run/rounds.jsonl").read_bytes()
    assert summary["status"] == "interrupted"
    assert 3 <= summary["rounds"] == written.count(b"\n") < 12
    assert whole["rounds.jsonl"].startswith(written)
    assert cli("report", "run").code == 0

    assert cli("run", "--resume", "--out", "run").code == 0
    assert files(tmp_path / "run") == whole


def test_a_killed_run_is_resumed_to_the_same_rows_though_no_weights_were_saved(
    cli: Cli, process: Process, slow_rounds: dict[str, str], tmp_path: Path, whole: dict[str, bytes]
) -> None:
    running = process(*LONG, "--out", "run", **slow_rounds)
    wait_for_rows(tmp_path / "run", 4)
    os.killpg(running.pid, signal.SIGKILL)
    assert ended(running).code == -signal.SIGKILL
    assert not (tmp_path / "run/model.safetensors").exists()
    assert cli("report", "run").code == 0
    assert cli("run", "--resume", "--out", "run").code == 0
    assert files(tmp_path / "run") == whole


SEVERAL = (*LONG, "--method", "gossip", "--set", "exchange.local_steps=4", "--processes", "2", "--out", "run")


def test_an_interrupt_ends_the_processes_that_train_without_a_word_of_theirs(
    process: Process, tmp_path: Path
) -> None:
    running = process(*SEVERAL, "--rounds", "100000")
    wait_for_rows(tmp_path / "run", 2)
    os.killpg(running.pid, signal.SIGINT)
    done = ended(running)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "go on with: tramfl run --resume --out run" in done.err


def test_processes_that_train_end_with_a_run_that_is_killed(process: Process, tmp_path: Path) -> None:
    running = process(*SEVERAL, "--rounds", "100000")
    wait_for_rows(tmp_path / "run", 2)
    os.kill(running.pid, signal.SIGKILL)
    assert ended(running).code == -signal.SIGKILL, "its pipes close once the processes have ended too"


def test_resumed_with_a_larger_budget_it_goes_on(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "--rounds", 3, "--target", "1", "--out", "a").code == 0
    assert cli("run", "--rounds", 8, "--resume", "--out", "a").code == 0
    assert cli(*SHORT, "--out", "b").code == 0
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_schedule_is_resumed_as_one_without_the_option(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "--no-training", "--rounds", 3, "--out", "a").code == 0
    assert cli("run", "--resume", "--rounds", 6, "--out", "a").code == 0
    assert cli("run", "--no-training", "--rounds", 6, "--out", "b").code == 0
    a, b = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in "ab")
    assert a == b


def test_a_finished_run_resumed_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    assert cli(*SHORT, "--out", "run").code == 0
    before = files(tmp_path / "run")
    assert cli("run", "--resume", "--out", "run").code == 0
    assert files(tmp_path / "run") == before


def test_a_files_edited_budget_counts_and_any_other_edit_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    scenario = cli("scenarios", "show", "digits-3").out.replace('name = "digits-3"', 'name = "mine"')
    few, more = (scenario.replace("[budget]\n", f"[budget]\nrounds = {rounds}\n") for rounds in (3, 6))
    file.write_text(few)
    assert cli("run", "mine.toml", "--no-training", "--policy", "random", "--seed", 2).code == 0
    folder = tmp_path / "runs/mine-random-2"
    before = (folder / "rounds.jsonl").read_bytes()
    resume = ("run", "mine.toml", "--resume", "--policy", "random", "--seed", 2)

    file.write_text(more.replace("variance_limit = 100.0", "variance_limit = 50.0"))
    cli(*resume).refused("`variance_limit` is 100.0 there and 50.0 here", "another budget")
    assert (folder / "rounds.jsonl").read_bytes() == before

    file.write_text(more)
    assert cli(*resume).code == 0
    after = (folder / "rounds.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 6


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Path:
    assert cli(*SHORT, "--out", "run").code == 0
    return tmp_path / "run"


def test_other_settings_are_refused_by_name_and_change_nothing(cli: Cli, run: Path) -> None:
    before = files(run)
    resume = ("run", "--resume", "--out", "run")
    cli(*resume, "--policy", "random").refused("`policy` is load-aware there and random here", "another budget")
    cli(*resume, "--seed", 3).refused("`seed` is 0 there and 3 here")
    cli(*resume, "--set", "training.batch_size=8").refused("`training.batch_size` is 32 there and 8 here")
    cli("run", "mnist-5", "--resume", "--out", "run").refused("digits-5-uneven", "mnist-5")
    cli(*resume, "--no-training").refused("run", "played with training", "leave out --no-training")
    cli(*resume, "--threads", 2).refused("1 thread", "--threads 1")
    cli(*resume, "--rounds", 5).refused("already has 8 rounds", "larger budget")
    assert files(run) == before


def test_repeating_the_command_with_resume_is_fine(cli: Cli, run: Path) -> None:
    assert cli("run", "digits-5-uneven", "--policy", "load-aware", "--seed", 0, "--resume", "--out", run).code == 0


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    lines = content.split(b"\n")
    damaged = {
        "garbled": content.replace(b'"round":3', b'"round":"three"'),
        "not json": b"\n".join([lines[0], b"{", *lines[2:]]),
        "a line lost": b"\n".join([lines[0], *lines[2:]]),
        "short": b"\n".join([*lines[:3], b""]),
        "of another run": content.replace(b'"samples":[', b'"samples":[0,'),
        "no such node": content.replace(b'"holder":', b'"holder":9'),
        "cut": content[: len(content) // 2],
        "empty": b"",
        "nameless": content.replace(b'"round"', b'"raund"'),
        "text": b"hello, world",
    }
    path.write_bytes(damaged[how])


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("rounds.jsonl", "garbled", ["line 3", "not a round's row", "$.round"]),
        ("rounds.jsonl", "not json", ["line 2", "not a round's row"]),
        ("rounds.jsonl", "a line lost", ["line 2", "round 3", "should be of round 2"]),
        ("rounds.jsonl", "of another run", ["line 1", "not of this run", "10 labels"]),
        ("rounds.jsonl", "no such node", ["line 1", "not of this run", "5 nodes"]),
        ("rounds.jsonl", "short", ["model.safetensors is of round 8", "has 3 rounds", "remove it"]),
        ("model.safetensors", "cut", ["cannot be read as safetensors", "remove it"]),
        ("model.safetensors", "empty", ["cannot be read", "remove it"]),
        ("model.safetensors", "text", ["cannot be read", "remove it"]),
        ("model.safetensors", "nameless", ["which round", "remove it"]),
        ("config.toml", "cut", ["config.toml"]),
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(
    cli: Cli, run: Path, name: str, how: str, words: list[str]
) -> None:
    damage(run / name, how)
    before = files(run)
    cli("run", "--resume", "--rounds", 9, "--out", "run").refused(name, *words)
    assert files(run) == before


def test_without_the_damaged_weights_the_run_is_played_again_to_the_same_rows(cli: Cli, run: Path) -> None:
    before = files(run)
    damage(run / "model.safetensors", "cut")
    (run / "model.safetensors").unlink()
    assert cli("run", "--resume", "--out", "run").code == 0
    assert files(run) == before


def test_a_last_row_cut_short_by_a_crash_is_dropped(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "--no-training", "--rounds", 4, "--out", "run").code == 0
    path = tmp_path / "run/rounds.jsonl"
    before = path.read_bytes()
    path.write_bytes(before[:-40])
    assert cli("run", "--resume", "--out", "run").code == 0
    assert path.read_bytes() == before

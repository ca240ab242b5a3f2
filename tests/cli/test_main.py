"""What every command has in common: help, version, exit codes, and errors of one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tramfl
from tests.conftest import COMMAND, Cli, Process, ended

COMMANDS = ("run", "compare", "reproduce", "plan", "scenarios", "report", "figures", "faults")


def test_help_names_every_command(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    assert all(f" {command} " in done.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert f"tramfl {command}" in done.out


def test_the_version_is_the_packages_own(cli: Cli) -> None:
    assert cli("--version").out == f"tramfl {tramfl.__version__}\n"


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).with_name("tramfl")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == f"tramfl {tramfl.__version__}\n"


def test_without_a_command_it_prints_its_help_and_counts_as_bad_usage(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "Usage: tramfl" in done.out
    assert not done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], ["No such command 'rnu'", "tramfl --help"]),
        (["run", "--polcy", "random"], ["--polcy", "--policy", "tramfl run --help"]),
        (["run", "--rounds", "0"], ["--rounds", "1"]),
        (["run", "--rounds", "many"], ["--rounds", "integer"]),
        (["run", "--format", "xml"], ["--format", "'text', 'json'"]),
        (["plan"], ["FILE.toml", "tramfl plan --help"]),
        (["scenarios", "show"], ["NAME"]),
        (["reproduce", "--dataset", "imagenet"], ["--dataset", "'mnist', 'cifar10'"]),
        (["reproduce", "--dataset", "digits"], ["no figures for digits", "--methods"]),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(cli: Cli, arguments: list[str], words: list[str]) -> None:
    cli(*arguments).refused(*words)


WITHOUT_EXTRAS = """
import sys
for name in ("torch", "sklearn", "plotly", "matplotlib", "ray", "mlflow", "tensorboard"):
    sys.modules[name] = None
from tramfl.cli import main
main()
"""


def test_the_base_install_plans_schedules_and_says_which_extra_is_missing(process: Process, tmp_path: Path) -> None:
    run = process("run", "--no-training", "--rounds", 3, "--out", "run", code=WITHOUT_EXTRAS)
    train = process("run", "--rounds", 3, "--out", "other", code=WITHOUT_EXTRAS)
    track = process("run", "--track", "mlflow", "--out", "third", code=WITHOUT_EXTRAS)
    done = ended(run)
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "run" / "rounds.jsonl").read_text().count("\n") == 3
    ended(train).refused("tramfl[torch]", "--no-training")
    ended(track).refused("tramfl[trackers]")
    assert not (tmp_path / "other").exists()
    ended(process("report", "run", code=WITHOUT_EXTRAS)).refused("tramfl[dashboard]")
    ended(process("compare", "--no-training", "--ray", "local", code=WITHOUT_EXTRAS)).refused("tramfl[ray]")


def test_a_reader_that_leaves_early_sees_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "scenarios"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300, check=False
    )
    os.close(writing)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


SMALL_FILES_ONLY = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from tramfl.cli import main
main()
"""


def test_a_full_disk_is_a_failed_run_and_one_sentence(process: Process) -> None:
    done = ended(process("run", "--no-training", "--rounds", 100, "--out", "run", code=SMALL_FILES_ONLY))
    assert done.code == 1
    assert done.err.startswith("tramfl: ")
    assert "File too large" in done.err
    assert done.err.count("\n") == 1


def test_a_run_that_outgrew_the_disk_can_be_resumed(cli: Cli, process: Process, tmp_path: Path) -> None:
    test_a_full_disk_is_a_failed_run_and_one_sentence(process)
    assert cli("run", "--no-training", "--rounds", 100, "--out", "whole").code == 0
    assert cli("run", "--resume", "--out", "run").code == 0
    assert (tmp_path / "run/rounds.jsonl").read_bytes() == (tmp_path / "whole/rounds.jsonl").read_bytes()


def test_an_interrupt_before_the_first_round_is_one_sentence_and_exit_code_1(process: Process) -> None:
    code = """
import os, signal, time
from tramfl.simulation import play
def interrupted(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(3600)
play.with_training = interrupted
from tramfl.cli import main
main()
"""
    done = ended(process("run", "--out", "run", code=code))
    assert (done.code, done.err) == (1, "tramfl: interrupted.\n")

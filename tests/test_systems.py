"""Simulation, scheduling and reports work where Linux's own calls are missing; a real site asks for Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli

PLAN = Path(__file__).parents[1] / "examples" / "plan.toml"

ELSEWHERE = """
import importlib, os, pkgutil, signal, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
for name in ("fdatasync", "preadv", "pread", "pwrite", "RWF_NOWAIT", "statvfs", "O_CLOEXEC", "O_NOFOLLOW",
             "sched_getaffinity", "posix_fadvise", "geteuid"):
    delattr(os, name)
del signal.pthread_sigmask

from tramfl.cli import main

def tramfl(*arguments):
    sys.argv = ["tramfl", *arguments]
    try:
        main()
    except SystemExit as left:
        return left.code or 0

for package in ("scheduling", "circulation", "simulation", "record", "reporting", "learning"):
    home = importlib.import_module(f"tramfl.{package}")
    for module in pkgutil.walk_packages(home.__path__, f"tramfl.{package}."):
        if not module.name.endswith(".fused_loops"):  # numba's, which large tensors alone load
            importlib.import_module(module.name)
plan = sys.argv[1]
assert tramfl("run", "digits-3", "--rounds", "2", "--out", "trained", "--quiet") == 0
assert not {"sklearn", "scipy", "pandas", "numba", "torch._dynamo"} & sys.modules.keys(), "slow to load"
assert tramfl("run", "digits-3", "--no-training", "--rounds", "5", "--out", "played") == 0
assert tramfl("run", "digits-3", "--no-training", "--rounds", "9", "--out", "played", "--resume") == 0
assert tramfl("report", "played") == 0
assert tramfl("plan", plan) == 0
assert "tramfl.runtime.site" not in sys.modules
print("all done")
"""


def test_simulation_scheduling_and_reports_work_where_the_calls_of_linux_are_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(PLAN)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all done"
    assert (tmp_path / "played" / "report.html").exists()
    assert (tmp_path / "trained" / "model.safetensors").exists()


@pytest.mark.parametrize("command", [("node", "site.toml"), ("up",), ("preflight", "site.toml")])
def test_a_real_site_asks_for_linux_in_one_sentence(
    command: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT")
    cli(*command).refused("needs Linux", "simulation works here")


def test_an_operator_without_a_posix_system_gets_the_systems_that_will_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "statvfs")
    cli("status", "federation.toml").refused("Linux or macOS")

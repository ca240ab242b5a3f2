"""The command line as tests call it: `cli("run", "--rounds", 3)` here, or `process(...)` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.system_parts import TIED
from tramfl import references
from tramfl.cli import main

# The same examples in every run, however slow the machine: a test fails because of a change, never by chance.
settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts tests in the background has them, and every process they start, ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `timeout` and CI end tests with this signal: the fixtures end what they started then too, as after an interrupt.
signal.signal(signal.SIGTERM, signal.default_int_handler)

PATIENCE = 300.0
"""Seconds until a test says that something will not happen; only a machine that hangs takes so long."""
COMMAND = (sys.executable, "-c", "from tramfl.cli import main; main()")


LONGEST = (
    "runtime/site/test_federation.py",
    "runtime/registers/test_contract.py",
    "reporting/dashboard/test_browser.py",
    "runtime/site/test_members.py",
    "cli/test_compare.py",
    "runtime/registers/test_etcd.py",
    "chaos/test_quick_etcd.py",
    "simulation/test_faults.py",
    "runtime/site/test_coded.py",
    "cli/test_reproduce.py",
    "runtime/site/test_frozen.py",
    "scheduling/test_water_level.py",
    "cli/test_up.py",
)
"""Files that take longest, each of which stays with one worker: begun first, so that none is left at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)

    def refused(self, *words: str) -> None:
        """It was bad input: one sentence that has these words, and nothing else."""
        assert self.code == 2, self
        assert self.err.startswith("tramfl: "), self
        assert self.err.count("\n") == 1, self
        assert self.err.endswith((".\n", "?\n")), self
        for word in words:
            assert word in self.err, self


Cli = Callable[..., Done]


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is read from or written to the user's own folders."""
    monkeypatch.setenv("TRAMFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        yield


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls the command line in this process, from an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            patch.setattr(sys, "argv", ["tramfl", *map(str, arguments)])
            warnings.simplefilter("default")
            with pytest.raises(SystemExit) as left:
                main()
        output = capsys.readouterr()
        return Done(int(left.value.code or 0), output.out, output.err)

    return call


Process = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Starts the command line as a process of its own, in a group of its own as a terminal has it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, code: str | None = None, **environment: str) -> subprocess.Popen[str]:
        command = COMMAND if code is None else (sys.executable, "-c", code)
        started.append(
            subprocess.Popen(
                [*TIED, *command, *map(str, arguments)],
                cwd=tmp_path,
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.pid, 9)
        each.communicate()


@pytest.fixture(autouse=True)
def modules_of_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tramfl node` in this process, as some tests call it, takes no module from there any more: undo that."""
    monkeypatch.setattr(references, "_places", [Path.cwd])


@pytest.fixture
def slow_rounds(tmp_path: Path) -> dict[str, str]:
    """An environment in which processes wait for a minute after the fourth row, so that a signal comes in between.

    Python acts on a signal that comes just before a sleep after that sleep alone, so they sleep in short bits.
    """
    place = tmp_path / "slow"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import time\n"
        "from tramfl.record import RowWriter\n"
        "write = RowWriter.write\n"
        "def write_and_wait(self, row):\n"
        "    write(self, row)\n"
        "    for _ in range(1200 if row.round == 4 else 0):\n"
        "        time.sleep(0.05)\n"
        "RowWriter.write = write_and_wait\n"
    )
    return {"PYTHONPATH": str(place)}


def wait_for_rows(folder: Path, count: int) -> None:
    """Until a run has this many rows."""
    path = folder / "rounds.jsonl"
    until = time.monotonic() + PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until, f"no {count} rows in {folder}"
        time.sleep(0.02)


def ended(process: subprocess.Popen[str], seconds: float = PATIENCE) -> Done:
    """Wait for a process."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"the process did not end; it printed: {process.communicate()}")
    return Done(process.returncode, out, err)


def wait_until_gone(pid: int) -> None:
    """Until a process has ended, whichever process is its parent."""
    import psutil  # type: ignore[import-untyped]  # no part of the base install, whose tests read this file too

    until = time.monotonic() + PATIENCE
    while psutil.pid_exists(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.05)

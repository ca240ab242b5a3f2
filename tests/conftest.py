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

from tramfl.cli import main

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts tests in the background has them, and every process they start, ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMMAND = (sys.executable, "-c", "from tramfl.cli import main; main()")


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
                [*command, *map(str, arguments)],
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


@pytest.fixture
def slow_rounds(tmp_path: Path) -> dict[str, str]:
    """An environment in which processes take their time after every row, so that a signal comes in between."""
    place = tmp_path / "slow"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import time\n"
        "from tramfl.record import RowWriter\n"
        "write = RowWriter.write\n"
        "RowWriter.write = lambda self, row: (write(self, row), time.sleep(0.1))\n"
    )
    return {"PYTHONPATH": str(place)}


def wait_for_rows(folder: Path, count: int) -> None:
    """Until a run has so many rows."""
    path = folder / "rounds.jsonl"
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {count} rows in {folder}")


def ended(process: subprocess.Popen[str], seconds: float = 120) -> Done:
    """Wait for a process."""
    out, err = process.communicate(timeout=seconds)
    return Done(process.returncode, out, err)

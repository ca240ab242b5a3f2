"""The folder a run leaves behind, and how it is taken up again.

    config.toml        everything that was resolved: the scenario, who holds what, versions
    rounds.jsonl       one row a round, appended as it happens
    summary.json       what the run came to
    model.safetensors  the weights, with the round they belong to

At every moment the folder is valid and can be resumed: rows past the saved weights are dropped and played again,
which gives the same rows.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w
from msgspec import Struct

import tramfl
from tramfl.config import Scenario, as_table, read_toml, settings_from
from tramfl.notation import BadInput
from tramfl.record import (
    CONFIG_FILE,
    MODEL_FILE,
    ROUNDS_FILE,
    SUMMARY_FILE,
    Row,
    RowWriter,
    Summary,
    keep_whole_rows,
    read_rows,
    write_atomically,
    writing,
)
from tramfl.simulation.experiment import Setting

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


TENSORBOARD_FOLDER = "tensorboard"
"""Where a run that TensorBoard follows keeps its events."""


class Way(Struct, frozen=True, kw_only=True):
    """How a run is played, beside its scenario; None where its folder does not say."""

    trained: bool | None = None
    """Whether it trains, or plays the schedule alone."""
    threads: int | None = None
    """Cores it trains on: the last digits depend on their number."""
    clock: Literal["real"] | None = None
    """real: a federation's record, in wall-clock seconds; it can be replayed, but not resumed."""
    sites: tuple[str, ...] | None = None
    """What a federation calls its nodes."""
    run: str | None = None
    """What a federation calls the run."""


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG_FILE).exists()

    def _check_holds_run(self) -> None:
        if not self.holds_run:
            raise BadInput(f"{self.path} holds no run: there is no {CONFIG_FILE} in it.")

    def check_free(self) -> None:
        """Refuse to put a new run over one that is here."""
        if self.holds_run:
            raise BadInput(
                f"{self.path} already holds a run; add --resume to go on with it, --overwrite to replace it,"
                " or --out for another folder."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only process that writes here; another one is refused. The folder is made, and left if anything
        is in it then."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            if fcntl is not None:
                place = os.open(self.path, os.O_RDONLY)
                stack.callback(os.close, place)
                try:
                    fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise BadInput(
                        f"{self.path}: another process is at work on the run there; wait until it has ended,"
                        " or give another folder with --out."
                    ) from None
                except OSError:
                    pass  # a file system without locks
            try:
                yield
            finally:
                with suppress(OSError):
                    self.path.rmdir()  # only if it is empty

    def begin(self, scenario: Scenario, setting: Setting, way: Way) -> RowWriter:
        """Make the folder ready for a new run, in place of whatever run is here."""
        with writing(self.path):
            for name in (SUMMARY_FILE, MODEL_FILE, ROUNDS_FILE):
                (self.path / name).unlink(missing_ok=True)
            if (self.path / TENSORBOARD_FOLDER).exists():
                shutil.rmtree(self.path / TENSORBOARD_FOLDER)
            self.describe(scenario, setting, way)
            return RowWriter(self.path / ROUNDS_FILE)

    def describe(self, scenario: Scenario, setting: Setting, way: Way) -> None:
        """Write config.toml: what was asked for, and what it came to."""
        table = as_table(scenario)
        table["resolved"] = {
            **as_table(way),
            "labels": list(setting.labels),
            "held": setting.held.tolist(),
            "cost": as_table(setting.cost),
            "versions": versions(),
        }
        write_atomically(self.path / CONFIG_FILE, tomli_w.dumps(table).encode())

    def scenario(self) -> Scenario:
        """The scenario of the run that is here."""
        self._check_holds_run()
        table = read_toml(self.path / CONFIG_FILE)
        table.pop("resolved", None)
        return settings_from(table, Scenario, str(self.path / CONFIG_FILE))

    def way(self) -> Way:
        """How the run that is here is played."""
        self._check_holds_run()
        resolved = read_toml(self.path / CONFIG_FILE).get("resolved", {})
        known = {key: resolved[key] for key in Way.__struct_fields__ if key in resolved}
        return settings_from(known, Way, f"{self.path / CONFIG_FILE}, table `resolved`")

    def rows(self) -> list[Row]:
        """The whole rows that are here, from round 1 on."""
        path = self.path / ROUNDS_FILE
        rows = list(read_rows(path)) if path.exists() else []
        for number, row in enumerate(rows, start=1):
            if row.round != number:
                raise BadInput(f"{path}, line {number}, is of round {row.round}; it should be of round {number}.")
        return rows

    def resume(self, rows: Sequence[Row], scenario: Scenario, setting: Setting, way: Way) -> RowWriter:
        """Go on after `rows`; whatever else was in the file is dropped."""
        with writing(self.path):
            self.keep(rows)
            self.describe(scenario, setting, way)
            return RowWriter(self.path / ROUNDS_FILE)

    def keep(self, rows: Sequence[Row]) -> None:
        """Drop everything but `rows` from rounds.jsonl."""
        keep_whole_rows(self.path / ROUNDS_FILE, rows)

    def model(self) -> bytes | None:
        """The saved weights, if any."""
        path = self.path / MODEL_FILE
        try:
            return path.read_bytes() if path.exists() else None
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from None

    def save_model(self, content: bytes) -> None:
        """Replace the saved weights; the rows they stand for are made durable first."""
        with (self.path / ROUNDS_FILE).open("rb") as rows:
            os.fsync(rows.fileno())
        write_atomically(self.path / MODEL_FILE, content)

    def conclude(self, summary: Summary) -> None:
        """Write summary.json."""
        pretty = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        write_atomically(self.path / SUMMARY_FILE, pretty + b"\n")


def folder_name(scenario: Scenario) -> str:
    """A scenario's name, where a folder is to have it: a file from elsewhere must not choose another place."""
    name = scenario.name
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise BadInput(f"name = {name!r} is no name for a folder: leave out / and \\, or give a plain word.")
    return name


def versions() -> dict[str, Any]:
    """What the figures of a run may depend on."""
    found = {"tramfl": tramfl.__version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""The folder a run leaves behind, and how it is taken up again.

    config.toml        everything that was resolved: the scenario, who holds what, versions
    rounds.jsonl       one row a round, appended as it happens
    summary.json       what the run came to
    model.safetensors  the weights, with the round they belong to

At every moment the folder is valid and can be resumed: rows past the saved weights are dropped and played again,
which gives the same rows.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

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
)
from tramfl.simulation.experiment import Setting


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG_FILE).exists()

    def begin(self, scenario: Scenario, setting: Setting, *, overwrite: bool = False) -> RowWriter:
        """Make the folder ready for a new run."""
        if self.holds_run and not overwrite:
            raise BadInput(
                f"{self.path} already holds a run; add --resume to go on with it, --overwrite to replace it,"
                " or --out for another folder."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (ROUNDS_FILE, SUMMARY_FILE, MODEL_FILE):
                (self.path / name).unlink(missing_ok=True)
            self.describe(scenario, setting)
            return RowWriter(self.path / ROUNDS_FILE)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written: {error.strerror}.") from None

    def describe(self, scenario: Scenario, setting: Setting) -> None:
        """Write config.toml: what was asked for, and what it came to."""
        table = as_table(scenario)
        table["resolved"] = {
            "labels": list(setting.labels),
            "held": setting.held.tolist(),
            "cost": as_table(setting.cost),
            "versions": versions(),
        }
        write_atomically(self.path / CONFIG_FILE, tomli_w.dumps(table).encode())

    def scenario(self) -> Scenario:
        """The scenario of the run that is here."""
        if not self.holds_run:
            raise BadInput(f"{self.path} holds no run: there is no {CONFIG_FILE} in it.")
        table = read_toml(self.path / CONFIG_FILE)
        table.pop("resolved", None)
        return settings_from(table, Scenario, str(self.path / CONFIG_FILE))

    def rows(self) -> list[Row]:
        """The whole rows that are here."""
        path = self.path / ROUNDS_FILE
        return list(read_rows(path)) if path.exists() else []

    def resume(self, rows: list[Row]) -> RowWriter:
        """Go on after `rows`; whatever else was in the file is dropped."""
        keep_whole_rows(self.path / ROUNDS_FILE, rows)
        return RowWriter(self.path / ROUNDS_FILE)

    def model(self) -> bytes | None:
        """The saved weights, if any."""
        path = self.path / MODEL_FILE
        return path.read_bytes() if path.exists() else None

    def save_model(self, content: bytes) -> None:
        """Replace the saved weights."""
        write_atomically(self.path / MODEL_FILE, content)

    def conclude(self, summary: Summary) -> None:
        """Write summary.json."""
        pretty = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        write_atomically(self.path / SUMMARY_FILE, pretty + b"\n")


def versions() -> dict[str, Any]:
    """What the figures of a run may depend on."""
    found = {"tramfl": tramfl.__version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""A run's folder: the one writer and the one reader of it, its lock, and the question whether it is locked.

    config.toml        the scenario, and what it came to: who holds what, costs, versions
    rounds.jsonl       one row a round, appended as it happens
    summary.json       what the run came to
    model.safetensors  the weights, with the round they belong to
    state.safetensors  where those are a mean: the newest weights, and what the mean is formed from

At every moment the folder is valid and can be resumed: rows past the saved weights are dropped and played again,
which gives the same rows.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w
from msgspec import Struct, field
from msgspec.structs import replace

from tramfl.config import Scenario, as_table, settings_from
from tramfl.notation import BadInput, ModelCost
from tramfl.record.audit import AUDIT_FILE, AuditEntry
from tramfl.record.files import (
    CONFIG_FILE,
    MODEL_FILE,
    ROUNDS_FILE,
    STATE_FILE,
    SUMMARY_FILE,
    TENSORBOARD_FOLDER,
    write_atomically,
    writing,
)
from tramfl.record.rows import Row, RowWriter, keep_whole_rows, read_rows
from tramfl.record.schema import SCHEMA, check_json, read_config
from tramfl.record.summary import Summary
from tramfl.version import __version__

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCKS = Path("/proc/locks")

ClockKind = Literal["virtual", "real"]
"""Which seconds the rows count: the simulator's, or those of the wall clock."""


class Resolved(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Table `resolved` of config.toml: how a run is played, and what its scenario came to. Any part may be absent."""

    trained: bool | None = None
    """Whether the run trains, or plays the schedule alone."""
    threads: int | None = None
    """Cores it trains on: the last digits depend on their number."""
    clock: ClockKind = "virtual"
    """real: the record of a federation; it can be replayed, but not resumed."""
    sites: tuple[str, ...] = ()
    """The names that a federation gives its nodes."""
    run: str | None = None
    """The name that a federation gives the run."""
    labels: tuple[str | int, ...] = ()
    held: tuple[tuple[int, ...], ...] = ()
    """l_ic: training samples per node and label."""
    cost: ModelCost | None = None
    own: dict[str, str] = field(default_factory=dict)
    """The caller's own objects that the run was played with, which config.toml cannot bring back: policy, loads, data
    or model, each with its class."""
    data: str | None = None
    """Fingerprint of the data."""
    versions: dict[str, str] = field(default_factory=dict)


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        """config.toml."""
        return self.path / CONFIG_FILE

    @property
    def rounds(self) -> Path:
        """rounds.jsonl."""
        return self.path / ROUNDS_FILE

    # The state of the folder.

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.config.exists()

    @property
    def has_record(self) -> bool:
        """Whether a run was begun here, and has a file for its rows."""
        return self.config.is_file() and self.rounds.is_file()

    @property
    def has_rows(self) -> bool:
        """Whether a run here has done at least one round."""
        if not self.has_record:
            return False
        with self.rounds.open("rb") as rows:
            return rows.readline().endswith(b"\n")

    @property
    def locked(self) -> bool:
        """Whether a process is at work here, as far as the system can say without a try to lock the folder."""
        try:
            inode = self.path.stat().st_ino
            return re.search(rf"FLOCK .*:{inode} ", LOCKS.read_text()) is not None
        except OSError:
            return False

    def check_free(self) -> None:
        """BadInput where a run is here that a new one would replace."""
        if self.holds_run:
            raise BadInput(
                f"{self.path} already holds a run; add --resume to go on with it, --overwrite to replace it,"
                " or --out for another folder."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder and lock it: another writer gets BadInput. A folder that is empty afterwards is removed."""
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
                    self.path.rmdir()  # fails unless it is empty

    # Writing.

    def begin(self, scenario: Scenario, resolved: Resolved) -> RowWriter:
        """Make the folder ready for a new run, and remove any other run that is here."""
        with writing(self.path):
            for name in (SUMMARY_FILE, MODEL_FILE, STATE_FILE, ROUNDS_FILE, AUDIT_FILE):
                (self.path / name).unlink(missing_ok=True)
            if (self.path / TENSORBOARD_FOLDER).exists():
                shutil.rmtree(self.path / TENSORBOARD_FOLDER)
            self.describe(scenario, resolved)
            return RowWriter(self.rounds)

    def resume(self, rows: Sequence[Row], scenario: Scenario, resolved: Resolved) -> RowWriter:
        """Go on after `rows`; anything else in rounds.jsonl is dropped."""
        with writing(self.path):
            self.keep(rows)
            self.describe(scenario, resolved)
            return RowWriter(self.rounds)

    def describe(self, scenario: Scenario, resolved: Resolved) -> None:
        """Write config.toml: the scenario, and what it came to, with the versions of this process."""
        table = as_table(scenario)
        table["resolved"] = {"schema": SCHEMA, **as_table(replace(resolved, versions=versions()))}
        write_atomically(self.config, tomli_w.dumps(table).encode())

    def keep(self, rows: Sequence[Row]) -> None:
        """Write rounds.jsonl with these rows and no others."""
        keep_whole_rows(self.rounds, rows)

    def keep_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Write audit.jsonl with these entries and no others; no file where there are none."""
        path = self.path / AUDIT_FILE
        if entries:
            write_atomically(path, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
        else:
            path.unlink(missing_ok=True)

    def save_model(self, content: bytes, state: Iterable[bytes | memoryview] | None = None) -> None:
        """Replace the saved weights; the rows they stand for are made durable first.

        `state` is what a resumed run goes on from, where that is not the weights themselves.
        """
        with self.rounds.open("rb") as rows:
            os.fsync(rows.fileno())
        if state is not None:
            write_atomically(self.path / STATE_FILE, *state)
        write_atomically(self.path / MODEL_FILE, content)

    def conclude(self, summary: Summary) -> None:
        """Write summary.json."""
        pretty = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        write_atomically(self.path / SUMMARY_FILE, pretty + b"\n")

    # Reading.

    def scenario(self) -> Scenario:
        """The scenario of the run here, to be played on: a key that this version does not know is BadInput."""
        table = self._config()
        table.pop("resolved", None)
        return settings_from(table, Scenario, str(self.config))

    def scenario_to_show(self) -> Scenario:
        """The scenario of the run here, without keys that this version does not know: later versions can be read."""
        return settings_to_show(self._config(), str(self.config))

    def resolved(self) -> Resolved:
        """How the run here is played, and what its scenario came to."""
        return resolved_from(self._config(), str(self.config))

    def _config(self) -> dict[str, Any]:
        if not self.holds_run:
            raise BadInput(f"{self.path} holds no run: there is no {CONFIG_FILE} in it.")
        return read_config(self.config)

    def rows(self) -> list[Row]:
        """The whole rows that are here, from round 1 on without a gap; BadInput otherwise."""
        rows = list(read_rows(self.rounds)) if self.rounds.exists() else []
        for number, row in enumerate(rows, start=1):
            if row.round != number:
                raise BadInput(
                    f"{self.rounds}, line {number}, is of round {row.round}; it should be of round {number}."
                )
        return rows

    def summary(self) -> Summary | None:
        """What the run came to; None where it left no summary, BadInput where that cannot be read."""
        path = self.path / SUMMARY_FILE
        try:
            content = path.read_bytes()
            check_json(content, path)
            summary = msgspec.json.decode(content, type=Summary)
            for target in summary.seconds_to_target:
                float(target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
        except BadInput:
            raise
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors too
            raise BadInput(f"{path} is not a run's summary: {error}.") from None
        return summary

    @property
    def saved(self) -> Path:
        """The file that a resumed run goes on from."""
        state = self.path / STATE_FILE
        return state if state.exists() else self.path / MODEL_FILE

    def saved_weights(self) -> bytes | None:
        """What a resumed run goes on from, if anything was saved."""
        path = self.saved
        try:
            return path.read_bytes() if path.exists() else None
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def runs_inside(folder: Path) -> list[RunFolder]:
    """The folders with a run below a folder."""
    found = [RunFolder(path.parent) for path in folder.rglob(CONFIG_FILE)] if folder.is_dir() else []
    return sorted((run for run in found if run.has_record), key=lambda run: _natural(run.path))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key by which seed 10 comes after seed 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def folder_name(scenario: Scenario) -> str:
    """A scenario's name as a folder's; BadInput where it would lead to another place."""
    name = scenario.name
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise BadInput(f"name = {name!r} is no name for a folder: leave out / and \\, or give a plain word.")
    return name


def versions() -> dict[str, str]:
    """What the figures of a run may depend on."""
    found = {"tramfl": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def settings_to_show(config: dict[str, Any], source: str) -> Scenario:
    """The scenario of what config.toml has, without keys that this version does not know."""
    return settings_from(_known(config, Scenario), Scenario, source)


def resolved_from(config: dict[str, Any], source: str) -> Resolved:
    """Table `resolved` of what config.toml has."""
    return settings_from(config.get("resolved", {}), Resolved, f"{source}, table `resolved`")


def _known(table: dict[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """The keys of `table` that this version knows."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {
        key: _known(value, kinds[key])
        if isinstance(value, dict) and isinstance(kinds[key], type) and issubclass(kinds[key], Struct)
        else value
        for key, value in table.items()
        if key in kinds
    }

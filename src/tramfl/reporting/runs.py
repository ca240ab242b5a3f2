"""Finished and interrupted runs, read back from their folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tramfl.config import Scenario, read_toml, settings_from
from tramfl.notation import BadInput, ModelCost
from tramfl.record import CONFIG_FILE, ROUNDS_FILE, SUMMARY_FILE, Row, Summary, read_rows, summary_of

NOT_ENDED = "not ended"
"""Status of a run that left no summary: it is still running, or it was killed."""


Clock = Literal["virtual", "real"]


class Resolved(Struct, frozen=True):
    """What a run found out and wrote beside its settings; each part may be absent."""

    held: tuple[tuple[int, ...], ...] = ()
    """Training samples per node and label."""
    labels: tuple[str | int, ...] = ()
    versions: dict[str, str] = {}
    cost: ModelCost | None = None
    clock: Clock = "virtual"
    """Whose seconds the rows count: the simulator's, or the wall's."""
    sites: tuple[str, ...] = ()
    """What a real federation calls its nodes."""
    trained: bool | None = None
    """Whether the run trained, or played the schedule alone; None where it does not say."""


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it."""

    folder: Path
    settings: Scenario
    resolved: Resolved
    rows: tuple[Row, ...]
    """The rounds that count, each later than the one before."""
    summary: Summary
    undone_rounds: int = 0
    """Rounds whose work was lost with its node and done again in a later epoch."""

    @property
    def scenario(self) -> str:
        """The scenario's name."""
        return self.summary.scenario

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.summary.policy

    @property
    def seed(self) -> int:
        """The seed of every draw in the run."""
        return self.summary.seed

    @property
    def nodes(self) -> int:
        """N: how many nodes there are."""
        return len(self.rows[0].loads.flops)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels' names, or their numbers where the run does not name them."""
        count = len(self.rows[0].used)
        names = self.resolved.labels if len(self.resolved.labels) == count else range(count)
        return tuple(str(name) for name in names)

    @property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """Training samples per node and label; empty where the run does not say, or says it wrongly."""
        fits = [len(node) == len(self.labels) for node in self.resolved.held]
        return self.resolved.held if len(fits) == self.nodes and all(fits) else ()

    @property
    def trained(self) -> bool:
        """Whether there was a model, tested or not, or the scheduler alone."""
        return self.tested if self.resolved.trained is None else self.resolved.trained

    @property
    def tested(self) -> bool:
        """Whether a model was measured at all; a run of the scheduler alone has no accuracy and no loss."""
        return any(
            value is not None
            for row in self.rows
            for value in (row.test_accuracy, row.test_loss, row.validation_loss)
        )


def load_run(folder: Path) -> Run:
    """The run a folder holds, or BadInput that says in one sentence what is wrong with it."""
    folder = Path(folder)
    if not _is_run(folder):
        if not folder.is_dir():
            raise BadInput(f"{folder}: there is no such folder.")
        raise BadInput(f"{folder} is not a run: it lacks {CONFIG_FILE} or {ROUNDS_FILE}, which `tramfl run` writes.")
    settings, resolved = read_settings(folder / CONFIG_FILE)
    written = list(read_rows(folder / ROUNDS_FILE))
    check_rows(written, folder / ROUNDS_FILE)
    rows = _that_count(written)
    path = folder / SUMMARY_FILE
    summary = _summary(path) if path.exists() else _summary_of(rows, settings, resolved)
    return Run(folder, settings, resolved, rows, summary, len(written) - len(rows))


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs of several folders; a folder of runs, as `compare` leaves, stands for all of them."""
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        # Of many, those that have just begun are left out; whoever names one is told that there is nothing yet.
        inside = [folder] if _is_run(folder) else [run for run in runs_inside(folder) if _has_rows(run)]
        if not inside:
            load_run(next(iter(runs_inside(folder)), folder))  # raises, with the sentence that fits
        for run in inside:
            found.setdefault(run.resolve(), run)
    if not found:
        raise BadInput("Name at least one folder that `tramfl run` or `tramfl compare` has left.")
    return [load_run(folder) for folder in found.values()]


def virtual(runs: Iterable[Run]) -> bool:
    """Whether all seconds of these runs are a simulator's; those of a real federation need no adjective."""
    return all(run.resolved.clock == "virtual" for run in runs)


def by_scenario(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each scenario, scenarios in the order they first appear."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.scenario, []).append(run)
    return groups


def doubts(runs: Sequence[Run]) -> list[str]:
    """What a reader should know before comparing these runs: one sentence each, most often none."""
    notes = [_unfinished(runs)] if any(run.summary.status != "finished" for run in runs) else []
    if undone := sum(run.undone_rounds for run in runs):
        notes.append(f"Work lost with a failed node and done again is left out here: {undone:,} rounds in all.")
    seen: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        first = seen.setdefault((run.scenario, run.policy, run.seed), run)
        if first is not run:
            notes.append(
                f"{first.folder} and {run.folder} have the same scenario, policy and seed; both are counted."
            )
    for scenario, group in by_scenario(runs).items():
        if differing := [key for key, values in settings_of(group).items() if len(values) > 1]:
            notes.append(f"Runs of {scenario} differ in more than policy and seed: {', '.join(differing)}.")
    return notes


def settings_of(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Every setting but policy and seed, by its dotted key, with the different values the runs have."""
    keys: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _flat(msgspec.to_builtins(run.settings)):
            if key not in ("name", "policy", "seed") and value is not None:
                values = keys.setdefault(key, [])
                if (text := _as_text(value)) not in values:
                    values.append(text)
    return keys


def _unfinished(runs: Sequence[Run]) -> str:
    names = [f"{run.policy}, seed {run.seed}" for run in runs if run.summary.status != "finished"]
    shown = "; ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{'One run' if len(names) == 1 else f'{len(names)} runs'} did not come to an end ({shown})."


def _flat(table: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _as_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_as_text(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and (folder / ROUNDS_FILE).is_file()


def _has_rows(folder: Path) -> bool:
    with (folder / ROUNDS_FILE).open("rb") as rows:
        return rows.readline().endswith(b"\n")


def runs_inside(folder: Path) -> list[Path]:
    """The folders with a run below a folder."""
    found = (path.parent for path in folder.rglob(CONFIG_FILE) if _is_run(path.parent)) if folder.is_dir() else ()
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key by which seed 10 comes after seed 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def read_settings(path: Path) -> tuple[Scenario, Resolved]:
    """What a run's config.toml says: what was asked for, and what it came to."""
    table = read_toml(path)
    settings = settings_from(_known(table, Scenario), Scenario, str(path))
    return settings, settings_from(table.get("resolved", {}), Resolved, f"{path}, table `resolved`")


def _known(table: dict[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """The keys of `table` that this version knows: a run of a later version can still be read."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {
        key: _known(value, kinds[key])
        if isinstance(value, dict) and isinstance(kinds[key], type) and issubclass(kinds[key], Struct)
        else value
        for key, value in table.items()
        if key in kinds
    }


def _summary(path: Path) -> Summary:
    try:
        summary = msgspec.json.decode(path.read_bytes(), type=Summary)
        for target in summary.seconds_to_target:
            float(target)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # msgspec's errors are ValueErrors too
        raise BadInput(f"{path} is not a run's summary: {error}.") from None
    return summary


def check_rows(rows: Sequence[Row], path: Path) -> None:
    """Refuse rows that contradict each other: no figure could be drawn from them."""
    if not rows:
        raise BadInput(f"{path} holds no round yet.")
    nodes, labels = len(rows[0].loads.flops), len(rows[0].used)
    for row in rows:
        counts = (len(row.loads.flops), len(row.loads.bandwidth), len(row.used), len(row.samples))
        if counts != (nodes, nodes, labels, labels):
            raise BadInput(f"{path}: round {row.round} counts other nodes or labels than round {rows[0].round}.")
        if not all(0 <= node < nodes for node in (row.holder, row.node or 0)):
            raise BadInput(f"{path}: round {row.round} names a node that is not among its {nodes}.")


def _that_count(written: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of the record's lineage: after a takeover, rounds that were not safe are done again."""
    rows: list[Row] = []
    for row in written:
        while rows and rows[-1].round >= row.round:
            rows.pop()
        rows.append(row)
    return tuple(rows)


def _summary_of(rows: Sequence[Row], settings: Scenario, resolved: Resolved) -> Summary:
    """What the rows come to so far, for a run that left no summary."""
    cost = resolved.cost or ModelCost(settings.cost.flops_per_sample or 0.0, settings.cost.model_bits or 0.0)
    return replace(summary_of(settings, rows, cost, finished=False), status=NOT_ENDED)

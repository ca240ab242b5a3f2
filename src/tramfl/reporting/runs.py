"""Finished and interrupted runs, read back from their folders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tramfl.config import Scenario
from tramfl.methods import method_named
from tramfl.notation import BadInput, ModelCost
from tramfl.record import (
    AUDIT_FILE,
    CONFIG_FILE,
    MANY_NODES,
    ROUNDS_FILE,
    AuditEntry,
    Resolved,
    Row,
    RowLoads,
    RunFolder,
    Summary,
    check_rows,
    diverged_text,
    lineage,
    read_audit,
    read_rows,
    runs_inside,
    summary_of,
)
from tramfl.reporting.measures import Measure

NOT_ENDED = "not ended"
"""Status of a run that left no summary: it is still running, or it was killed."""


@dataclass(frozen=True)
class Run:
    """One run, as read from its folder."""

    folder: Path
    settings: Scenario
    resolved: Resolved
    rows: tuple[Row, ...]
    """The rounds that count, each later than the one before, without their candidates."""
    summary: Summary
    undone_rounds: int = 0
    """Rounds whose work was lost with its node and done again in a later epoch."""
    audit: tuple[AuditEntry, ...] = ()
    """What became of rounds that do not count, where the run's folder has its audit trail."""

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
        """Whether a model was measured at all; a run of the scheduler alone has no accuracy, metric or loss."""
        return any(
            value is not None
            for row in self.rows
            for value in (row.test_accuracy, row.test_loss, row.validation_loss, row.metrics or None)
        )

    @property
    def measure(self) -> Measure:
        """What the run's targets are of."""
        return Measure.of(self.settings.budget)

    @property
    def measured(self) -> float | None:
        """What the targets are of, as measured last; None where it was not."""
        if self.measure.is_accuracy:
            return self.summary.test_accuracy
        values = (row.measured(self.measure.metric) for row in reversed(self.rows))
        return next((value for value in values if value is not None), None)


def load_run(folder: Path) -> Run:
    """The run a folder holds, or BadInput that says in one sentence what is wrong with it."""
    found = RunFolder(folder)
    if not found.has_record:
        if not found.path.is_dir():
            raise BadInput(f"{folder}: there is no such folder.")
        raise BadInput(f"{folder} is not a run: it lacks {CONFIG_FILE} or {ROUNDS_FILE}, which `tramfl run` writes.")
    settings, resolved = found.scenario_to_show(), found.resolved()
    written = [_lean(row) for row in read_rows(found.rounds)]
    check_rows(written, found.rounds)
    rows = lineage(written)
    summary = found.summary() or _summary_so_far(rows, settings, resolved)
    audit = tuple(entry for entry in read_audit(found.path / AUDIT_FILE) if entry.counts_not)
    return Run(found.path, settings, resolved, rows, summary, len(written) - len(rows), audit)


def _lean(row: Row) -> Row:
    """The row without its candidates and, of many nodes, without its loads: no report shows them.

    They are most of what a row takes in memory. Loads that were predicted are shown beside what they were.
    """
    nodes = len(row.loads.flops)
    loads = row.loads if nodes <= MANY_NODES or row.actual is not UNSET else _no_loads(nodes)
    return replace(row, loads=loads, decision=replace(row.decision, candidates=()))


@cache
def _no_loads(nodes: int) -> RowLoads:
    return RowLoads((None,) * nodes, (None,) * nodes)


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs of several folders; a folder of runs, as `compare` leaves, stands for all of them."""
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        # Among many, runs that have just begun are left out; one that was named is an error.
        named = RunFolder(folder)
        inside = [named] if named.has_record else [run for run in runs_inside(folder) if run.has_rows]
        if not inside:
            load_run(next((run.path for run in runs_inside(folder)), folder))  # raises, with the sentence that fits
        for run in inside:
            found.setdefault(run.path.resolve(), run.path)
    if not found:
        raise BadInput("Name at least one folder that `tramfl run` or `tramfl compare` has left.")
    return _once([load_run(folder) for folder in found.values()])


def _once(runs: Iterable[Run]) -> list[Run]:
    """The runs without copies: several machines may have played, or been given, the same one."""
    kept: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        alike = kept.setdefault((run.scenario, run.policy, run.seed), [])
        if not any(run.settings == other.settings and run.rows == other.rows for other in alike):
            alike.append(run)
    return [run for alike in kept.values() for run in alike]


def virtual(runs: Iterable[Run]) -> bool:
    """Whether all seconds of these runs are a simulator's; those of a real federation need no adjective."""
    return all(run.resolved.clock == "virtual" for run in runs)


def by_scenario(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each scenario, scenarios in the order they first appear."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.scenario, []).append(run)
    return groups


def by_measure(runs: Iterable[Run]) -> dict[Measure, list[Run]]:
    """The runs by what their targets are of; most often all runs have the same."""
    groups: dict[Measure, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.measure, []).append(run)
    return groups


def doubts(runs: Sequence[Run]) -> list[str]:
    """What a reader should know before comparing these runs: one sentence each, most often none."""
    notes = [_unfinished(runs)] if any(_is_unfinished(run) for run in runs) else []
    notes += [
        f"{run.policy}, seed {run.seed}, was stopped: {why}" for run in runs if (why := run.summary.stopped_because)
    ]
    for run in runs:
        if diverged := diverged_rounds(run):
            notes.append(f"{run.policy}, seed {run.seed}, {diverged_text(diverged)}.")
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
        seeds = {frozenset(run.seed for run in group if run.policy == policy) for policy in {r.policy for r in group}}
        if len(seeds) > 1:
            notes.append(
                f"Policies of {scenario} were run with different seeds: means are of all seeds of a policy, and only"
                " differences are of equal ones."
            )
        if differing := [key for key, values in settings_of(group).items() if len(values) > 1]:
            notes.append(f"Runs of {scenario} differ in more than policy and seed: {', '.join(differing)}.")
    return notes


def diverged_rounds(run: Run) -> list[int]:
    """Rounds whose training had no finite loss, as their rows say; rows of older versions do not say it.

    Such a row shows it all the same where it has an accuracy and no loss: JSON has neither NaN nor infinity. A
    training step of the user's own may know no loss.
    """
    has_loss = run.settings.app is None and "app" not in run.resolved.own

    def lacks_loss(row: Row) -> bool:
        return row.test_accuracy is not None and (row.test_loss is None or not math.isfinite(row.test_loss))

    return [row.round for row in run.rows if row.diverged is True or (has_loss and lacks_loss(row))]


def settings_of(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Every setting but method and seed, by its dotted key, with the different values the runs have."""
    own = {"name", "policy", "method", "seed"}.union(*(_set_by_method(run.settings) for run in runs))
    keys: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _flat(msgspec.to_builtins(run.settings)):
            if key not in own and value is not None:
                values = keys.setdefault(key, [])
                if (text := _as_text(value)) not in values:
                    values.append(text)
    return keys


def _set_by_method(scenario: Scenario) -> Iterable[str]:
    """The keys that belong to a run's method; none where the method is not installed here."""
    if scenario.method is None:
        return ()
    try:
        method = method_named(scenario.method)
    except BadInput:
        return ()
    return {*method.settings, *(key for keys in method.by_dataset.values() for key in keys)}


def _is_unfinished(run: Run) -> bool:
    return run.summary.status not in ("finished", "stopped")


def _unfinished(runs: Sequence[Run]) -> str:
    names = [f"{run.policy}, seed {run.seed}" for run in runs if _is_unfinished(run)]
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


def _summary_so_far(rows: Sequence[Row], settings: Scenario, resolved: Resolved) -> Summary:
    """What the rows come to so far, for a run that left no summary."""
    cost = resolved.cost or ModelCost(settings.cost.flops_per_sample or 0.0, settings.cost.model_bits or 0.0)
    return replace(summary_of(settings, rows, cost, finished=False), status=NOT_ENDED)

"""Bringing a federation's run home: its model and its rounds, into a run's folder as a simulation would leave it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tramfl.config import Cost, Scenario
from tramfl.notation import BadInput
from tramfl.record import MODEL_FILE, Resolved, Row, RunFolder, Summary, summary_of
from tramfl.runtime.operator.operating import FederationStatus, Operator


async def pull(hand: Operator, out: Path | None, *, overwrite: bool) -> tuple[FederationStatus, Path, Summary]:
    """Fetch the newest safe model and every round to `out`, or to runs/RUN; the status, the folder and the summary.

    An earlier pull of the same run is brought up to date. Another run in the folder is BadInput, unless `overwrite`.
    """
    status = await hand.status()
    if not status.answering:
        raise BadInput(f"no site of {status.federation!r} answers; see tramfl status.")
    if status.record is None:
        raise BadInput(f"no run has begun in {status.federation!r}: there is no model to fetch.")
    folder = RunFolder(out or Path("runs") / status.record.run)
    with folder.alone():
        if not overwrite:
            _check_same_run(folder, status.record.run)
        status, summary = await collect(hand, folder)
    return status, folder.path, summary


async def collect(hand: Operator, folder: RunFolder) -> tuple[FederationStatus, Summary]:
    """Write the run's files in place of any run that is in the folder, which the caller has locked."""
    status = await hand.fetch(folder.path / MODEL_FILE, lambda _: None)
    rows = await hand.rows(status)
    return status, write_run(folder, hand.federation.file.run, status, rows)


def _check_same_run(folder: RunFolder, run: str) -> None:
    """BadInput where the folder holds another run, or one without a name."""
    if not folder.holds_run:
        return
    before = folder.resolved()
    if before.clock != "real" or before.run != run:
        held = f"a run, {before.run!r}," if before.run is not None else "a run"
        raise BadInput(
            f"{folder.path} already holds {held} and this one is {run!r}; add --overwrite to replace it,"
            " or --out for another folder."
        )


def write_run(folder: RunFolder, scenario: Scenario, status: FederationStatus, rows: list[Row]) -> Summary:
    """Write config.toml, rounds.jsonl and summary.json of a real run."""
    reports = [site.report for site in status.sites]
    known = next((r for r in reports if r is not None and r.cost is not None), None)
    if known is None or known.cost is None:
        raise BadInput("no site reports what its model costs; see tramfl status.")
    cost, record = known.cost, status.record
    # A replay in simulation must charge the real model's cost.
    charged = replace(scenario, cost=Cost(flops_per_sample=cost.flops_per_sample, model_bits=cost.model_bits))
    resolved = Resolved(
        trained=True,
        clock="real",
        sites=tuple(site.site for site in status.sites),
        run=record.run if record is not None else None,
        labels=known.labels,
        held=tuple(r.held if r is not None else (0,) * len(known.held) for r in reports),
        cost=cost,
    )
    folder.describe(charged, resolved)
    folder.keep(rows)
    finished = record is not None and record.status == "stopped"
    summary = summary_of(charged, rows, cost, finished=finished)
    folder.conclude(summary)
    return summary

"""Bringing a federation's run home: its model and its rounds, into a run's folder as a simulation would leave it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tramfl.config import Cost, ReadOut, Scenario
from tramfl.learning.model.coded_files import PASSED, ROUND, RawFile, decoded_file, written
from tramfl.notation import BadInput
from tramfl.record import (
    AUDIT_FILE,
    MODEL_FILE,
    Resolved,
    Row,
    RunFolder,
    Summary,
    completed,
    read_audit,
    summary_of,
    write_atomically,
)
from tramfl.runtime.operator.federation_status import FederationStatus
from tramfl.runtime.operator.operating import Operator

RECENT_ROUNDS = 400
"""The last rounds, in which at least one site trained that still has the mean."""


async def pull(
    hand: Operator, out: Path | None, *, overwrite: bool, readout: ReadOut | None = None
) -> tuple[FederationStatus, Path, Summary]:
    """Fetch the newest safe model and every round to `out`, or to runs/RUN; the status, the folder and the summary.

    `readout` is what is delivered: the newest weights (last), or the mean that the run tests, which is the default.
    An earlier pull of the same run is brought up to date. Another run in the folder is BadInput, unless `overwrite`.
    """
    status = await hand.status()
    if not status.answering:
        raise BadInput(f"no site of {status.federation!r} answers; see tramfl status.")
    if status.disagreement is not None:
        raise BadInput(status.disagreement)
    if status.record is None:
        raise BadInput(f"no run has begun in {status.federation!r}: there is no model to fetch.")
    folder = RunFolder(out or Path("runs") / status.record.run)
    with folder.alone():
        if not overwrite:
            _check_same_run(folder, status.record.run)
        status, summary = await collect(hand, folder, readout)
    return status, folder.path, summary


async def collect(
    hand: Operator, folder: RunFolder, readout: ReadOut | None = None
) -> tuple[FederationStatus, Summary]:
    """Write the run's files in place of any run that is in the folder, which the caller has locked."""
    scenario = hand.federation.file.run
    tested = scenario.evaluation.readout
    wanted = readout or tested
    if wanted not in ("last", tested):
        raise BadInput(
            f"the run tests {tested!r}, and its sites keep no {wanted!r}; give --readout {tested} or last."
        )
    model = folder.path / MODEL_FILE
    if wanted != "last":
        status = await hand.status()
        await _fetch_mean(hand, status, model)
    elif scenario.transit.codec == "float32":
        status = await hand.fetch(model, lambda _: None)
    else:
        status = await _fetch_coded(hand, model)
    rows = await hand.rows(status)
    if scenario.transit.codec != "float32" and scenario.cost.model_bits is None:
        # A replay codes too: it must start from the size of the plain model.
        scenario = replace(scenario, cost=replace(scenario.cost, model_bits=8.0 * _data_bytes(model)))
    run = status.record.run if status.record is not None else ""
    folder.keep_audit(completed(await hand.audit(status, rows), read_audit(folder.path / AUDIT_FILE), run))
    return status, write_run(folder, scenario, status, rows)


async def _fetch_mean(hand: Operator, status: FederationStatus, to: Path) -> None:
    """Fetch the newest mean that an answering site has: a site keeps the mean of the last round that it trained.

    A site is believed only of a round that it trained, by the row that it signed: it could offer anything for others.
    """
    last = status.record.round if status.record is not None else 0
    trained = {row.round: row.node for row in await hand.rows(status, max(1, last - RECENT_ROUNDS + 1))}
    reports = [(node, site.report) for node, site in enumerate(status.sites) if site.report is not None]
    there = [(r.readout, node) for node, r in reports if r.readout and trained.get(r.readout.round) == node]
    if not there:
        raise BadInput("no site that answers has the mean that the run tests; give --readout last for the weights.")
    newest, node = max(there, key=lambda found: found[0].round)
    kept = to.with_name("readout.safetensors")
    try:
        await hand.fetch_file(newest.digest, [node], kept, status)
        file = RawFile.of(kept.read_bytes())
    finally:
        kept.unlink(missing_ok=True)
    # Left out: what the site remembers to form the next mean.
    plain = {name: tensor for name, tensor in file.tensors.items() if not name.startswith(PASSED)}
    write_atomically(to, written(plain, {ROUND: str(newest.round)}))


async def _fetch_coded(hand: Operator, to: Path) -> FederationStatus:
    """Fetch coded weights and what they are coded against, and write the plain weights that they stand for."""
    coded, reference = to.with_name("coded.safetensors"), to.with_name("reference.safetensors")
    try:
        status = await hand.fetch(coded, lambda _: None)
        named = RawFile.at(coded).reference
        if named is None:
            raise BadInput("the weights at the sites are not coded as transit.codec in federation.toml says.")
        await hand.fetch_file(named, status.answering, reference, status)
        write_atomically(to, decoded_file(coded.read_bytes(), reference.read_bytes()))
    finally:
        for path in (coded, reference):
            path.unlink(missing_ok=True)
    return status


def _data_bytes(path: Path) -> int:
    return sum(tensor.data.nbytes for tensor in RawFile.at(path).tensors.values())


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
    bits = scenario.cost.model_bits or cost.model_bits
    charged = replace(scenario, cost=Cost(flops_per_sample=cost.flops_per_sample, model_bits=bits))
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

"""Where the newest weights lie: a site that has them is sent nothing, and a lost holder costs few rounds."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from benchmarks.trial.sites import PATIENCE, Far, Goals
from tramfl.circulation.custody import Record
from tramfl.record import AuditEntry, Row
from tramfl.runtime.operator.federation_status import FederationStatus

HOLDER = "d"
"""Its line is the slowest, and no member of etcd is behind it."""
SLOW = 2
"""Mbit/s: 45 MB take three minutes."""
UNSAFE_ROUNDS = 3
"""The default of `unsafe_rounds`."""
WATCHED_SECONDS = 20.0
NO_TRANSFER = 1.0
"""Seconds that two messages between sites may take where no model is sent."""


def show_resident(far: Far, goals: Goals) -> None:
    """Pause, so that a second site gets a copy; then the holder may not train, and the copy's site is next."""
    sites = far.sites
    sites.order("start", "resident", replacing=True)
    _lead_to_holder(far)
    sites.order("pause")
    paused = sites.rest()
    assert paused.holder == sites.names.index(HOLDER), "it gave the model away"
    (resident,) = set(paused.weights.copies) - {paused.holder}
    sites.order_site(HOLDER, "drain")
    sites.order("resume")

    def first() -> Row | None:
        return next((row for row in sites.rows() if row.round == paused.round + 1), None)

    row = sites.seen("round after the pause", first, PATIENCE)
    sites.order_site(HOLDER, "undrain")
    sites.order("stop")
    sites.rest()
    predicted = {candidate.node: candidate.transfer_seconds for candidate in row.decision.candidates}
    name = sites.names[resident]
    others = ", ".join(f"{s:.1f} s to {sites.names[n]}" for n, s in predicted.items() if n != resident)
    print(f"  round {row.round}: {row.decision.reason}")
    goals.note(
        f"resident, transfer from {HOLDER} predicted to {name}, which has the newest weights",
        f"{predicted.get(resident, -1.0):.1f} s, and {others}",
        f"0 s, and the round at {name}",
        predicted.get(resident) == 0 and row.node == resident,
    )
    seconds = row.transfer_seconds
    took = f"{seconds:.2f} s"
    goals.note_time("resident, what that transfer took", took, f"below {NO_TRANSFER:.0f} s", seconds < NO_TRANSFER)


def show_bound(far: Far, goals: Goals) -> None:
    """Slow the link of the holder's copies down, kill the holder, and go back to an earlier version afterwards."""
    sites, host = far.sites, far.sites.names.index(HOLDER)
    sites.order("start", "bound", replacing=True)
    _lead_to_holder(far)
    far.network.change(host, up=SLOW)
    _held_back(far)
    most, rounds = _watched(far)
    goals.note(
        f"bound, rounds at {HOLDER} alone while its copy travels at {SLOW} Mbit/s",
        f"at most {most}; {rounds} rounds were committed in {WATCHED_SECONDS:.0f} s",
        f"at most {UNSAFE_ROUNDS}",
        most <= UNSAFE_ROUNDS,
    )
    _held_back(far)
    sites.kill(HOLDER)
    began, lost = time.monotonic(), sites.record
    taken = sites.shown("takeover", lambda status: _later(status, lost.epoch), PATIENCE)
    took = time.monotonic() - began
    sites.wait_for_round(lost.round + UNSAFE_ROUNDS, PATIENCE)
    row = next(row for row in sites.rows() if row.epoch > lost.epoch)
    dropped = lost.round + 1 - row.round
    who = sites.names[taken.holder] if taken.holder is not None else "nobody"
    goals.note(
        f"bound, committed rounds lost with {HOLDER} by kill -9",
        f"{dropped}; {who} went on from round {row.round - 1} {took:.1f} s later",
        f"at most {UNSAFE_ROUNDS}",
        0 <= dropped <= UNSAFE_ROUNDS,
    )
    _show_trail(far, goals, lost, range(row.round, lost.round + 1))
    _show_rollback(far, goals)
    far.network.change(host, up=20)
    sites.order("stop")
    sites.rest()


def _lead_to_holder(far: Far) -> None:
    """Have the model sent to the holder of this trial, where every round is quickest from then on."""
    sites, number = far.sites, far.sites.names.index(HOLDER)
    others = [name for name in sites.names if name != HOLDER]
    # Rounds elsewhere come first, so that a loss costs no more than the rounds of this holder.
    sites.order_site(HOLDER, "drain")

    def trained_elsewhere(status: FederationStatus) -> Record | None:
        record = status.record
        return record if record is not None and record.ledger.trained >= 2 and record.holder != number else None

    sites.shown("rounds elsewhere", trained_elsewhere, PATIENCE)
    sites.order_site(HOLDER, "undrain")
    for name in others:
        sites.order_site(name, "drain")

    def on_its_way(status: FederationStatus) -> bool | None:
        reports = [site.report for site in status.sites if site.report is not None]
        there = status.record is not None and status.record.holder == number
        return there or any(report.to == number for report in reports) or None

    sites.shown("model on its way to its holder", on_its_way, PATIENCE)
    # A holder that trains while no other site reports would ship no copies.
    for name in others:
        sites.order_site(name, "undrain")

    def trained(status: FederationStatus) -> Record | None:
        record = status.record
        return record if record is not None and record.weights.copies == (number,) else None

    sites.shown(f"round of {HOLDER}", trained, PATIENCE)


def _later(status: FederationStatus, epoch: int) -> Record | None:
    record = status.record
    return record if record is not None and record.epoch > epoch and record.holder is not None else None


def _held_back(far: Far) -> None:
    """Until as many rounds lie at the holder alone as may."""

    def full(status: FederationStatus) -> Record | None:
        record = status.record
        return record if record is not None and record.unsafe_rounds >= UNSAFE_ROUNDS else None

    far.sites.shown("rounds at the holder alone", full, PATIENCE)


def _watched(far: Far) -> tuple[int, int]:
    """The most rounds that lay at one site alone for a while, and the rounds that were committed meanwhile."""
    until, seen = time.monotonic() + WATCHED_SECONDS, list[Record]()

    def over(status: FederationStatus) -> bool | None:
        if status.record is not None:
            seen.append(status.record)
        return time.monotonic() > until or None

    far.sites.shown("end of the watch", over, PATIENCE)
    return max(record.unsafe_rounds for record in seen), seen[-1].round - seen[0].round


def _show_trail(far: Far, goals: Goals, lost: Record, rounds: range) -> None:
    """Print what the audit trail of `tramfl pull` has of the rounds that were dropped."""
    folder = far.sites.folder / "pulled"
    far.operate("pull", "federation.toml", "--out", str(folder))
    lines = Path(folder, "audit.jsonl").read_bytes().splitlines()
    entries = [msgspec.json.decode(line, type=AuditEntry) for line in lines]
    noted = [e for e in entries if e.what == "dropped" and e.epoch == lost.epoch and e.round in rounds]
    for entry in noted:
        print(f"  audit: round {entry.round} of {entry.author}, {entry.digest[:12]}, dropped: {entry.reason}")
    whole = [e for e in noted if e.author == HOLDER and e.reason]
    goals.note(
        "bound, dropped rounds in the audit trail with their site and the reason",
        f"{len({e.round for e in whole})}",
        f"all {len(rounds)}",
        {e.round for e in whole} == set(rounds),
    )


def _show_rollback(far: Far, goals: Goals) -> None:
    """Take the run back to the newest kept version before the present one, and let it go on."""
    sites = far.sites
    sites.order("pause")
    before = sites.rest()
    version = before.versions[-1]
    print(f"  {far.operate('rollback', 'federation.toml', str(version.round))}")
    after = sites.rest()
    sites.order("resume")
    end = sites.wait_for_round(version.round + 3, PATIENCE)
    good = after.weights.digest == version.digest and after.round == version.round
    goals.note(
        f"bound, tramfl rollback from round {before.round} to {version.round}",
        f"the record has the weights and the round of that version; the run is in round {end.round} again"
        if good
        else f"round {after.round}",
        "that version, and the run goes on",
        good,
    )

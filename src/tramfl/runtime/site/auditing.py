"""What this site notes in its audit trail, from its own work and from every record that it sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tramfl.circulation.commands import Train
from tramfl.circulation.custody import Record
from tramfl.notation import Digest
from tramfl.record import AuditEntry, AuditFile, AuditKind
from tramfl.runtime.journal import Log

KEPT_ROUNDS = 2000
"""Rounds of which this site remembers who trained them, to name them where they are dropped."""
MOST_REASON = 400


class Auditor:
    """Writes the trail of one site."""

    def __init__(self, folder: Path, site: str, clock: Callable[[], float], log: Log) -> None:
        self._file, self._site, self._clock, self._log = AuditFile(folder), site, clock, log
        self._folder = folder
        self._run: str | None = None
        self._committed: dict[int, AuditEntry] = {}
        """By round: what the record had, as far as this site saw it, of the rounds that count."""
        self._safe = 0
        """The newest safe round: a takeover never goes back beyond it, and an operator does."""
        self._failed = False

    def entries(self, run: str | None) -> list[AuditEntry]:
        """What this site noted of a run, or of all."""
        return self._file.entries(run)

    def made(self, record: Record, command: Train, digest: Digest, rejected: str | None = None) -> None:
        """This site trained weights, while the record was this one; `rejected` is why they are not acceptable."""
        what: AuditKind = "trained" if rejected is None else "rejected"
        samples = sum(command.assignment.decision.samples)
        self._note(what, record, command.round, digest, command.parent, self._site, samples, rejected or "")

    def refused(self, record: Record, sender: str, digest: Digest, reason: str) -> None:
        """This site did not accept weights that it was sent."""
        self._note("refused", record, record.round, digest, None, sender, 0, reason)

    def saw(self, record: Record, writer: str = "") -> None:
        """This is the record now: note a round that it is the first to have, and rounds that count no longer.

        `writer` signed the change from the record before, where this site saw both; else it is empty.
        """
        if record.run != self._run:
            self._remember(record.run)
        what: AuditKind = "rolled-back" if record.safe.round < self._safe else "dropped"
        self._safe = record.safe.round
        for entry in [entry for entry in self._committed.values() if _is_dropped(entry, record)]:
            del self._committed[entry.round]
            reason = f"epoch {record.epoch} goes on from round {record.round} at {record.name_of(record.holder)}"
            self._write(replace(entry, at=self._clock(), what=what, reason=reason))
        last = max(self._committed, default=0)
        if record.round <= last or not record.ledger.trained:
            return
        before = self._committed.get(last)
        known = before.digest if before is not None else None
        if known == record.weights.digest:
            return  # rounds in which nobody trained
        copies = record.weights.copies
        author = record.name_of(copies[0]) if len(copies) == 1 else None
        parent = known if record.round == last + 1 else None
        if writer and parent is not None:
            author = writer  # whatever it wrote there of others: who commits a round has trained it
        digest = record.weights.digest
        self._committed[record.round] = self._note("committed", record, record.round, digest, parent, author)
        if len(self._committed) > KEPT_ROUNDS:
            del self._committed[min(self._committed)]

    def _remember(self, run: str) -> None:
        """Begin with what an earlier life of this site noted of the run."""
        self._run, self._committed, self._safe = run, {}, 0
        entries = self._file.entries(run)
        gone = {(e.epoch, e.round, e.digest) for e in entries if e.what in ("dropped", "rolled-back")}
        # A clock that was set back must not bring a round back that was taken back: epochs only grow.
        for entry in sorted(entries, key=lambda e: e.epoch):
            if entry.what == "committed" and (entry.epoch, entry.round, entry.digest) not in gone:
                self._committed[entry.round] = entry

    def _note(
        self,
        what: AuditKind,
        record: Record,
        round_: int,
        digest: Digest,
        parent: Digest | None,
        author: str | None,
        samples: int = 0,
        reason: str = "",
    ) -> AuditEntry:
        at, run, epoch, why = self._clock(), record.run, record.epoch, reason[:MOST_REASON]
        entry = AuditEntry(at, what, run, epoch, round_, digest, parent, author, samples, why)
        self._write(entry)
        return entry

    def _write(self, entry: AuditEntry) -> None:
        try:
            self._file.note(entry)
            self._failed = False
        except OSError as error:
            if not self._failed:  # logged once, not every round
                self._failed = True
                self._log("audit-not-kept", file=str(self._folder), reason=str(error.strerror or error))


def _is_dropped(entry: AuditEntry, record: Record) -> bool:
    """Whether a record of a later epoch does without a round that was committed."""
    if entry.epoch >= record.epoch or entry.round < record.round:
        return False
    return entry.round > record.round or entry.digest != record.weights.digest

"""A register whose records are checked before a site acts on them.

All sites share the register, so a hostile one can write there what it likes. A record that is not sound is logged and
ignored: the register counts as silent, the site keeps its place, and the last good record stands. It is kept on the
site's disk too, for the order `repair`, which puts it back.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections import deque
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tramfl.circulation.custody import Record, Versioned
from tramfl.circulation.soundness import fault, fault_in_step, fault_in_writing
from tramfl.runtime.journal import Log
from tramfl.runtime.registers.contract import LeaseLost, Register, Silent, Standing
from tramfl.runtime.registers.records import (
    NOTE,
    ROW,
    OpenedRound,
    Seal,
    Unreadable,
    Unsealed,
    opened_round,
    sealed_round,
)

REPLACE_SECONDS = 1.0
"""How long a record of a revoked site may stand before a site replaces it that does not know the one before it."""
KEPT_REVISIONS = 64
"""Sites see a change at slightly different moments: by these the operator can compare them all the same."""
REMEDY = "the last good record stands; see tramfl repair"


def fingerprint(record: Record) -> bytes:
    """Differs where two records differ."""
    return hashlib.sha256(msgspec.msgpack.encode(record)).digest()[:16]


class Unsound(Silent):
    """The register holds a record that this site does not act on."""

    def __init__(self, reason: str, revision: int) -> None:
        super().__init__(f"{reason.rstrip('.')}; {REMEDY}")
        self.revision = revision


class CheckedRegister:
    """A register as one site uses it. See `Register`."""

    def __init__(self, inner: Register, file: Path, log: Log, seal: Seal | None = None) -> None:
        """`file` keeps the last good record; with a seal, records must be signed."""
        self._inner, self._file, self._log = inner, file, log
        self._seen: Versioned | None = None
        self._rejected = -1
        self._rejected_at = 0.0
        self._logged = ""
        """Why a record was last ignored, as logged; empty once a good one was seen."""
        self._unauthorised: deque[int] = deque(maxlen=KEPT_REVISIONS)
        """Revisions of records that their writers had no right to make."""
        self.good: Versioned | None = _kept(file)
        """The last good record, of this life of the site or of the one before."""
        self.records = inner.records
        self.records.seal, self.records.known = seal, self.good
        self.seen: deque[tuple[int, bytes]] = deque(maxlen=KEPT_REVISIONS)
        """The last revisions that this site saw, with the fingerprints of their records."""
        self._answered = -math.inf

    async def join(self) -> str | None:
        """Take this site's lease."""
        return await self._inner.join()

    async def renew(self) -> None:
        """Make the lease last a full length again."""
        await self._inner.renew()

    async def leave(self) -> None:
        """Give the lease up."""
        await self._inner.leave()

    async def look(self) -> Standing:
        """The record and who is alive. Raises Unsound where the record cannot be right."""
        try:
            found = await self._inner.look()
            self._answered = time.monotonic()
            return self._checked(found)
        except Unreadable as error:
            await self._replace(error)
            raise self._unsound(str(error), error.revision) from None

    async def changed(self, since: Standing, seconds: float) -> Standing:
        """The standing, as soon as it differs from `since`. Raises Unsound where the record cannot be right."""
        try:
            found = await self._inner.changed(since, seconds)
            self._answered = time.monotonic()
            return self._checked(found)
        except Unreadable as error:
            await self._replace(error)
            raise self._unsound(str(error), error.revision) from None

    async def swap(self, revision: int, record: Record, row: bytes | None = None) -> Versioned | None:
        """Put `record` in place of `revision`; with a seal, this site signs it and the row."""
        if row is not None:
            row = sealed_round(self.records.seal, ROW, record.run, record.round, row)
        try:
            swapped = await self._inner.swap(revision, record, row)
        except Unreadable as error:
            raise self._unsound(str(error), error.revision) from None
        if swapped is not None:
            self._remember(swapped)
        return swapped

    async def rows(self, run: str, first: int, last: int) -> list[bytes]:
        """The rows of rounds `first` to `last` that a member signed; without a seal, all."""
        kept = await self._inner.rows(run, first, last)
        found = (self._opened(ROW, run, row) for row in kept)
        return [row.content for row in found if row is not None and (not row.by or first <= row.round <= last)]

    async def note(self, run: str, round_: int, content: bytes) -> None:
        """Keep something about a round; with a seal, this site signs it."""
        await self._inner.note(run, round_, sealed_round(self.records.seal, NOTE, run, round_, content))

    async def notes(self, run: str, first: int, last: int) -> dict[int, bytes]:
        """What was noted about rounds `first` to `last`, and a member signed; without a seal, all."""
        kept = await self._inner.notes(run, first, last)
        found = {round_: self._opened(NOTE, run, note) for round_, note in kept.items()}
        return {n: note.content for n, note in found.items() if note is not None and (not note.by or note.round == n)}

    async def sealed(self, run: str, first: int, last: int) -> tuple[list[bytes], dict[int, bytes]]:
        """Rows and notes of rounds as the register keeps them: the operator checks the signatures itself."""
        return await self._inner.rows(run, first, last), await self._inner.notes(run, first, last)

    def _opened(self, purpose: str, run: str, kept: bytes) -> OpenedRound | None:
        members = self.good.record.members if self.good is not None else ()
        try:
            return opened_round(self.records.seal, purpose, run, kept, (entry.name for entry in members))
        except Unsealed as error:
            self._log("row-ignored", reason=f"a {purpose} of run {run} {error}")
            return None

    async def announce_revoked(self, content: bytes) -> None:
        """Put a list of revoked certificates where every site sees it."""
        await self._inner.announce_revoked(content)

    async def close(self) -> None:
        """End all connections."""
        await self._inner.close()

    @property
    def age_seconds(self) -> float:
        """How long ago the register last answered with a record; infinite where it never did."""
        return time.monotonic() - self._answered

    async def repair(self) -> Versioned | None:
        """Put the last good record in the place of one that is not sound; None where the present one is sound."""
        try:
            await self.look()
        except Unsound as unsound:
            if self.good is None:
                raise
            swapped = await self.swap(unsound.revision, self.good.record)
            if swapped is None:
                raise Silent("the record was changed at the same moment") from None
            return swapped
        return None

    async def _replace(self, error: Unreadable) -> None:
        """Put the last good record in the place of one that was signed with a certificate which is revoked by now.

        A revoked holder loses the model: another site takes over under the next epoch. A site that knows the record
        before the revoked one acts at once, the others a second later, if the revoked record is still there.
        """
        revoked, good = error.revoked, self.good
        if revoked is None or good is None or revoked.record.run != good.record.run:
            return
        if error.revision != self._rejected:
            self._rejected_at = time.monotonic()
        if revoked.after != good.revision and time.monotonic() < self._rejected_at + REPLACE_SECONDS:
            return
        record = good.record
        if record.name_of(record.holder) == revoked.by:
            record = replace(record, epoch=record.epoch + 1, holder=None)
        with contextlib.suppress(Silent, LeaseLost):
            await self.swap(error.revision, record)

    def _checked(self, standing: Standing) -> Standing:
        versioned, before = standing.versioned, self._seen
        if versioned is None or (before is not None and versioned.revision == before.revision):
            return standing
        wrong = fault(versioned.record)
        if wrong is None and before is not None and versioned.revision > before.revision:
            wrong = fault_in_step(before.record, versioned.record) or self._fault_in_writing(before, versioned)
        if wrong is not None:
            raise self._unsound(
                f"the record of run {versioned.record.run[:100]!r} is not sound: {wrong}", versioned.revision
            )
        self._remember(versioned)
        return standing

    def _fault_in_writing(self, before: Versioned, after: Versioned) -> str | None:
        wrong = fault_in_writing(before, after)
        if wrong is None and after.after in self._unauthorised and after.record != before.record:
            wrong = f"it builds on revision {after.after}, which was ignored"
        if wrong is not None:
            self._unauthorised.append(after.revision)
        return wrong

    def _unsound(self, reason: str, revision: int) -> Unsound:
        """Logged once for each reason until a good record is seen: a run that this site cannot read may go on."""
        self._answered, self._rejected = time.monotonic(), revision
        if reason != self._logged:
            self._logged = reason
            self._log("record-ignored", reason=reason)
        return Unsound(reason, revision)

    def _remember(self, versioned: Versioned) -> None:
        if self._seen is not None and versioned.revision <= self._seen.revision:
            return
        self._seen = self.good = self.records.known = versioned
        self._logged = ""
        self.seen.append((versioned.revision, fingerprint(versioned.record)))
        part = self._file.with_name(f"{self._file.name}.part")
        try:
            # Not made durable: after a power cut an older record does, or none.
            part.write_bytes(msgspec.msgpack.encode(versioned))
            os.replace(part, self._file)
        except OSError as error:
            self._log("record-not-kept", file=str(self._file), reason=str(error.strerror or error))


def _kept(file: Path) -> Versioned | None:
    try:
        kept = msgspec.msgpack.decode(file.read_bytes(), type=Versioned)
        return kept if fault(kept.record) is None else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

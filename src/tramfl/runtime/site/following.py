"""Following the register: what the record says and which sites are alive, into the round machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

from tramfl.circulation import events as on
from tramfl.circulation.custody import Record
from tramfl.runtime.registers import Silent, Standing
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.participation import Participation


class RegisterFollower:
    """Reads the register's news, in order, and passes them to the driver of the run."""

    def __init__(self, member: Member, participation: Participation) -> None:
        self._member, self._participation = member, participation
        self._holder = HolderWatch(member)
        self._twins = TwinWatch()
        self._turn = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._looked = -math.inf
        """When the last look began."""
        self.standing: Standing | None = None
        """The record and who is alive, as last seen."""
        self.silence = ""
        """Why the register does not answer; empty while it does."""

    @property
    def record(self) -> Record | None:
        """The record as last seen."""
        versioned = self.standing.versioned if self.standing is not None else None
        return versioned.record if versioned is not None else None

    @property
    def twins(self) -> dict[str, tuple[str, str]]:
        """Sites that run at two places, as far as this site saw: where the earlier and the later process are."""
        return self._twins.found

    async def follow(self) -> None:
        """Wait for news and pass them on, for ever."""
        register, lease = self._member.register, self._member.lease_seconds
        standing: Standing | None = None
        while True:
            self._member.revocations.check()
            try:
                standing = await (register.look() if standing is None else register.changed(standing, lease / 4))
            except Silent as error:
                if str(error) != self.silence:  # logged once, not twice a second
                    self.silence = str(error)
                    self._member.log("register-silent", reason=self.silence)
                standing = None
                await asyncio.sleep(min(0.5, lease / 4))
                continue
            self.silence = ""
            self._twins.saw(standing)
            await self._news(standing)

    async def read(self) -> None:
        """Read the record now. Raises Silent."""
        await self._news(await self._member.register.look())

    async def look(self) -> None:
        """Read the record now, because a peer reports that it has changed.

        However many report it at once, the register is asked twice at most: its other callers wait in the same queue.
        """
        asked = time.monotonic()
        async with self._looking:
            if self._looked >= asked:
                return  # a look that began later saw all that this one would
            self._looked = time.monotonic()
            with contextlib.suppress(Silent):
                await self.read()

    async def _news(self, standing: Standing) -> None:
        async with self._turn:
            await self._member.revocations.follow(standing.revoked)
            versioned, before = standing.versioned, self.standing
            known = before.versioned.revision if before is not None and before.versioned is not None else -1
            if versioned is None:
                self.standing = before if known >= 0 else standing
                return
            if versioned.revision < known:
                return
            self.standing = standing
            record = versioned.record
            self._member.roster.follow(versioned)
            self._member.log.at(record.run, record.epoch, record.round)
            try:
                await self._participation.join(record)
            except Silent as error:
                # The next news, or the next look, brings the record again.
                self._member.log("register-silent", reason=str(error))
                return
            driver = self._participation.driver_of(record.run)
            if driver is None:
                return
            if before is not None and before.versioned is not None and record.epoch > before.versioned.record.epoch:
                self._member.log("taken-over", holder=record.name_of(record.holder), safe=record.safe.round)
            if versioned.revision > known:
                self._member.audit.saw(record, versioned.by if versioned.after == known else "")
                driver.tell(on.RecordSeen(self._member.now(), versioned))
            if self._holder.is_lost(standing):
                driver.tell(on.HolderLost(self._member.now(), versioned))


class TwinWatch:
    """Notices that the lease of a site went from one place to another while it lasted: two processes use its name."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self.found: dict[str, tuple[str, str]] = {}
        """By the site's name, until its lease ends."""

    def saw(self, standing: Standing) -> None:
        """Compare the leases with those seen before."""
        before, self._places = self._places, standing.places
        moved = {name: (before[name], now) for name, now in standing.places.items() if before.get(name, now) != now}
        found = {**self.found, **moved}
        self.found = {name: places for name, places in found.items() if name in standing.alive}


class HolderWatch:
    """Notices that the holder has no lease any more, or that its certificate was revoked."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._began = time.monotonic()
        self._seen_alive: str | None = None
        self._lost_at = -math.inf

    def is_lost(self, standing: Standing) -> bool:
        """Whether to report a lost holder now: at once, and then four times per lease while it stays lost.

        It is reported again since the machine may have been busy, or the register silent, the first time.
        """
        assert standing.versioned is not None
        record, lease, now = standing.versioned.record, self._member.lease_seconds, time.monotonic()
        if record.status == "stopped":
            return False  # nobody takes it over: its holder may be gone for good
        holder = record.name_of(record.holder)
        alive = holder in standing.alive and not self._member.roster.is_barred(holder or "")
        if holder is not None and (alive or holder == self._member.site.file.site):
            self._seen_alive, self._lost_at = holder, -math.inf
            return False
        # Where all sites have just been started, the holder may be the last one to join.
        if holder is not None and holder != self._seen_alive and now - self._began < lease:
            return False
        if now - self._lost_at < lease / 4:
            return False
        if self._lost_at < 0:
            self._member.log("holder-lost", holder=holder)
        self._lost_at = now
        return True

"""The register of simulations, MemoryRegister, as the sites of one process see it: with leases and rows, awaited."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tramfl.circulation.custody import MemoryRegister, Record, Versioned
from tramfl.runtime.registers.contract import ABSENT, LeaseLost, LeaseTaken, Silent, Standing
from tramfl.runtime.registers.records import Records

POLL_SECONDS = 0.005


@dataclass
class Memory:
    """What all sites share."""

    register: MemoryRegister | None = None
    lives: dict[str, tuple[object, float]] = field(default_factory=dict)
    """Of each node: whose lease it is, and when it ends."""
    rows: dict[tuple[str, int], bytes] = field(default_factory=dict)
    notes: dict[tuple[str, int], bytes] = field(default_factory=dict)
    revoked: bytes = b""


class MemoryView:
    """One site's view of it. See `Register`."""

    def __init__(self, memory: Memory, node: str, lease_seconds: float) -> None:
        self._memory = memory
        self.records = Records()
        self._node = node
        self._lease_seconds = lease_seconds
        self._closed = False
        self._joined = False

    async def join(self) -> str | None:
        life, ends = self._memory.lives.get(self._node, (None, 0.0))
        if self._joined and life is not self and time.monotonic() < ends:
            raise LeaseTaken(self._node)
        self._joined = True
        self._memory.lives[self._node] = (self, time.monotonic() + self._lease_seconds)
        return None

    async def renew(self) -> None:
        self._check_lease()
        await self.join()

    async def leave(self) -> None:
        if self._memory.lives.get(self._node, (None, 0))[0] is self:
            del self._memory.lives[self._node]

    async def look(self) -> Standing:
        if self._closed:
            raise Silent("closed")
        now, register = time.monotonic(), self._memory.register
        alive = frozenset(node for node, (_, ends) in self._memory.lives.items() if now < ends)
        return Standing(None if register is None else register.read(), alive, self._memory.revoked)

    async def changed(self, since: Standing, seconds: float) -> Standing:
        until = time.monotonic() + seconds
        while (standing := await self.look()) == since and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        return standing

    async def swap(self, revision: int, record: Record, row: bytes | None = None) -> Versioned | None:
        self._check_lease()
        if self._memory.register is None:
            if revision != ABSENT:
                return None
            self._memory.register = MemoryRegister(record)
            swapped: Versioned | None = self._memory.register.read()
        else:
            swapped = self._memory.register.swap(revision, record)
        if swapped is not None and row is not None:
            self._memory.rows[record.run, record.round] = row
        return swapped

    async def rows(self, run: str, first: int, last: int) -> list[bytes]:
        return [row for _, row in self._between(self._memory.rows, run, first, last)]

    async def note(self, run: str, round_: int, content: bytes) -> None:
        self._memory.notes[run, round_] = content

    async def notes(self, run: str, first: int, last: int) -> dict[int, bytes]:
        return dict(self._between(self._memory.notes, run, first, last))

    async def announce_revoked(self, content: bytes) -> None:
        self._memory.revoked = content

    async def close(self) -> None:
        self._closed = True

    def _check_lease(self) -> None:
        life, ends = self._memory.lives.get(self._node, (None, 0.0))
        if life is not self or time.monotonic() >= ends:
            raise LeaseLost(self._node)

    @staticmethod
    def _between(kept: dict[tuple[str, int], bytes], run: str, first: int, last: int) -> list[tuple[int, bytes]]:
        return sorted((k, content) for (r, k), content in kept.items() if r == run and first <= k <= last)

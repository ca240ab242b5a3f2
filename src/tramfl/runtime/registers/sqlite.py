"""The register of sites that share one machine: a SQLite file (`sqlite_file.py`), worked on in threads.

Each thread has its own connection, so the event loop waits for no disk. Leases end by the machine's monotonic clock,
which all processes of one boot share.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tramfl.circulation.custody import Record, Versioned
from tramfl.runtime.registers.contract import Silent, Standing
from tramfl.runtime.registers.records import Records
from tramfl.runtime.registers.sqlite_file import LookStamp, RegisterFile

T = TypeVar("T")

POLL_SECONDS = 0.05
"""How soon a change is seen: a poll asks only whether the file has changed."""


def machine_seconds() -> float:
    """Seconds since this machine was started: the same for all its processes."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class SqliteRegister:
    """One node's view of a file that all nodes share. See `Register`.

    A file that is damaged or not ours raises BadInput, at first use or whenever it is found out.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        lease_seconds: float,
        timeout_seconds: float = 2.0,
        clock: Callable[[], float] = machine_seconds,
        place: str = "",
    ) -> None:
        self.records = Records()
        self._file = RegisterFile(path, node, lease_seconds, clock, place, self.records)
        self._timeout = timeout_seconds
        self._actor = ThreadPoolExecutor(1, "register")
        self._watchers = ThreadPoolExecutor(8, "register-watch")
        self._watches: set[threading.Event] = set()
        self._lookouts: list[RegisterFile] = []

    async def join(self) -> str | None:
        """Take this node's lease, in place of any that a former life of it left."""
        return await self._do(self._file.join)

    async def renew(self) -> None:
        """Make the lease last a full length again."""
        await self._do(self._file.renew)

    async def leave(self) -> None:
        """Give the lease up; where the register is silent it runs out by itself."""
        with contextlib.suppress(Silent):
            await self._do(self._file.leave)

    async def look(self) -> Standing:
        """The record and who is alive."""
        standing, _ = await self._do(self._file.look)
        return standing

    async def changed(self, since: Standing, seconds: float) -> Standing:
        """The standing, as soon as it differs from `since`, or as it is when `seconds` have passed."""
        ended = threading.Event()
        self._watches.add(ended)
        try:
            return await self._in(
                self._watchers, seconds + self._timeout, partial(self._watch, since, seconds, ended)
            )
        finally:
            ended.set()
            self._watches.discard(ended)

    async def swap(self, revision: int, record: Record, row: bytes | None = None) -> Versioned | None:
        """Put `record` in place of `revision`, with its row; None if the record has another revision by now."""
        return await self._do(lambda: self._file.swap(revision, record, row))

    async def rows(self, run: str, first: int, last: int) -> list[bytes]:
        """The rows of rounds `first` to `last`, in order."""
        found = await self._do(lambda: self._file.contents("row", run, first, last))
        return [content for _, content in found]

    async def note(self, run: str, round_: int, content: bytes) -> None:
        """Keep something about a round; the last one counts."""
        await self._do(lambda: self._file.note(run, round_, content))

    async def notes(self, run: str, first: int, last: int) -> dict[int, bytes]:
        """What was noted about rounds `first` to `last`."""
        return dict(await self._do(lambda: self._file.contents("note", run, first, last)))

    async def announce_revoked(self, content: bytes) -> None:
        """Put a list of revoked certificates where every node sees it; the last one counts."""
        await self._do(lambda: self._file.announce_revoked(content))

    async def close(self) -> None:
        """Close the file; the lease runs out by itself unless given up before."""
        for ended in self._watches:
            ended.set()
        with contextlib.suppress(RuntimeError):  # closed already
            self._actor.submit(self._file.close)
            self._watchers.submit(self._close_lookouts)
        self._actor.shutdown(wait=False)
        self._watchers.shutdown(wait=False)

    async def _do(self, work: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._timeout
        # A moment more than the work has itself, so that it can say what kept it.
        return await self._in(self._actor, self._timeout + POLL_SECONDS, partial(self._file.within, deadline, work))

    async def _in(self, threads: ThreadPoolExecutor, seconds: float, work: Callable[[], T]) -> T:
        """The outcome of work in a thread; Silent if it takes too long, though it may yet be done."""
        try:
            future = threads.submit(work)
        except RuntimeError:
            raise Silent(f"{self._file.path} is closed") from None
        future.add_done_callback(_heard)
        try:
            # Not wait_for: until Python 3.12 it may swallow a cancellation that comes with the outcome.
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Silent(f"{self._file.path} did not answer in time") from None

    def _watch(self, since: Standing, seconds: float, ended: threading.Event) -> Standing:
        """Look until there is news; in a thread of its own, for a hop between threads costs more than to ask."""
        try:
            lookout = self._lookouts.pop()
        except IndexError:
            lookout = self._file.beside()
        until = time.monotonic() + seconds
        try:
            while True:
                standing, seen = lookout.within(time.monotonic() + self._timeout, lookout.look)
                if standing != since or time.monotonic() >= until:
                    return standing
                self._wait_until_stale(lookout, seen, until, ended)
        finally:
            self._lookouts.append(lookout)

    def _wait_until_stale(self, lookout: RegisterFile, seen: LookStamp, until: float, ended: threading.Event) -> None:
        while (now := time.monotonic()) < until:
            if lookout.stale(seen):
                return
            if ended.wait(min(POLL_SECONDS, until - now)):
                raise Silent(f"{self._file.path} is closed")

    def _close_lookouts(self) -> None:
        while self._lookouts:
            self._lookouts.pop().close()


def _heard(future: Future[Any]) -> None:
    """Work whose caller has gone may fail unheard."""
    if not future.cancelled():
        future.exception()

"""The status of a run: pausing, resuming and stopping it in the register, and stopping it once it has finished."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from tramfl.circulation.custody import Record, Status
from tramfl.runtime.journal import Log
from tramfl.runtime.registers.contract import LeaseLost, Register, Silent


class RunStatus:
    """Changes the status in the record."""

    def __init__(self, register: Register, look: Callable[[], Awaitable[None]]) -> None:
        """`look` has this site read the record, so that it acts on a change at once."""
        self._register, self._look = register, look

    async def set(self, status: Status, run: str | None = None) -> Record | None:
        """Pause, resume or stop the run, if it has that name; the record afterwards, None where there is none.

        Raises Silent where the register does not answer: then the change may have been made or not.
        """
        while True:
            versioned = (await self._register.look()).versioned
            if versioned is None or run not in (None, versioned.record.run):
                return None
            if versioned.record.status in (status, "stopped"):
                return versioned.record
            record = replace(versioned.record, status=status)
            try:
                swapped = await self._register.swap(versioned.revision, record)
            except LeaseLost:
                await self._register.join()
                continue
            if swapped is not None:
                await self._look()
                return record


class FinishedRuns:
    """Runs that reached their end at this site, on their way into the register."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._runs: asyncio.Queue[str] = asyncio.Queue()
        self._unstopped = 0

    @property
    def busy(self) -> bool:
        """Whether the register is still to be told of a run's end."""
        return self._unstopped > 0

    def soon(self, run: str, reason: str) -> None:
        """A run is at its end: stop it as soon as the register answers."""
        self._log("finished", reason=reason)
        self._unstopped += 1
        self._runs.put_nowait(run)

    def target_reached(self, run: str) -> None:
        """A test reached the run's last target."""
        self.soon(run, "the last target is reached")

    async def stop_all(self, status: RunStatus) -> None:
        """Stop each run in the register, for ever; a register that does not answer is asked again."""
        while True:
            run = await self._runs.get()
            while True:
                with contextlib.suppress(Silent):
                    await status.set("stopped", run)
                    break
                await asyncio.sleep(0.5)
            self._unstopped -= 1

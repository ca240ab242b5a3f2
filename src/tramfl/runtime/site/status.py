"""Changes of the record that an operator orders, and stopping a run once it has finished.

The round machine of the run carries the orders out (`circulation/ordering.py`); here they are passed to it.
"""

from __future__ import annotations

import asyncio
import contextlib

from tramfl.circulation.changes import OrderedChange, SetStatus
from tramfl.circulation.custody import Record
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import Silent
from tramfl.runtime.site.driver import DriverEnded
from tramfl.runtime.site.following import RegisterFollower
from tramfl.runtime.site.participation import Participation


class RunStatus:
    """Changes the record as ordered."""

    def __init__(self, participation: Participation, following: RegisterFollower) -> None:
        self._participation, self._following = participation, following

    async def change(
        self, change: OrderedChange, run: str | None = None, *, persistent: bool = False
    ) -> Record | None:
        """Change the record of the run, if it has that name; the record afterwards, None where there is none.

        Raises Silent where the register does not answer: then the change may have been made or not. A persistent
        order is tried again instead.
        """
        while True:
            driver = self._participation.driver
            if driver is None:
                await self._following.read()
                driver = self._participation.driver
            if driver is None:
                # No run has begun, or one that ended does not fit this site.
                return self._following.record
            if run not in (None, driver.run):
                return None
            try:
                record = await driver.order(change, persistent=persistent)
            except DriverEnded as ended:
                if self._participation.driver is driver:
                    raise Silent(str(ended)) from None
                continue
            if record is None:
                raise Silent("it gave no answer to a swap")
            return record


class FinishedRuns:
    """Runs that reached their end at this site, on their way into the register."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._runs: asyncio.Queue[str] = asyncio.Queue()
        self._unstopped = 0

    @property
    def busy(self) -> bool:
        """Whether a run's end is not in the register yet."""
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
        """Stop each finished run, one after the other, for ever."""
        while True:
            run = await self._runs.get()
            while True:
                with contextlib.suppress(Silent):
                    await status.change(SetStatus(0, "stopped"), run, persistent=True)
                    break
                # Only where the register was silent before the run was known here, or this site is about to end.
                await asyncio.sleep(0.5)
            self._unstopped -= 1

"""What an operator, or a peer, may ask of a site: its status, to read the record, and to steer the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from tramfl.circulation.custody import Status
from tramfl.notation import BadInput
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import LeaseTaken, Silent
from tramfl.runtime.site.agreement import check_run_name
from tramfl.runtime.site.report import Reporter
from tramfl.runtime.site.starting import RunStart
from tramfl.runtime.site.status import RunStatus
from tramfl.runtime.wire import Order, OrderResult, Prepared

_STATUS: dict[str, tuple[Status, str]] = {
    "pause": ("paused", "paused; the round in hand may still be committed"),
    "resume": ("running", "running"),
    "stop": ("stopped", "stopped; fetch the model with tramfl pull"),
}


class Orders:
    """Carries out what a site is asked."""

    def __init__(
        self,
        look: Callable[[], Awaitable[None]],
        reporter: Reporter,
        prepare: Callable[[str], Prepared],
        starting: RunStart,
        status: RunStatus,
        log: Log,
    ) -> None:
        """`look` has the site read the record; `prepare` puts w_0 of a run on its disk, and is called in a thread."""
        self._look, self._reporter, self._prepare = look, reporter, prepare
        self._starting, self._status, self._log = starting, status, log

    async def carry_out(self, who: str, order: Order) -> OrderResult:
        """Do what is asked; the answer has one sentence about the result."""
        if order.what not in ("status", "look"):
            self._log("order", peer=who, what=order.what, named=order.run)
        try:
            return await self._do(order)
        except (BadInput, OSError) as error:
            return OrderResult(False, str(error))
        except LeaseTaken as error:
            return OrderResult(False, f"this process of the site is about to end: {error}.")
        except Silent as error:
            return OrderResult(
                False, f"the register does not answer ({error}); ask for the status before you try again."
            )

    async def _do(self, order: Order) -> OrderResult:
        match order.what:
            case "look":
                await self._look()
                return OrderResult(True, "looked")
            case "status":
                standing = self._reporter.standing
                record = msgspec.msgpack.encode(standing) if standing is not None else b""
                return OrderResult(True, "here", self._reporter.report(), record=record)
            case "prepare":
                check_run_name(order.run)
                return OrderResult(True, "prepared", prepared=await asyncio.to_thread(self._prepare, order.run))
            case "start":
                message = await self._starting.start(order.run, order.replacing)
                await self._look()
                return OrderResult(True, message)
            case _:
                return await self._set(*_STATUS[order.what])

    async def _set(self, status: Status, sentence: str) -> OrderResult:
        record = await self._status.set(status)
        if record is None:
            return OrderResult(False, "no run has begun; begin one with tramfl start.")
        if record.status != status:
            return OrderResult(
                False, f"run {record.run} is {record.status} for good; begin another with tramfl start."
            )
        return OrderResult(True, f"run {record.run} is {sentence}.")

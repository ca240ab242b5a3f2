"""What the register answers a driver, as events of the round machine; and the row that is written with a commit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.record import Scores, row_of
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import LeaseLost, Register, Silent


class RegisterAnswers:
    """Asks the register for one run at this site."""

    def __init__(self, register: Register, run: str, clock: Callable[[], float], log: Log) -> None:
        self._register, self._run, self._clock, self._log = register, run, clock, log

    async def to_reading(self, command: do.ReadRecord) -> on.Event | None:
        """What the record says; None where another run has begun.

        The site ends the driver of a run as soon as it hears of the next run.
        """
        try:
            standing = await self._register.look()
        except Silent:
            return on.RegisterSilent(self._clock(), command.ticket)
        versioned = standing.versioned
        if versioned is None or versioned.record.run != self._run:
            return None
        return on.RecordRead(self._clock(), command.ticket, versioned)

    async def to_swap(self, command: do.Swap, row: bytes | None) -> on.Event | None:
        """What came of a swap, which joins again where the lease was lost; None where another run has begun.

        Raises LeaseTaken where another process of this site has joined.
        """
        try:
            try:
                swapped = await self._register.swap(command.revision, command.record, row)
            except LeaseLost:
                await self._register.join()
                swapped = await self._register.swap(command.revision, command.record, row)
            versioned = swapped or (await self._register.look()).versioned
        except (Silent, LeaseLost) as error:
            self._log("register-silent", reason=str(error))
            return on.RegisterSilent(self._clock(), command.ticket)
        if versioned is None or versioned.record.run != self._run:
            return None
        answer = on.SwapRefused if swapped is None else on.Swapped
        return answer(self._clock(), command.ticket, versioned)


def row_to_commit(command: do.Swap, *, diverged: bool) -> bytes | None:
    """The row of the round that a swap commits; None where it commits none."""
    if command.outcome is None:
        return None
    made = row_of(command.outcome, command.record, Scores(), diverged=diverged)
    # Sites are known by name in all that lasts; the machine counts them.
    return msgspec.json.encode(replace(made, sites=tuple(entry.name for entry in command.record.members)))

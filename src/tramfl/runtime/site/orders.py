"""What an operator, or a peer, may ask of a site: its status, to read the record, and to steer the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from tramfl.circulation.changes import AddMember, RemoveMember, RollBack, SetStatus
from tramfl.circulation.custody import Record, Status, Versioned
from tramfl.notation import BadInput
from tramfl.record import AuditEntry
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import LeaseTaken, Silent
from tramfl.runtime.settings import OPERATOR, SiteEntry, check_sites
from tramfl.runtime.site.agreement import check_run_name
from tramfl.runtime.site.availability import Availability
from tramfl.runtime.site.report import Reporter
from tramfl.runtime.site.revoking import Revocations
from tramfl.runtime.site.starting import RunStart
from tramfl.runtime.site.status import RunStatus
from tramfl.runtime.wire import Order, OrderResult, Prepared

MOST_AUDIT_BYTES = 192 << 10
"""Of an audit trail, in one answer. With what is around it, it is less than a caller takes (`links.SMALL_BYTES`)."""

_STATUS: dict[str, tuple[Status, str]] = {
    "pause": ("paused", "paused; the round in hand may still be committed"),
    "resume": ("running", "running"),
    "stop": ("stopped", "stopped; fetch the model with tramfl pull"),
}


_DRAINED = {
    "drain": "drained: the site finishes the round in hand, and takes part in no further one until tramfl undrain.",
    "undrain": "taking part again.",
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
        repair: Callable[[], Awaitable[Versioned | None]],
        revocations: Revocations,
        log: Log,
        availability: Availability,
        audit: Callable[[str], list[AuditEntry]],
    ) -> None:
        """`look` has the site read the record; `prepare` puts w_0 of a run on its disk, and is called in a thread.

        `repair` puts the last good record in the place of one that is not sound; `audit` is the trail of a run.
        """
        self._look, self._reporter, self._prepare, self._repair = look, reporter, prepare, repair
        self._starting, self._status, self._log = starting, status, log
        self._availability, self._revocations, self._audit = availability, revocations, audit

    async def carry_out(self, who: str, order: Order) -> OrderResult:
        """Do what is asked; the answer has one sentence about the result."""
        if order.what not in ("status", "look", "audit"):
            self._log("order", peer=who, what=order.what, named=order.run)
        try:
            return await self._do(who, order)
        except (BadInput, OSError) as error:
            return OrderResult(False, str(error))
        except LeaseTaken as error:
            return OrderResult(False, f"this process of the site is about to end: another one has joined at {error}.")
        except Silent as error:
            return OrderResult(
                False, f"the register does not answer ({error}); ask for the status before you try again."
            )

    async def _do(self, who: str, order: Order) -> OrderResult:  # noqa: PLR0911
        match order.what:
            case "look":
                await self._look()
                return OrderResult(True, "looked")
            case "status":
                return self._here()
            case "prepare":
                check_run_name(order.run)
                return OrderResult(True, "prepared", prepared=await asyncio.to_thread(self._prepare, order.run))
            case "drain" | "undrain":
                return self._drained(who, order.what)
            case "start":
                message = await self._starting.start(order.run, order.replacing, order.least)
                await self._look()
                return OrderResult(True, message)
            case "repair":
                return await self._repaired(who)
            case "rollback":
                return await self._roll_back(who, order.round)
            case "audit":
                return await self._audited(who, order.run, order.round)
            case "revoke":
                return OrderResult(True, await self._revocations.take(order.content))
            case "add-member" | "remove-member":
                return await self._change_members(who, order)
            case _:
                return await self._set(*_STATUS[order.what])

    def _here(self) -> OrderResult:
        reporter = self._reporter
        standing = reporter.standing
        if standing is not None:
            standing = replace(standing, revoked=self._revocations.content)
        return OrderResult(
            True,
            "here",
            reporter.report(),
            record=msgspec.msgpack.encode(standing) if standing is not None else b"",
            seen=reporter.seen,
            age_seconds=reporter.age_seconds,
        )

    def _drained(self, who: str, what: str) -> OrderResult:
        if who != OPERATOR:
            return OrderResult(False, "only the operator may drain a site.")
        self._availability.drain(what == "drain")
        return OrderResult(True, _DRAINED[what])

    async def _roll_back(self, who: str, round_: int) -> OrderResult:
        if who != OPERATOR:
            raise BadInput(f"only the operator rolls a run back, and this is {who}.")
        await self._look()
        standing = self._reporter.standing
        if standing is None or standing.versioned is None:
            raise BadInput("no run has begun; begin one with tramfl start.")
        before = standing.versioned.record
        if before.status == "running":
            raise BadInput(f"run {before.run} is running; pause it first, with tramfl pause.")
        if before.round != round_ and round_ not in [version.round for version in before.versions]:
            raise BadInput(f"the weights of round {round_} are not kept; {_can_go_back(before)}.")
        record = await self._status.change(RollBack(0, round_))
        if record is None or record.round != round_:
            return OrderResult(False, f"run {before.run} has changed meanwhile; ask for the status.")
        many = before.round - round_
        dropped = "1 round was dropped, and stays" if many == 1 else f"{many} rounds were dropped, and stay"
        return OrderResult(
            True,
            f"run {record.run} is {record.status} at round {round_} of epoch {record.epoch}, held by"
            f" {record.name_of(record.holder)}; {dropped} in the audit trail.",
        )

    async def _audited(self, who: str, run: str, passed_over: int) -> OrderResult:
        """The newest entries that fit into an answer, of those before the `passed_over` newest."""
        if who != OPERATOR:
            return OrderResult(False, "only the operator may read the audit trail.")
        entries = await asyncio.to_thread(self._audit, run)
        lines: list[bytes] = []
        room = MOST_AUDIT_BYTES
        for entry in reversed(entries[: max(0, len(entries) - max(0, passed_over))]):
            line = msgspec.json.encode(entry)
            if (room := room - len(line)) < 0:
                break
            lines.append(line)
        return OrderResult(True, f"{len(lines)} entries", audit=tuple(reversed(lines)))

    async def _repaired(self, who: str) -> OrderResult:
        if who != OPERATOR:
            return OrderResult(False, "only the operator may have the record repaired.")
        repaired = await self._repair()
        if repaired is None:
            return OrderResult(True, "the record in the register is sound: there is nothing to repair.")
        await self._look()
        run, round_, epoch = repaired.record.run, repaired.record.round, repaired.record.epoch
        return OrderResult(True, f"run {run} goes on from round {round_} of epoch {epoch}.")

    async def _change_members(self, who: str, order: Order) -> OrderResult:
        if who != OPERATOR:
            raise BadInput(f"only the operator changes the members, and this is {who}.")
        change: AddMember | RemoveMember = RemoveMember(0, order.site)
        if order.what == "add-member":
            check_sites([SiteEntry(name=order.site, address=order.address)], "tramfl members add")
            change = AddMember(0, order.site, order.address)
        record = await self._status.change(change)
        if record is None:
            return OrderResult(False, "no run has begun; the sites of the first run are those in federation.toml.")
        number = record.number_of(order.site)
        there = number is not None and record.is_member(number)
        names = ", ".join(record.members[n].name for n in record.present)
        if number is None and order.what == "remove-member":
            return OrderResult(False, f"run {record.run} never had a member {order.site!r}; it has {names}.")
        if there == (order.what == "add-member"):
            return OrderResult(True, f"the members of run {record.run} are {names}.")
        if there:
            return OrderResult(False, f"{order.site} is the only member, and one must stay; stop the run instead.")
        return OrderResult(False, f"run {record.run} was replaced meanwhile; its members are {names}.")

    async def _set(self, status: Status, sentence: str) -> OrderResult:
        record = await self._status.change(SetStatus(0, status))
        if record is None:
            return OrderResult(False, "no run has begun; begin one with tramfl start.")
        if record.status != status:
            return OrderResult(
                False, f"run {record.run} is {record.status} for good; begin another with tramfl start."
            )
        return OrderResult(True, f"run {record.run} is {sentence}.")


def _can_go_back(record: Record) -> str:
    rounds = [str(version.round) for version in record.versions]
    if not rounds:
        return f"run {record.run} has no earlier version to go back to"
    return f"run {record.run} can go back to round {', '.join(rounds[:-1])}{' or ' if rounds[1:] else ''}{rounds[-1]}"

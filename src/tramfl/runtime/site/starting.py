"""Starting a run. The site that is asked to has every site write w_0, and compares what they report.

Sites that would not train the same thing must not start together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from tramfl.circulation.custody import Entry, Record, Versioned, first_record
from tramfl.draws import first_holder
from tramfl.notation import BadInput, NodeId
from tramfl.runtime.registers import ABSENT, LeaseLost, Register
from tramfl.runtime.site.agreement import check_run_name, first_difference, misfit_of_members
from tramfl.runtime.site.member import Member
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import PROTOCOL, Order, Prepared

PREPARE_SECONDS = 30.0
"""A site that takes longer to write w_0 counts as absent."""


class RunStart:
    """Starts runs from this site."""

    def __init__(self, member: Member, prepare: Callable[[str], Prepared]) -> None:
        """`prepare` puts w_0 of a run on this site's disk; it is called in a thread."""
        self._member, self._prepare_here = member, prepare

    async def start(self, run: str, replacing: bool, least: int = 0) -> str:
        """Start a run with at least `least` sites; one sentence about it.

        Raises BadInput where that cannot be, Silent or LeaseLost.
        """
        register = self._member.register
        check_run_name(run)
        before = (await register.look()).versioned
        members = self._members(before)
        if before is not None and before.record.status != "stopped":
            raise BadInput(f"run {before.record.run} is {before.record.status}; stop it first with tramfl stop.")
        if before is not None and not replacing:
            raise BadInput(
                f"run {before.record.run} has ended, and sites keep only one ended run: fetch its model with tramfl"
                " pull, then begin the next with tramfl start --new."
            )
        # Rows outlive their run: old rows under the same name would be taken for the new run's.
        if (await register.sealed(run, 1, 1))[0] or (before is not None and before.record.run == run):
            raise BadInput(f"there was a run {run} before; give the new one another name.")
        prepared, absent = await self._prepare_all(run)
        if len(prepared) < least:
            missing = f"not there: {', '.join(absent)}" if absent else "the federation has no more members"
            raise BadInput(f"{len(prepared)} of the {least} sites that --min-sites asks for are ready; {missing}.")
        record = self._first_record(run, prepared, members)
        if not await put_first(register, record, before, prepared[self._member.me].settings):
            raise BadInput("another run was begun at the same moment; ask for the status.")
        missing = f"; not there yet: {', '.join(absent)}" if absent else ""
        return f"run {run} begins at {record.name_of(record.holder)} with {len(prepared)} sites{missing}."

    def _members(self, before: Versioned | None) -> tuple[Entry, ...]:
        """Who takes part: the members in the register; before the first run, the sites in federation.toml."""
        roster, mine = self._member.roster, self._member.site.file.site
        # The ended run of sites among which this one never was says nothing about the next.
        if before is not None and before.record.number_of(mine) is not None:
            roster.follow(before)
            if wrong := misfit_of_members(before.record, self._member.federation, mine):
                raise BadInput(wrong)
        return roster.entries

    async def _prepare_all(self, run: str) -> tuple[dict[NodeId, Prepared], list[str]]:
        """What each site has ready, and the names of those that do not answer."""
        names = self._member.names
        present = self._member.roster.present
        answers = await asyncio.gather(*(self._prepare(n, run) for n in present))
        prepared: dict[NodeId, Prepared] = {}
        absent: list[str] = []
        for number, answer in zip(present, answers, strict=True):
            if answer is None:
                absent.append(names[number])
            elif isinstance(answer, str):
                raise BadInput(f"site {names[number]} cannot take part: {answer}")
            else:
                prepared[number] = answer
        return prepared, absent

    async def _prepare(self, number: NodeId, run: str) -> Prepared | str | None:
        """What a site has ready; a sentence where it cannot take part; None where it does not answer."""
        if number == self._member.me:
            try:
                return await asyncio.to_thread(self._prepare_here, run)
            except OSError as error:  # a full disk, above all: say whose it is
                return error.strerror or str(error)
        try:
            answer = await self._member.peers.order(number, Order("prepare", run), PREPARE_SECONDS)
        except Unreachable:
            return None
        except Refusal as error:
            return str(error)
        return answer.prepared or answer.message

    def _first_record(self, run: str, prepared: dict[NodeId, Prepared], members: tuple[Entry, ...]) -> Record:
        me, names = self._member.me, self._member.names
        mine = prepared[me]
        for number, other in prepared.items():
            if differs := first_difference(mine.settings, other.settings, f"at {names[number]}"):
                raise BadInput(f"{differs}; give {names[number]} and {names[me]} one federation.toml.")
            for what, ours, theirs in (
                ("the labels of its data", mine.labels, other.labels),
                ("the frozen weights of its model", mine.base, other.base),
                ("the cost of its model", mine.cost, other.cost),
            ):
                if ours != theirs:
                    raise BadInput(f"site {names[number]} differs from {names[me]} in {what}; all sites must agree.")
        # Another version of PyTorch may draw other first weights: such a site takes part once it received a model.
        copies = tuple(n for n, p in sorted(prepared.items()) if p.digest == mine.digest)
        present = self._member.roster.present
        drawn = present[first_holder(self._member.scenario.seed, len(present))]
        holder = drawn if drawn in copies else me
        record = first_record(run, holder, mine.digest, copies, len(mine.labels), members)
        file, now = self._member.federation.file, self._member.now()
        record = replace(record, protocol=PROTOCOL, keep_versions=file.kept_versions, keep_every=file.kept_every)
        return replace(record, weights=replace(record.weights, since=now), safe=replace(record.safe, since=now))


async def put_first(register: Register, record: Record, before: Versioned | None, agreement: bytes) -> bool:
    """Put a first record in the place of an ended run's, or of none; False if another run has begun meanwhile.

    `agreement` is kept beside it, as what every site that joins must have too.
    """
    while True:
        try:
            if await register.swap(before.revision if before is not None else ABSENT, record, agreement) is not None:
                return True
        except LeaseLost:
            await register.join()
            continue
        now = (await register.look()).versioned
        if now is None or before is None or now.record.run != before.record.run:
            return False
        # The round that was under way when the old run was stopped has been committed meanwhile.
        before = now

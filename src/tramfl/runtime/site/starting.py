"""Starting a run. The site that is asked to has every site write w_0, and compares what they report.

Sites that would not train the same thing must not start together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from tramfl.circulation.custody import Record, Versioned, first_record
from tramfl.draws import first_holder
from tramfl.notation import BadInput, NodeId
from tramfl.runtime.registers import ABSENT, LeaseLost, Register
from tramfl.runtime.site.agreement import check_run_name
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

    async def start(self, run: str, replacing: bool) -> str:
        """Start a run; one sentence about it. Raises BadInput where that cannot be, Silent or LeaseLost."""
        register, names = self._member.register, self._member.names
        check_run_name(run)
        before = (await register.look()).versioned
        if before is not None and before.record.status != "stopped":
            raise BadInput(f"run {before.record.run} is {before.record.status}; stop it first with tramfl stop.")
        if before is not None and not replacing:
            raise BadInput(
                f"run {before.record.run} has ended, and sites keep only one ended run: fetch its model with tramfl"
                " pull, then begin the next with tramfl start --new."
            )
        # Rows outlive their run: old rows under the same name would be taken for the new run's.
        if await register.rows(run, 1, 1) or (before is not None and before.record.run == run):
            raise BadInput(f"there was a run {run} before; give the new one another name.")
        prepared, absent = await self._prepare_all(run)
        record = self._first_record(run, prepared)
        if not await put_first(register, record, before):
            raise BadInput("another run was begun at the same moment; ask for the status.")
        missing = f"; not there yet: {', '.join(absent)}" if absent else ""
        return f"run {run} begins at {names[record.holder or 0]} with {len(prepared)} sites{missing}."

    async def _prepare_all(self, run: str) -> tuple[dict[NodeId, Prepared], list[str]]:
        """What each site has ready, and the names of those that do not answer."""
        names = self._member.names
        answers = await asyncio.gather(*(self._prepare(n, run) for n in range(len(names))))
        prepared: dict[NodeId, Prepared] = {}
        absent: list[str] = []
        for number, answer in enumerate(answers):
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
            return await asyncio.to_thread(self._prepare_here, run)
        try:
            answer = await self._member.peers.order(number, Order("prepare", run), PREPARE_SECONDS)
        except Unreachable:
            return None
        except Refusal as error:
            return str(error)
        return answer.prepared or answer.message

    def _first_record(self, run: str, prepared: dict[NodeId, Prepared]) -> Record:
        me, names = self._member.me, self._member.names
        mine = prepared[me]
        for number, other in prepared.items():
            for what, ours, theirs in (
                ("the [run] table or the order of the sites in its federation.toml", mine.settings, other.settings),
                ("the labels of its data", mine.labels, other.labels),
                ("the frozen weights of its model", mine.base, other.base),
                ("the cost of its model", mine.cost, other.cost),
            ):
                if ours != theirs:
                    raise BadInput(f"site {names[number]} differs from {names[me]} in {what}; all sites must agree.")
        # Another version of PyTorch may draw other first weights: such a site takes part once it received a model.
        copies = tuple(n for n, p in sorted(prepared.items()) if p.digest == mine.digest)
        drawn = first_holder(self._member.scenario.seed, len(names))
        record = first_record(run, drawn if drawn in copies else me, mine.digest, copies, len(mine.labels))
        record, now = replace(record, protocol=PROTOCOL), self._member.now()
        return replace(record, weights=replace(record.weights, since=now), safe=replace(record.safe, since=now))


async def put_first(register: Register, record: Record, before: Versioned | None) -> bool:
    """Put a first record in the place of an ended run's, or of none; False if another run has begun meanwhile."""
    while True:
        try:
            if await register.swap(before.revision if before is not None else ABSENT, record) is not None:
                return True
        except LeaseLost:
            await register.join()
            continue
        now = (await register.look()).versioned
        if now is None or before is None or now.record.run != before.record.run:
            return False
        # The round that was under way when the old run was stopped has been committed meanwhile.
        before = now

"""What an operator may ask of a site: how it is, and to begin, pause, resume or stop the run.

A run is begun by whichever site is asked. It lets every site write w_0 and compares what they say: sites that would
not train the same thing must not begin.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from tramfl.circulation.custody import Record, Status, Versioned, first_record
from tramfl.config import as_toml
from tramfl.draws import first_holder
from tramfl.notation import BadInput, NodeId
from tramfl.runtime.registers.contract import ABSENT, LeaseLost, Silent
from tramfl.runtime.settings import Federation
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import Answer, Order, Prepared

if TYPE_CHECKING:
    from tramfl.runtime.site.node import Node

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A run's name is also the name of a folder at every site."""
PREPARE_SECONDS = 30.0
_STATUS: dict[str, tuple[Status, str]] = {
    "pause": ("paused", "paused; the round in hand may still be committed"),
    "resume": ("running", "running"),
    "stop": ("stopped", "stopped; fetch the model with tramfl pull"),
}


class Orders:
    """Carries out what a site is asked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.settings_digest = digest_of_settings(node.federation)

    async def carry_out(self, who: str, order: Order) -> Answer:
        """The answer to an order; one sentence says what came of it."""
        if order.what not in ("status", "look"):
            self._node.log("order", who=who, what=order.what, named=order.run)
        try:
            return await self._do(order)
        except (BadInput, OSError) as error:
            return Answer(False, str(error))
        except Silent as error:
            return Answer(False, f"the register does not answer ({error}); ask for the status before you try again.")

    async def _do(self, order: Order) -> Answer:
        node = self._node
        match order.what:
            case "look":
                await node.look()
                return Answer(True, "looked")
            case "status":
                record = msgspec.msgpack.encode(node.standing) if node.standing is not None else b""
                return Answer(True, "here", node.report(), record=record)
            case "prepare":
                check_run_name(order.run)
                return Answer(True, "prepared", prepared=await asyncio.to_thread(node.prepare, order.run))
            case "start":
                return Answer(True, await self._start(order))
            case _:
                return await self._set(*_STATUS[order.what])

    async def _set(self, status: Status, told: str) -> Answer:
        record = await self._node.set_status(status)
        if record is None:
            return Answer(False, "no run has begun; begin one with tramfl start.")
        if record.status != status:
            return Answer(False, f"run {record.run} is {record.status} for good; begin another with tramfl start.")
        return Answer(True, f"run {record.run} is {told}.")

    async def _start(self, order: Order) -> str:
        node = self._node
        check_run_name(order.run)
        before = (await node.register.look()).versioned
        if before is not None and before.record.status != "stopped":
            raise BadInput(f"run {before.record.run} is {before.record.status}; stop it first with tramfl stop.")
        if before is not None and not order.replacing:
            raise BadInput(
                f"run {before.record.run} has ended, and sites keep only one ended run: fetch its model with tramfl"
                " pull, then begin the next with tramfl start --new."
            )
        # Rows outlive their run: those of another under the same name would be taken for the new one's.
        if await node.register.rows(order.run, 1, 1) or (before is not None and before.record.run == order.run):
            raise BadInput(f"there was a run {order.run} before; give the new one another name.")
        prepared, absent = await self._prepare_all(order.run)
        record = self._first(order.run, prepared)
        if not await self._put(record, before):
            raise BadInput("another run was begun at the same moment; ask for the status.")
        await node.look()
        missing = f"; not there yet: {', '.join(absent)}" if absent else ""
        return f"run {order.run} begins at {node.names[record.holder or 0]} with {len(prepared)} sites{missing}."

    async def _put(self, record: Record, before: Versioned | None) -> bool:
        """Put a first record in the place of an ended run's, or of none; False if another run is there by now."""
        register = self._node.register
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
            # The round that was in hand when that run was stopped has come to its end meanwhile.
            before = now

    async def _prepare_all(self, run: str) -> tuple[dict[NodeId, Prepared], list[str]]:
        node = self._node
        answers = await asyncio.gather(*(self._prepare(n, run) for n in range(len(node.names))))
        prepared: dict[NodeId, Prepared] = {}
        absent: list[str] = []
        for number, answer in enumerate(answers):
            if answer is None:
                absent.append(node.names[number])
            elif isinstance(answer, str):
                raise BadInput(f"site {node.names[number]} cannot take part: {answer}")
            else:
                prepared[number] = answer
        return prepared, absent

    async def _prepare(self, number: NodeId, run: str) -> Prepared | str | None:
        """What a site has ready; why not; or None where it does not answer."""
        node = self._node
        if number == node.me:
            return await asyncio.to_thread(node.prepare, run)
        try:
            answer = await node.peers.order(number, Order("prepare", run), PREPARE_SECONDS)
        except Unreachable:
            return None
        except Refusal as error:
            return str(error)
        return answer.prepared or answer.message

    def _first(self, run: str, prepared: dict[NodeId, Prepared]) -> Record:
        node = self._node
        mine = prepared[node.me]
        for number, other in prepared.items():
            for what, ours, theirs in (
                ("the [run] table or the order of the sites in its federation.toml", mine.settings, other.settings),
                ("the labels of its data", mine.labels, other.labels),
                ("the cost of its model", mine.cost, other.cost),
            ):
                if ours != theirs:
                    raise BadInput(
                        f"site {node.names[number]} differs from {node.names[node.me]} in {what};"
                        " all sites must agree."
                    )
        # Another version of PyTorch may draw other first weights: such a site takes part, from its first model on.
        copies = tuple(n for n, p in sorted(prepared.items()) if p.digest == mine.digest)
        drawn = first_holder(node.scenario.seed, len(node.names))
        holder = drawn if drawn in copies else node.me
        record = first_record(run, holder, mine.digest, copies, len(mine.labels))
        now = node.now()
        return replace(record, weights=replace(record.weights, since=now), safe=replace(record.safe, since=now))


def digest_of_settings(federation: Federation) -> str:
    """SHA-256 of what must be the same at every site: what a run is to be, and which number means which site."""
    told = "\n".join((*federation.names, as_toml(federation.file.run)))
    return hashlib.sha256(told.encode()).hexdigest()


def misfit(record: Record, federation: Federation, labels: int) -> str | None:
    """What keeps a site with so many labels from a run, in one sentence."""
    last = max((record.holder or 0, *record.weights.copies, *record.safe.copies))
    if last >= len(federation.names):
        return (
            f"run {record.run} has a site number {last}, and {federation.path} lists only {len(federation.names)};"
            " give this site the federation's newest file."
        )
    if len(record.ledger.used) != labels:
        return (
            f"run {record.run} has {len(record.ledger.used)} labels, and this site's data has {labels};"
            " every site needs the same labels, so change the data, or stop the run."
        )
    return None


def check_run_name(run: str) -> None:
    """BadInput unless `run` can name a run."""
    if not RUN_NAME.fullmatch(run):
        raise BadInput(f"{run!r} is no name for a run; use letters, digits, dots, hyphens and underscores.")

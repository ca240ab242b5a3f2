"""What a site does when its peers or an operator call (`transport.Host`)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path

from tramfl.circulation.passage import Crossing
from tramfl.circulation.phases import Assignment
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.runtime.loads import Meters
from tramfl.runtime.registers import Silent
from tramfl.runtime.site.driver import ENDED
from tramfl.runtime.site.following import RegisterFollower
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.model import LocalModel
from tramfl.runtime.site.orders import Orders
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.site.services import Services
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.weights import Manifest, WeightStore, readout_at
from tramfl.runtime.wire import (
    Accepted,
    AskLoad,
    AskRows,
    Consignment,
    Load,
    Order,
    OrderResult,
    Refused,
    Rows,
)

MOST_NOTE_BYTES = 64 << 10
"""No site notes more about a round."""
CLOCKS_DIFFER_SECONDS = 3600.0
"""By how much the clocks of two sites may differ."""


class Hosting:
    """Answers calls out of the site's parts."""

    def __init__(
        self,
        member: Member,
        model: LocalModel,
        meters: Meters,
        services: Services,
        participation: Participation,
        following: RegisterFollower,
        orders: Orders,
    ) -> None:
        self._member, self._model, self._meters, self._services = member, model, meters, services
        self._participation, self._following, self._orders = participation, following, orders
        self.ending = False
        """Set when the site ends: it takes part in no further round."""

    @property
    def manifest(self) -> Manifest | None:
        """What arriving weights must look like."""
        return self._model.manifest

    @property
    def store(self) -> WeightStore | None:
        """Where arriving weights go; None before a run has begun."""
        driver = self._participation.driver
        return driver.store if driver is not None else None

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        """What this site can spare for a round of a peer's."""
        if self.ending:
            raise Refusal(ENDED)
        if self._participation.driver_of(ask.run) is None:
            await self._following.look()
        if (reason := self._services.why_not()) is not None:
            raise Refusal(reason)
        flops = self._services.own_load()
        outlook, clock = self._services.own_outlook(), self._member.now()
        return Load(flops, self._services.bandwidth_from(peer), self._model.held, outlook, clock)

    def receiving(self) -> AbstractContextManager[None]:
        """While a model or a probe comes in: the traffic is the federation's own."""
        return self._meters.moving()

    async def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Why a model is rejected before it is sent; None where it may come: the record's holder sends it."""
        if self.ending:
            return ENDED
        if self._misplaced(peer, consignment) is not None:
            # The sender acts on a record that this site may not have seen yet.
            await self._following.look()
        if (reason := self._misplaced(peer, consignment)) is not None:
            return reason
        assignment = consignment.offer.assignment
        if assignment is None:
            return None
        return self._services.why_not() or self._objection(assignment, consignment.sent_at)

    def _misplaced(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Why no correct site sends this model while the record is as this site sees it; None where one may."""
        record, offer, name = self._following.record, consignment.offer, self._member.names[peer]
        if record is None or record.run != consignment.run or self._participation.driver_of(record.run) is None:
            return _not_in(consignment.run)
        if record.holder != peer or record.epoch != offer.epoch:
            return f"{name} does not hold the model in epoch {offer.epoch}"
        newest = (offer.round, offer.digest) == (record.round, record.weights.digest)
        if newest or (offer.assignment is None and record.safe.round <= offer.round < record.round):
            return None
        return f"the record is not at round {offer.round} with these weights"

    def _objection(self, assignment: Assignment, sent_at: float | None) -> str | None:
        """Why this site cannot train what was decided; None where it can."""
        held, decision, record = self._model.held, assignment.decision, self._following.record
        now = self._member.now()
        waited = now - (record.weights.since if record is not None else 0.0)
        spent = assignment.lost_seconds + assignment.overhead_seconds + max(0.0, now - (sent_at or now))
        if spent > max(0.0, waited) + CLOCKS_DIFFER_SECONDS:
            return f"the assignment has spent {spent} s, and the last round ended {waited:.0f} s ago"
        if decision.node != self._member.me:
            return "the assignment is for another site"
        if len(decision.samples) != len(held):
            return f"the assignment has {len(decision.samples)} labels, and this site {len(held)}"
        if any(wanted > there for wanted, there in zip(decision.samples, held, strict=True)):
            return "the assignment wants samples that this site does not hold"
        return None

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float, since: float
    ) -> Accepted | Refused:
        """A model is here, whole and verified; its transfer was asked for at `since` on the monotonic clock."""
        driver = self._participation.driver_of(consignment.run)
        if driver is None:
            return Refused(_not_in(consignment.run))
        if wrong := await self._without_reference(peer, staged):
            return Refused(wrong)
        # 0 s where the weights were here already. A copy stops for hops and probes, so its time says nothing.
        if seconds > 0 and consignment.offer.assignment is not None:
            crossing = Crossing(8.0 * consignment.size, seconds, latency=None)
            self._meters.moved(self._member.names[peer], "from", crossing)
        if (reason := await self._services.objection_to_arrival(staged, consignment.offer.round)) is not None:
            self._member.log("not-accepted", digest=consignment.offer.digest, reason=reason)
            if (record := self._following.record) is not None:
                self._member.audit.refused(record, self._member.names[peer], consignment.offer.digest, reason)
            return Refused(reason, not_accepted=True)
        return await driver.arrived(peer, consignment, staged, seconds, since)

    async def _without_reference(self, peer: NodeId, staged: Path) -> str | None:
        """Why coded weights could not be decoded here; None where they can. A missing reference is fetched."""
        references = self._model.references
        try:
            named = await asyncio.to_thread(references.named_by, staged)
            if named is not None and not (path := references.path(named)).exists():
                await self._member.peers.fetch(peer, named, path, lambda _: None)
                await asyncio.to_thread(references.check, path)
                self._member.log("reference-fetched", digest=named, peer=self._member.names[peer])
        except (BadInput, Refusal, Unreachable, OSError) as error:
            return f"the weights cannot be decoded: {error}"
        return None

    async def order(self, who: str, order: Order) -> OrderResult:
        """Carry out an order of the operator's or of a peer's."""
        return await self._orders.carry_out(who, order)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        """Rows of committed rounds, and what was noted of them, as they are signed."""
        register = self._member.register
        try:
            lines, notes = await register.sealed(ask.run, ask.first, ask.last)
        except Silent as error:
            raise Refusal(f"the register does not answer ({error})") from None
        return Rows(tuple(lines), {round_: note for round_, note in notes.items() if len(note) <= MOST_NOTE_BYTES})

    def model_path(self, digest: Digest) -> Path | None:
        """Weights that this site can give: those of its run, references, and the mean that the run tests."""
        if self.store is None:
            return None
        if (found := self.store.path(digest)) is not None:
            return found
        if (readout := readout_at(self.store)) is not None and readout.digest == digest:
            return self.store.readout
        return self._model.references.path(digest)


def _not_in(run: str) -> str:
    return f"this site takes no part in a run {run!r}"

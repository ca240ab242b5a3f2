"""What a site does when its peers or an operator call (`transport.Host`)."""

from __future__ import annotations

import math
from pathlib import Path

from tramfl.notation import Decision, Digest, NodeId
from tramfl.runtime.loads import Meters
from tramfl.runtime.registers import Silent
from tramfl.runtime.site.driver import ENDED
from tramfl.runtime.site.following import RegisterFollower
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.model import LocalModel
from tramfl.runtime.site.orders import Orders
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.site.services import Services
from tramfl.runtime.training import with_scores
from tramfl.runtime.transport import Refusal
from tramfl.runtime.weights import Manifest, WeightStore
from tramfl.runtime.wire import Accepted, AskLoad, AskRows, Consignment, Load, Order, OrderResult, Refused, Rows


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
        flops = self._services.own_load()
        if math.isnan(flops):
            raise Refusal("the process that trains is not ready")
        return Load(flops, self._services.bandwidth(peer), self._model.held, self._services.own_outlook())

    def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Why a model is rejected before it is sent; None where it may come."""
        if self.ending:
            return ENDED
        if self._participation.driver_of(consignment.run) is None:
            return _not_in(consignment.run)
        assignment = consignment.offer.assignment
        return self._objection(assignment.decision) if assignment is not None else None

    def _objection(self, decision: Decision) -> str | None:
        """Why this site cannot train what was decided; None where it can."""
        held = self._model.held
        if decision.node != self._member.me:
            return "the assignment is for another site"
        if len(decision.samples) != len(held):
            return f"the assignment has {len(decision.samples)} labels, and this site {len(held)}"
        if any(wanted > there for wanted, there in zip(decision.samples, held, strict=True)):
            return "the assignment wants samples that this site does not hold"
        return None

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float
    ) -> Accepted | Refused:
        """A model is here, whole and verified."""
        driver = self._participation.driver_of(consignment.run)
        if driver is None:
            return Refused(_not_in(consignment.run))
        if seconds > 0:  # 0 where the weights were here already
            self._meters.moved(self._member.names[peer], 8 * consignment.size, seconds)
        return await driver.arrived(peer, consignment, staged, seconds)

    async def order(self, who: str, order: Order) -> OrderResult:
        """Carry out an order of the operator's or of a peer's."""
        return await self._orders.carry_out(who, order)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        """Rows of committed rounds, with the scores that are known by now."""
        register = self._member.register
        try:
            lines = await register.rows(ask.run, ask.first, ask.last)
            notes = await register.notes(ask.run, ask.first, ask.last)
        except Silent as error:
            raise Refusal(f"the register does not answer ({error})") from None
        return Rows(tuple(with_scores(line, notes) for line in lines))

    def model_path(self, digest: Digest) -> Path | None:
        """Weights that this site can give."""
        return self.store.path(digest) if self.store is not None else None


def _not_in(run: str) -> str:
    return f"this site takes no part in a run {run!r}"

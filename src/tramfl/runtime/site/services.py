"""What the site does for its driver (`surroundings.py`): loads, transfers, and what follows a committed round."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tramfl.circulation import commands as do
from tramfl.circulation.custody import Record
from tramfl.circulation.holding import seconds_elsewhere
from tramfl.circulation.passage import WATCH_SECONDS, Crossing, Passage
from tramfl.notation import BadInput, Digest, NodeId, Outlook
from tramfl.record import is_past_a_limit
from tramfl.runtime.loads import Meters, PeerClocks
from tramfl.runtime.site.agreement import removed
from tramfl.runtime.site.availability import Availability
from tramfl.runtime.site.lease import superseded
from tramfl.runtime.site.life import Tasks
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.probes import Probes, RightOfWay
from tramfl.runtime.site.status import FinishedRuns
from tramfl.runtime.training import Judgement, NewWeights, Scorer, WorkFailed, Workshop
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import CHUNK_BYTES, AskLoad, Consignment, Load, Order


class Services:
    """The site, as its driver uses it."""

    def __init__(
        self,
        member: Member,
        meters: Meters,
        workshop: Workshop,
        scorer: Scorer,
        finished: FinishedRuns,
        tasks: Tasks,
        availability: Availability,
        *,
        looks_ahead: bool = False,
    ) -> None:
        """`looks_ahead`: whether the run's policy uses what the sites know of their loads' past."""
        self._member, self._meters, self._workshop = member, meters, workshop
        self._scorer, self._finished, self._tasks = scorer, finished, tasks
        self._looks_ahead, self._availability = looks_ahead, availability
        self.judgement = Judgement(member.scenario.accept)
        self._way = RightOfWay()
        self.probes = Probes(member.roster, member.site.file.site, member.peers.probe, meters, self._way)
        self._clocks = PeerClocks()

    def own_load(self) -> float:
        """FLOPS that this site can spare; NaN while it could not train at all."""
        return self._meters.available_flops() if self.why_not() is None else math.nan

    def why_not(self) -> str | None:
        """Why this site takes no part in rounds at this moment; None where it does."""
        if not self._workshop.ready:
            return "the process that trains is not ready"
        return self._availability.why_not(datetime.datetime.now())

    def own_outlook(self) -> Outlook | None:
        """How this site's loads behave; None where the policy does not ask, or too little was observed."""
        return self._meters.outlook(self._member.names, self._member.me) if self._looks_ahead else None

    async def load_of(self, node: NodeId, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        """What another site can spare, and the bandwidth to it: as measured here, as that site reports, or probed."""
        began, asked_at = time.monotonic(), self._member.now()
        load = await self._member.peers.load(node, ask, seconds)
        site = self._member.names[node]
        self._clocks.read(site, asked_at, self._member.now(), load.clock)
        own = self._meters.bandwidth(site)
        # What that site measured of models from here is better than a probe, and own transfers are better than both.
        bandwidth = own if self._meters.has_carried(site) else load.bandwidth or own
        if bandwidth is None:
            bandwidth = await self.probes.bandwidth(node, seconds - (time.monotonic() - began))
        return load, bandwidth

    def bandwidth_from(self, node: NodeId) -> float | None:
        """bit/s of models from another site to this one; None where none has come yet."""
        return self._meters.bandwidth(self._member.names[node], "from")

    async def send(
        self,
        node: NodeId,
        consignment: Consignment,
        path: Path,
        progress: Callable[[int], None],
        slowed: Callable[[float], None],
    ) -> None:
        """Send a model, and learn from it how fast the link is. A copy lets a hop pass."""
        site, assignment = self._member.names[node], consignment.offer.assignment
        bits = 8.0 * consignment.size
        predicted = assignment.decision.transfer_seconds if assignment is not None else 0.0
        elsewhere = None if assignment is None else seconds_elsewhere(assignment, node, self._member.me, bits)
        passage = Passage(bits, predicted, 8.0 * CHUNK_BYTES, time.monotonic(), elsewhere)
        consignment = self._by_clock_of(site, consignment)

        def note(offset: int) -> None:
            passage.arrived(8.0 * offset, time.monotonic())
            progress(offset)

        async def let_others_pass() -> None:
            if not self._way.is_free:
                passage.paused()
                await self._way.free()

        crossing: Crossing | None = None
        watch = None if assignment is None else asyncio.create_task(_watch(passage, slowed))
        self._way.hops += assignment is not None
        with self._meters.moving(), contextlib.nullcontext() if watch is None else self._way.first():
            try:
                turn = let_others_pass if assignment is None else None
                await self._member.peers.send(node, consignment, path, note, turn)
                crossing = passage.completed(time.monotonic())
            except asyncio.CancelledError:
                crossing = passage.given_up(time.monotonic())
                raise
            except Unreachable:
                crossing = passage.broken()
                raise
            finally:
                if watch is not None:
                    watch.cancel()
                self._meters.moved(site, "to", crossing)

    def _by_clock_of(self, site: str, consignment: Consignment) -> Consignment:
        """The consignment with its moment by the receiver's clock, so that its way there is overhead of the round."""
        sent_at = consignment.sent_at if consignment.offer.assignment is not None else None
        return replace(consignment, sent_at=None if sent_at is None else self._clocks.at(site, sent_at))

    def trained(self, samples: int, seconds: float) -> None:
        """A training took `seconds`, beside everything else that ran here."""
        self._meters.trained(samples, seconds)
        with contextlib.suppress(OSError):  # a full disk is reported by what follows
            self._availability.trained(samples, datetime.datetime.now())

    def objection(self, made: NewWeights) -> str | None:
        """Why weights that were trained here may not be committed; None where they may."""
        return self.judgement.of_training(made)

    def made(self, record: Record, command: do.Train, digest: Digest, rejected: str | None) -> None:
        """Weights were trained here: note them in the audit trail."""
        self._member.audit.made(record, command, digest, rejected)

    async def objection_to_arrival(self, weights: Path, round_: int) -> str | None:
        """Why weights that arrived are not taken in; None where they are, or where nobody checks."""
        if not self.judgement.checks_arrivals:
            return None
        try:
            return self.judgement.of_arrival(await self._workshop.loss(weights), round_)
        except (WorkFailed, BadInput) as error:
            return f"they could not be checked: {error}"

    def nudge(self, to: NodeId) -> None:
        """Ask another site to read the record now; the register's own news would reach it a little later."""

        async def ask() -> None:
            with contextlib.suppress(Unreachable, Refusal):
                await self._member.peers.order(to, Order("look"), 1.0)

        self._tasks.start(ask())

    def closed(self, command: do.CloseRound, weights: Path | None) -> None:
        """A round of this site's is committed: test the weights, and end the run if its budget is used up."""
        outcome, record = command.outcome, command.record
        decision = outcome.assignment.decision
        self._member.log(
            "committed",
            epoch=record.epoch,
            round=record.round,
            node=self._member.name(outcome.node),
            samples=sum(decision.samples),
            predicted_seconds=round(decision.round_seconds, 4),
            actual_seconds=round(outcome.seconds - outcome.overhead_seconds, 4),
            overhead_seconds=round(outcome.overhead_seconds, 4),
            reason=decision.reason,
        )
        if weights is not None:
            self._scorer.committed(record, weights, trained=outcome.node is not None)
        self._meters.keep()
        if is_past_a_limit(self._member.scenario.budget, record.ledger):
            self._finished.soon(record.run, "the budget is used up")

    def broken(self, error: BaseException) -> None:
        """Something failed that no event covers: the site must end."""
        self._tasks.broken(error)

    def superseded(self, place: str) -> None:
        """Another process of this site, at `place`, has joined the federation since: this one must end."""
        self._tasks.broken(superseded(self._member, place))

    def removed(self) -> None:
        """This site is no member of the federation any more: it must end."""
        self._tasks.broken(BadInput(removed(self._member.site.file.site)))


async def _watch(passage: Passage, slowed: Callable[[float], None]) -> None:
    """Report a transfer that needs longer for what is left of it than was predicted for all of it."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        left = passage.slowed(time.monotonic())
        if left is not None:
            slowed(left)

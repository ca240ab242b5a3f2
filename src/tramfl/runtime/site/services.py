"""What the site does for its driver (`driver.Surroundings`): loads, transfers, and what follows a committed round."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

from tramfl.circulation import commands as do
from tramfl.notation import NodeId, Outlook
from tramfl.record import is_past_a_limit
from tramfl.runtime.loads import Meters
from tramfl.runtime.site.lease import superseded
from tramfl.runtime.site.life import Tasks
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.status import FinishedRuns
from tramfl.runtime.training import Scorer, Workshop
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import AskLoad, Consignment, Load, Order

PROBE_SECONDS = 1.0
"""A trial of a link takes no longer."""


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
        *,
        looks_ahead: bool = False,
    ) -> None:
        """`looks_ahead`: whether the run's policy uses what the sites know of their loads' past."""
        self._member, self._meters, self._workshop = member, meters, workshop
        self._scorer, self._finished, self._tasks = scorer, finished, tasks
        self._looks_ahead = looks_ahead

    def own_load(self) -> float:
        """FLOPS that this site can spare; NaN while it could not train at all."""
        return self._meters.available_flops() if self._workshop.ready else math.nan

    def own_outlook(self) -> Outlook | None:
        """How this site's loads behave; None where the policy does not ask, or too little was observed."""
        return self._meters.outlook(self._member.names, self._member.me) if self._looks_ahead else None

    async def load_of(self, node: NodeId, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        """What another site can spare, and the bandwidth to it: as measured here, as that site reports, or probed."""
        began = time.monotonic()
        load = await self._member.peers.load(node, ask, seconds)
        bandwidth = self.bandwidth(node) or load.bandwidth
        if bandwidth is None:
            left = max(0.05, min(PROBE_SECONDS, seconds - (time.monotonic() - began)))
            bandwidth = await self._member.peers.probe(node, left)
            self._meters.probed(self._member.names[node], bandwidth)
        return load, bandwidth

    def bandwidth(self, node: NodeId) -> float | None:
        """bit/s to another site; None where it is not known."""
        return self._meters.bandwidth(self._member.names[node])

    async def send(self, node: NodeId, consignment: Consignment, path: Path, progress: Callable[[int], None]) -> None:
        """Send a model; the time it takes is measured only where all of it travels, in one go."""
        began = time.monotonic()
        starts: list[int] = []

        def note(offset: int) -> None:
            if not starts:
                starts.append(offset)
            progress(offset)

        await self._member.peers.send(node, consignment, path, note)
        if starts == [0]:
            self._meters.moved(self._member.names[node], 8 * consignment.size, time.monotonic() - began)

    def trained(self, samples: int, seconds: float) -> None:
        """A training took `seconds`, beside everything else that ran here."""
        self._meters.trained(samples, seconds)

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
            actual_seconds=round(outcome.seconds, 4),
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

    def superseded(self) -> None:
        """Another process of this site has joined the federation since: this one must end."""
        self._tasks.broken(superseded(self._member))

"""Probes of the links to other sites, and who goes first on this site's line.

A link that no model has crossed yet is probed. The probe goes on when the round that asked for it is over, since
rounds may be shorter than probes. No site that reports its load is left out of a round because its link is not known
yet: its labels would be missing from the balance. Such a link is taken to be like those that are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from tramfl.notation import NodeId
from tramfl.runtime.loads import Meters
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Busy, Unreachable

PROBE_SECONDS = 3.0
"""A trial of a link takes no longer; on most links it takes two seconds or less."""
BUSY_SECONDS = 0.25
"""Before a site that was busy with something else is tried again."""
CALIBRATE_SECONDS = 1.0
"""Between two looks for a link to probe."""
RETRY_SECONDS = 15.0
"""Before a site that could not be probed is probed again."""


class RightOfWay:
    """Who goes first on this site's line.

    Background copies wait while the model itself travels, for the hop was predicted for a line of its own, and while
    a probe measures such a line.
    """

    def __init__(self) -> None:
        self._ahead = 0
        self._free = asyncio.Event()
        self._free.set()
        self.hops = 0
        """How many this site has begun to send."""

    @property
    def is_free(self) -> bool:
        """Whether nothing goes first."""
        return self._free.is_set()

    async def free(self) -> None:
        """Wait until nothing goes first."""
        await self._free.wait()

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Go first meanwhile; several may."""
        self._ahead += 1
        self._free.clear()
        try:
            yield
        finally:
            self._ahead -= 1
            if self._ahead == 0:
                self._free.set()


@dataclass(frozen=True)
class _Probe:
    """The newest probe of a link."""

    began: float
    task: asyncio.Task[None]
    is_doubtful: bool
    """The probe before it failed: perhaps the link lets no model through."""

    @property
    def failure(self) -> BaseException | None:
        """Why the probe failed; None while it lasts, and where it did not fail."""
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None


class Probes:
    """Tries the links from this site, one at a time and ahead of copies."""

    def __init__(
        self,
        roster: Roster,
        me: str,
        try_link: Callable[[NodeId, float], Awaitable[tuple[float, float]]],
        meters: Meters,
        way: RightOfWay,
    ) -> None:
        """`try_link` finds bit/s and latency within some seconds; it raises Busy, Refusal or Unreachable."""
        self._roster, self._me, self._try_link = roster, me, try_link
        self._meters, self._way = meters, way
        self._turn = asyncio.Lock()
        self._newest: dict[NodeId, _Probe] = {}

    async def bandwidth(self, node: NodeId, seconds: float) -> float:
        """bit/s to a site over a link that is not known yet: by a probe, or like the links that are known.

        A guess comes within half of `seconds`: before the round that asks is decided. Raises Refusal or Unreachable
        where the probe failed, and Unreachable where nothing is known of any link.
        """
        probe = self._probe(node)
        usual = None if probe.is_doubtful else self._meters.usual_bandwidth()
        left = seconds if usual is None else probe.began + seconds / 2 - time.monotonic()
        await asyncio.wait((probe.task,), timeout=max(left, 0.0))
        if (failure := probe.failure) is not None:
            raise failure
        site = self._roster.names[node]
        found = self._meters.bandwidth(site) or usual
        if found is None:
            raise Unreachable(f"{site} could not be probed in time")
        return found

    async def calibrate(self) -> None:
        """Probe links that have been quiet for long, while nothing else uses them."""
        try:
            while True:
                await asyncio.sleep(CALIBRATE_SECONDS)
                names = self._roster.names
                ready = [x for n, x in enumerate(names) if x != self._me and not self._has_just_failed(n)]
                site = self._meters.due(ready)
                if site is not None and not self._meters.is_moving:
                    await asyncio.wait((self._probe(names.index(site)).task,))
        finally:
            for probe in self._newest.values():
                probe.task.cancel()

    def _has_just_failed(self, node: NodeId) -> bool:
        probe = self._newest.get(node)
        return probe is not None and probe.failure is not None and time.monotonic() - probe.began < RETRY_SECONDS

    def _probe(self, node: NodeId) -> _Probe:
        """The probe of a link that is under way; a new one where there is none."""
        before = self._newest.get(node)
        if before is not None and not before.task.done():
            return before
        is_doubtful = before is not None and before.failure is not None
        task = asyncio.get_running_loop().create_task(self._try(node))
        task.add_done_callback(_look_away)
        self._newest[node] = _Probe(time.monotonic(), task, is_doubtful)
        return self._newest[node]

    async def _try(self, node: NodeId) -> None:
        """Probe a link until a probe counts, or a model has crossed the link. Raises Refusal or Unreachable."""
        site = self._roster.names[node]
        is_busy = False
        while True:
            if is_busy:
                await asyncio.sleep(BUSY_SECONDS)
            async with self._turn:
                await self._way.free()
                hops = self._way.hops
                with self._meters.moving(), self._way.first():
                    began = time.monotonic()
                    try:
                        bandwidth, latency = await self._try_link(node, PROBE_SECONDS)
                        is_busy = False
                    except Busy:
                        is_busy = True
            if not is_busy and self._way.hops == hops:  # otherwise it shared the line with a hop
                self._meters.probed(site, bandwidth, latency, began)
                return
            if self._meters.has_carried(site):
                return


def _look_away(probe: asyncio.Task[None]) -> None:
    """Mark the error of a probe as seen: asyncio would log it where no round asked for the probe."""
    if not probe.cancelled():
        probe.exception()

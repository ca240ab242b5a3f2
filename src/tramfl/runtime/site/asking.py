"""Step 1 of a round: what the other sites can spare.

A site that has trained asks the others while its new weights are stored and committed: the round after it does not
wait for their reports. What a report says is checked here; its sender may be mistaken, or worse.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from tramfl.notation import Habit, NodeId, Outlook
from tramfl.runtime.journal import Log
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import AskLoad, Load

MOST_HELD = 1 << 50
"""Of all labels together, a site has no more samples than the scheduler can count exactly."""

MOST_RATE = 1e30
"""FLOPS or bit/s in an outlook; the least is its inverse."""
MOST_SPREAD = 20.0
"""Of a logarithm in an outlook: loads that usually differ by a factor of 500 million."""
LEAST_SECONDS, MOST_SECONDS = 1e-3, 1e9
"""Between two observations of an outlook."""

Report = tuple[Load, float]
"""A site's load, and the bandwidth to it."""


class LoadQuestions:
    """Asks the other sites of one run."""

    def __init__(
        self,
        run: str,
        roster: Roster,
        labels: int,
        ask: Callable[[NodeId, AskLoad, float], Awaitable[Report]],
        log: Log,
    ) -> None:
        """`ask` asks a site, within some seconds; it raises Unreachable or Refusal."""
        self._run, self._roster, self._labels, self._ask, self._log = run, roster, labels, ask, log
        self._silent: set[NodeId] = set()
        self._ahead: dict[NodeId, asyncio.Future[Report]] = {}
        self._ahead_of = 0
        self._asked_at = -math.inf

    def ask_ahead(self, round_: int, nodes: Sequence[NodeId], seconds: float) -> None:
        """Ask sites for their loads in a round that is about to begin."""
        self.forget()
        self._ahead_of, self._asked_at = round_, time.monotonic()
        ask = AskLoad(self._run, round_)
        self._ahead = {node: asyncio.ensure_future(self._ask(node, ask, seconds)) for node in nodes}

    def forget(self) -> None:
        """Drop what was asked ahead."""
        for asked in self._ahead.values():
            asked.cancel()
            asked.add_done_callback(_look_away)
        self._ahead = {}

    async def of(self, node: NodeId, round_: int, seconds: float) -> Report | None:
        """What a site reports; None, and logged once, where it reports nothing that can be used."""
        try:
            load, bandwidth = await self._report(node, round_, seconds)
        except (Unreachable, Refusal) as error:
            if node not in self._silent:
                self._silent.add(node)
                self._log("peer-missing", peer=self._roster.names[node], reason=str(error))
            return None
        if wrong := wrong_with(load, bandwidth, self._labels, len(self._roster.names)):
            self._log("load-ignored", peer=self._roster.names[node], reason=wrong)
            return None
        if node in self._silent:
            self._silent.discard(node)
            self._log("peer-back", peer=self._roster.names[node])
        return load, bandwidth

    async def _report(self, node: NodeId, round_: int, seconds: float) -> Report:
        """The report that was asked for ahead; a new one where there is none, or it is old."""
        asked = self._ahead.pop(node, None)
        if asked is not None:
            if round_ == self._ahead_of and time.monotonic() - self._asked_at < seconds:
                return await asked
            asked.cancel()
            asked.add_done_callback(_look_away)
        return await self._ask(node, AskLoad(self._run, round_), seconds)


def _look_away(asked: asyncio.Future[Report]) -> None:
    """Mark the error of a dropped question as seen: asyncio would log it otherwise."""
    if not asked.cancelled():
        asked.exception()


def wrong_with(load: Load, bandwidth: float, labels: int, sites: int) -> str | None:
    """Why a report cannot be used; its sender may be mistaken, or worse."""
    if not (math.isfinite(load.flops) and load.flops >= 1):
        return f"{load.flops} FLOPS"
    if not (math.isfinite(bandwidth) and bandwidth >= 1):
        return f"{bandwidth} bit/s"
    if len(load.held) != labels or any(not 0 <= count <= MOST_HELD // labels for count in load.held):
        return f"it holds {load.held} of {labels} labels"
    return _wrong_outlook(load.outlook, sites) if load.outlook is not None else None


def _wrong_outlook(outlook: Outlook, sites: int) -> str | None:
    """Why an outlook cannot be used: a policy takes logarithms and powers of its numbers."""
    if len(outlook.links) != sites:
        return f"its outlook has {len(outlook.links)} links of {sites} sites"
    if outlook.step_seconds != 0 and not LEAST_SECONDS <= outlook.step_seconds <= MOST_SECONDS:
        return f"its outlook has steps of {outlook.step_seconds} s"
    for habit in (outlook.compute, *outlook.links):
        if habit is not None and not _sound(habit):
            return f"its outlook has {habit}"
    return None


def _sound(habit: Habit) -> bool:
    """Whether the numbers of a load's habit can be those of one; a NaN passes no comparison."""
    rates = all(1 / MOST_RATE <= rate <= MOST_RATE for rate in (habit.now, habit.mean, habit.most))
    return rates and 0 <= habit.spread <= MOST_SPREAD and 0 <= habit.persistence <= 1

"""When work ends, from the loads alone: a few lines that share nothing with the clocks that they check."""

from __future__ import annotations

import math
from collections.abc import Callable

from tramfl.simulation.loads import LoadSource, RoundLoads


class HandClock:
    """At the loads of a round; with a slot's seconds, through the slots that the work lasts."""

    def __init__(self, source: LoadSource, slot: float | None = None) -> None:
        self._source, self._slot = source, slot

    def trained(self, flops: float, node: int, round_: int, begin: float) -> float:
        """When a node that begins a training of `flops` at `begin` has ended it."""
        return self._end(flops, round_, begin, lambda loads: loads.flops[node])

    def sent(self, bits: float, one: int, other: int, round_: int, begin: float) -> float:
        """When bits that leave one node at `begin` are at another."""
        return self._end(bits, round_, begin, lambda loads: loads.bandwidth[one][other])

    def _end(self, work: float, round_: int, begin: float, rate: Callable[[RoundLoads], float]) -> float:
        if self._slot is None:
            return begin + work / rate(self._source.at(round_))
        now = begin
        while True:
            number = math.floor(now / self._slot + 1e-9) + 1
            speed, end = rate(self._source.at(number)), number * self._slot
            if speed * (end - now) >= work:
                return now + work / speed
            work, now = work - speed * (end - now), end

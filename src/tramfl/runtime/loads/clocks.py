"""How far the clocks of two sites differ: neither sees alone what passes while a model is on its way.

A site answers a question with its own time. Where the way there takes as long as the way back, that was the time in
the middle. The answer that came soonest says most: its error is half of its time there and back at the most.
"""

from __future__ import annotations

import math
from collections import deque

KEPT_READINGS = 16
"""Of each site; older ones know nothing of how clocks drift."""


class PeerClocks:
    """The other sites' clocks, as read from here."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[tuple[float, float]]] = {}
        """Of each site: seconds until it answered, and by how many its clock was ahead."""

    def read(self, site: str, asked_at: float, answered_at: float, clock: float | None) -> None:
        """A site that was asked at this moment gave this time; None and what is no time are ignored."""
        if clock is None or not math.isfinite(clock):
            return
        ahead = clock - (asked_at + answered_at) / 2
        self._readings.setdefault(site, deque(maxlen=KEPT_READINGS)).append((answered_at - asked_at, ahead))

    def at(self, site: str, moment: float) -> float | None:
        """A moment of this site's clock by another's; None where that has not been read."""
        readings = self._readings.get(site)
        return moment + min(readings)[1] if readings else None

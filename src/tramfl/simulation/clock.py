"""Virtual time: what is due next, in an order that depends on nothing but the run."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A queue of things to do, by time and then by the order in which they were asked for."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, seconds: float, action: Callable[..., object], *arguments: Any) -> None:
        """Do something `seconds` from now."""
        self._asked += 1
        heapq.heappush(self._queue, (self.now + seconds, self._asked, action, arguments))

    def step(self) -> bool:
        """Do what is due next; False when nothing is."""
        if not self._queue:
            return False
        self.now, _, action, arguments = heapq.heappop(self._queue)
        action(*arguments)
        return True

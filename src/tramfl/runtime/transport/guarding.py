"""How much of a site one peer can have: calls at once, calls per second, streams of each kind.

A peer past a limit is refused, and the others notice nothing. The refusal costs less than the call would.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import grpc

from tramfl.runtime.transport.links import Refusal

CALLS_AT_ONCE = 32
"""Of one peer, of all methods together."""
STREAMS_AT_ONCE = {"Carry": 4, "Rows": 2, "Model": 4, "Probe": 2}
"""Of one peer, of one method: each of these may last, and hold a file or some memory."""
CALLS_PER_SECOND = 300.0
BURST = 600.0
"""A peer that was quiet for a while may make this many calls at once before its rate counts."""


class Guard:
    """Counts the calls of each peer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._streams: Counter[tuple[str, str]] = Counter()
        self._spent: dict[str, tuple[float, float]] = {}
        """Of each peer: how much of its burst is used up, and when that was counted."""

    @contextlib.contextmanager
    def call(self, peer: str, method: str) -> Iterator[None]:
        """While a peer's call is answered. Raises Refusal where the peer has too many."""
        self._spend(peer)
        most = STREAMS_AT_ONCE.get(method, CALLS_AT_ONCE)
        if self._open[peer] >= CALLS_AT_ONCE or self._streams[peer, method] >= most:
            raise Refusal(f"{peer} has {self._open[peer]} calls open", grpc.StatusCode.RESOURCE_EXHAUSTED)
        self._open[peer] += 1
        self._streams[peer, method] += 1
        try:
            yield
        finally:
            self._open[peer] -= 1
            self._streams[peer, method] -= 1

    def _spend(self, peer: str) -> None:
        now = self._clock()
        spent, at = self._spent.get(peer, (0.0, now))
        spent = max(0.0, spent - (now - at) * CALLS_PER_SECOND)
        if spent + 1 > BURST:
            self._spent[peer] = spent, now
            raise Refusal(
                f"{peer} makes more than {CALLS_PER_SECOND:.0f} calls a second", grpc.StatusCode.RESOURCE_EXHAUSTED
            )
        self._spent[peer] = spent + 1, now

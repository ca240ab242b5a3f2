"""One transfer of a model, as its receiver reports what has arrived. Sites and simulation watch hops with it."""

from __future__ import annotations

import math
from typing import NamedTuple

WATCH_SECONDS = 0.25
"""How often a sender looks whether a hop is slower than predicted."""
LEAST_WINDOW = 2.0
"""Seconds over which the pace of a transfer is measured, at least; a pause that is shorter is no collapse."""
WINDOW = 0.1
"""The same, as a part of the transfer's predicted seconds."""
SHORT_WINDOW = 1.0
"""Where the round takes less than LEAST_WINDOW elsewhere, a sender that waited for so long would lose more than the
round takes there. Then the pace is also measured over what the round takes there, and over this much at least ..."""
SETTLED = 0.5
"""... but not over the first of a transfer, in which TCP finds out how fast it may send; ..."""
COLLAPSED = 2.5
"""... and it counts only where what is left takes this many times what was predicted for all of it."""


class Crossing(NamedTuple):
    """What a transfer shows about its link."""

    bits: float
    seconds: float
    latency: float | None
    """The part of `seconds` that did not depend on the bits; None where only the bits were timed."""


class Passage:
    """From the first question to the acknowledgement, or to the end of a try that came to nothing."""

    def __init__(
        self,
        bits: float,
        predicted_seconds: float,
        chunk_bits: float,
        began: float,
        elsewhere_seconds: float | None = None,
    ) -> None:
        """`chunk_bits`: what arrives at once, so that less cannot be seen.

        `elsewhere_seconds`: what the round is predicted to take at the next best node, where its sender watches that.
        """
        self._bits, self._chunk, self._began, self._predicted = bits, chunk_bits, began, predicted_seconds
        self._window = max(LEAST_WINDOW, WINDOW * predicted_seconds)
        elsewhere = math.inf if elsewhere_seconds is None else elsewhere_seconds
        self._short = max(SHORT_WINDOW, elsewhere) if elsewhere < LEAST_WINDOW <= predicted_seconds else None
        """None where a hop of a small model, or a longer way elsewhere, leaves time to wait for the longer window."""
        self._arrived: list[tuple[float, float]] = []
        """(second, bits by then) of the present try; the first is where it starts."""
        self._tries = 0
        self._paused = False

    def arrived(self, bits: float, at: float) -> None:
        """The receiver has this much; as much as before, or less, is the start of a new try."""
        if not self._arrived or bits <= self._arrived[-1][1]:
            self._arrived = []
            self._tries += 1
        self._arrived.append((at, bits))

    def paused(self) -> None:
        """The sender let another transfer pass: what was timed shows nothing of the link."""
        self._paused = True

    def seconds_left(self, at: float) -> float | None:
        """Until all has arrived, at the pace of the last seconds; None while it is too early to say."""
        return self._seconds_left(at, self._window)

    def _seconds_left(self, at: float, window: float) -> float | None:
        recent = self._recent(at, window)
        if recent is None:
            return None
        bits, seconds = recent
        # Of a chunk that is under way nothing is seen.
        return (self._bits - self._arrived[-1][1]) * seconds / max(bits, self._chunk)

    def slowed(self, at: float) -> float | None:
        """The seconds that are left, where that is more than was predicted for all of it."""
        left = self.seconds_left(at)
        if left is not None and left > self._predicted:
            return left
        if self._short is None or not self._arrived or at - self._short < self._arrived[0][0] + SETTLED:
            return None
        left = self._seconds_left(at, self._short)
        return left if left is not None and left > COLLAPSED * self._predicted else None

    def completed(self, at: float) -> Crossing | None:
        """What an acknowledged transfer shows; None where nothing had to travel."""
        if self._paused or len(self._arrived) < 2:
            return None
        (started, before), (ended, total) = self._arrived[0], self._arrived[-1]
        if self._tries == 1 and before == 0:
            latency = (started - self._began) + (at - ended)
            return Crossing(total, at - self._began, latency)
        return Crossing(total - before, ended - started, None)

    def given_up(self, at: float) -> Crossing | None:
        """What a transfer shows that the sender ended: the pace of its last seconds."""
        recent = None if self._paused else self._recent(at, self._short or self._window)
        return None if recent is None else Crossing(max(recent[0], self._chunk), recent[1], None)

    def broken(self) -> Crossing | None:
        """What a transfer shows whose connection broke: a silence before the break is no pace."""
        if self._paused or len(self._arrived) < 2:
            return None
        (started, before), (ended, total) = self._arrived[0], self._arrived[-1]
        return Crossing(total - before, ended - started, None)

    def _recent(self, at: float, window: float) -> tuple[float, float] | None:
        """The bits of the last seconds, and these seconds."""
        since = at - window
        if not self._arrived or since < self._arrived[0][0]:
            return None
        before = max(bits for second, bits in self._arrived if second <= since)
        return self._arrived[-1][1] - before, window

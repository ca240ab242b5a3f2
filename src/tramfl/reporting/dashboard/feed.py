"""One source, many watchers: what has changed since a watcher last heard.

The source is looked at only while a watcher waits, and never by two threads at once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable

import msgspec
from msgspec import Struct

from tramfl.record import Now
from tramfl.reporting.colours import looks
from tramfl.reporting.dashboard.source import Source
from tramfl.reporting.dashboard.wire import wire_row
from tramfl.reporting.measures import Measure

LOOK_SECONDS = 0.25
"""Between two looks at the source."""
MOST_ROWS = 1000
"""Rows of one answer."""


class News(Struct, frozen=True, kw_only=True):
    """What a watcher gets."""

    now: Now
    colour: str
    """Of the policy, as in reports and figures."""
    metric: str
    """What the targets are of, as people write it."""
    version: int
    """Of `now`; a watcher says which one it has."""
    after: int
    """How many rows come before these."""
    total: int
    """How many there are in all."""
    rows: list[msgspec.Raw]


class Feed:
    """Keeps what the source said, in the form that watchers get."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._looked_at = -LOOK_SECONDS
        self._now: Now | None = None
        self._version = 0
        self._rows: list[msgspec.Raw] = []
        self.closing = threading.Event()

    def changes(self, run: str, after: int, version: int, patience: float) -> bytes:
        """The answer to a watcher that has `after` rows of `run`, as soon as there is news, or when patience ends."""
        until = self._clock() + patience
        while True:
            with self._lock:
                now = self._look()
                if run != now.run or after > len(self._rows):
                    after = 0
                    news = True
                else:
                    news = after < len(self._rows) or version != self._version
                if news or self._clock() >= until or self.closing.is_set():
                    rows = self._rows[after : after + MOST_ROWS]
                    return self._encode(
                        News(
                            now=now,
                            colour=looks([now.policy])[now.policy].colour,
                            metric=Measure(now.metric).name,
                            version=self._version,
                            after=after,
                            total=len(self._rows),
                            rows=rows,
                        )
                    )
            self.closing.wait(LOOK_SECONDS)

    def _look(self) -> Now:
        if self._now is not None and self._clock() - self._looked_at < LOOK_SECONDS:
            return self._now
        now = self._source.now()
        if self._now is None or now.run != self._now.run:
            self._rows = []
        while fresh := self._source.rows(len(self._rows)):
            self._rows += [msgspec.Raw(self._encode(wire_row(row, now.metric))) for row in fresh]
        self._now, self._version = now, zlib.crc32(self._encode(now))
        self._looked_at = self._clock()
        return now

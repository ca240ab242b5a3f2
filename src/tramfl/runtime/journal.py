"""A site's log: one JSON line per event, with run, epoch and round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from tramfl.runtime.log_events import EVENTS, wrong_with

Log = Callable[..., None]
"""log("peer-missing", peer="b", reason="..."): one of `log_events.EVENTS`, with its fields."""


class Journal:
    """Writes events as lines; safe to call from any thread."""

    def __init__(self, site: str, out: BinaryIO, now: Callable[[], float] = time.time) -> None:
        self._site, self._out, self._now = site, out, now
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._lock = threading.Lock()
        self._where: dict[str, Any] = {"run": None, "epoch": None, "round": None}
        self.counts: dict[str, int] = dict.fromkeys(EVENTS, 0)
        """How often each event happened."""

    def at(self, run: str | None, epoch: int | None, round_: int | None) -> None:
        """Where the run is, as of now."""
        self._where = {"run": run, "epoch": epoch, "round": round_}

    def __call__(self, event: str, **fields: Any) -> None:
        """An event happened. Raises ValueError unless `log_events` lists it with these fields."""
        if wrong := wrong_with(event, fields):
            raise ValueError(wrong)
        seconds = self._now()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
        line = self._encode({"at": stamp, "site": self._site, "event": event, **self._where, **fields}) + b"\n"
        with self._lock:
            self.counts[event] += 1
            try:
                self._out.write(line)
                self._out.flush()
            except (OSError, ValueError):
                pass  # nobody reads, or the disk of the log is full: the run goes on

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
MOST_TEXT, MOST_TRACE = 500, 8000
"""Characters of a field; what a peer says must not fill the disk."""
MOST_ITEMS = 100
BURST, BURST_SECONDS = 20, 10.0
"""Of one event about one peer, this many lines are written in this time; the others are counted."""


class Journal:
    """Writes events as lines; safe to call from any thread."""

    def __init__(self, site: str, out: BinaryIO, now: Callable[[], float] = time.time) -> None:
        self._site, self._out, self._now = site, out, now
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._lock = threading.Lock()
        self._where: dict[str, Any] = {"run": None, "epoch": None, "round": None}
        self.counts: dict[str, int] = dict.fromkeys(EVENTS, 0)
        """How often each event happened."""
        self._written: dict[tuple[str, ...], float] = {}
        """When a line was last written, of those that may be repeated."""

        self._bursts: dict[tuple[str, str], tuple[float, int]] = {}
        """Of an event and a peer: when the present burst began, and how many lines it has."""

    REPEATED = frozenset({"refused", "register-silent", "not-sent", "load-ignored", "lease-lost", "not-scored"})
    """Events that one cause may bring many times a second ..."""
    SECONDS = 60.0
    """... so a line that is the same as one before is written once in this time; the counters count all."""

    def at(self, run: str | None, epoch: int | None, round_: int | None) -> None:
        """Where the run is, as of now."""
        self._where = {"run": run, "epoch": epoch, "round": round_}

    def __call__(self, event: str, **fields: Any) -> None:
        """An event happened. Raises ValueError unless `log_events` lists it with these fields."""
        if wrong := wrong_with(event, fields):
            raise ValueError(wrong)
        seconds = self._now()
        fields = {name: _short(name, value) for name, value in fields.items()}
        same = (event, *(str(value) for name, value in fields.items() if name != "address"))
        with self._lock:
            self.counts[event] += 1
            if event in self.REPEATED and self._is_repeated(same, seconds):
                return
            more = self._left_out(event, fields, seconds)
        if more is None:
            return
        if more:
            fields["reason"] = f"{fields['reason']} ({more} more such lines were left out)"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
        line = self._encode({"at": stamp, "site": self._site, "event": event, **self._where, **fields}) + b"\n"
        with self._lock:
            try:
                self._out.write(line)
                self._out.flush()
            except (OSError, ValueError):
                pass  # nobody reads, or the disk of the log is full: the run goes on

    def _is_repeated(self, line: tuple[str, ...], now: float) -> bool:
        """Whether the same line was written a short while ago."""
        if now - self._written.get(line, -self.SECONDS) < self.SECONDS:
            return True
        if len(self._written) >= 1000:  # strangers choose what is refused
            self._written.clear()
        self._written[line] = now
        return False

    def _left_out(self, event: str, fields: dict[str, Any], seconds: float) -> int | None:
        """How many lines were left out before this one; None where it is left out, too."""
        if "peer" not in fields or "reason" not in EVENTS[event].fields:
            return 0
        key = event, str(fields["peer"])
        began, lines = self._bursts.get(key, (seconds, 0))
        more = 0
        if not 0 <= seconds - began < BURST_SECONDS:
            began, lines, more = seconds, 0, max(0, lines - BURST)
        self._bursts[key] = began, lines + 1
        return more if lines < BURST else None


def _short(name: str, value: Any) -> Any:
    """A field as it is written: a long text or list is cut."""
    most = MOST_TRACE if name == "trace" else MOST_TEXT
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]} ... ({len(value) - most} more characters)"
    if isinstance(value, tuple | list) and len(value) > MOST_ITEMS:
        return [*value[:MOST_ITEMS], f"{len(value) - MOST_ITEMS} more"]
    return value

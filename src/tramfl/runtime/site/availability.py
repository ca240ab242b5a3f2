"""When this site takes part: its hours, its samples a day, and whether an operator drained it.

A site that does not take part reports no load and is not waited for. It keeps its lease and its weights. Where it
holds the model, the next round is at another site.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from tramfl.record import write_atomically
from tramfl.runtime.settings import Hours


class _Kept(Struct, frozen=True, kw_only=True):
    """`availability.json`."""

    version: Literal[1] = 1
    drained: bool = False
    day: str = ""
    samples: int = 0
    """Trained on that day."""


class Availability:
    """What one site is willing to do, in a file that outlives its process."""

    def __init__(self, path: Path, hours: Hours | None, samples_per_day: int | None) -> None:
        self._path, self._hours, self._most = path, hours, samples_per_day
        try:
            self._kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._kept = _Kept()

    @property
    def drained(self) -> bool:
        """Whether an operator wants no more rounds at this site."""
        return self._kept.drained

    def drain(self, drained: bool) -> None:
        """Take part in no further round, or take part again. Raises OSError where that cannot be kept."""
        self._keep(msgspec.structs.replace(self._kept, drained=drained))

    def trained(self, samples: int, now: datetime.datetime) -> None:
        """This site has trained samples."""
        if self._most is not None:
            self._keep(msgspec.structs.replace(self._kept, day=_day(now), samples=self._today(now) + samples))

    def why_not(self, now: datetime.datetime) -> str | None:
        """Why this site takes no part at this moment; None where it does."""
        if self._kept.drained:
            return "it is drained; tramfl undrain lets it take part again"
        if self._hours is not None and not self._hours.has(now.time()):
            begin, end = self._hours.begin.strftime("%H:%M"), self._hours.end.strftime("%H:%M")
            return f"it is outside its hours, {begin} to {end}"
        if self._most is not None and self._today(now) >= self._most:
            return f"it has trained {self._today(now):,} samples today, and its limit is {self._most:,}"
        return None

    def _today(self, now: datetime.datetime) -> int:
        return self._kept.samples if self._kept.day == _day(now) else 0

    def _keep(self, kept: _Kept) -> None:
        self._kept = kept
        write_atomically(self._path, msgspec.json.encode(kept))


def _day(now: datetime.datetime) -> str:
    return now.date().isoformat()

"""What a site observed of its loads, in a file that outlives its process."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from tramfl.record import write_atomically
from tramfl.runtime.loads.compute import ComputeMemory, ComputeMeter
from tramfl.runtime.loads.links import LinkMeter, LinksMemory


class Memory(Struct, frozen=True, kw_only=True):
    """`history.json`."""

    version: Literal[1] = 1
    compute: ComputeMemory | None = None
    links: LinksMemory = field(default_factory=LinksMemory)


class History:
    """The observations on disk, so that a restarted site predicts from its own past. Its faults are only logged."""

    SECONDS = 30.0
    """Between two savings of `keep`."""

    def __init__(self, path: Path, log: Callable[..., None] | None = None) -> None:
        self._path, self._log = path, log
        self._saved_at = -math.inf

    def restore(self, compute: ComputeMeter, links: LinkMeter) -> None:
        """Let the meters go on from the file, if there is one; a damaged file is set aside."""
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=Memory)
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn("history-unreadable", error.strerror or str(error))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._set_aside(str(error))
            return
        if memory.compute is not None:
            compute.recall(memory.compute)
        links.recall(memory.links)

    def save(self, compute: ComputeMeter, links: LinkMeter) -> None:
        """Write what the meters know."""
        memory = Memory(compute=compute.memory(), links=links.memory())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, msgspec.json.encode(memory))
        except OSError as error:
            self._warn("history-not-kept", error.strerror or str(error))

    def keep(self, compute: ComputeMeter, links: LinkMeter, at: float) -> None:
        """Save, unless that was only a moment ago: a crash then loses a few observations."""
        if at - self._saved_at >= self.SECONDS:
            self._saved_at = at
            self.save(compute, links)

    def _set_aside(self, reason: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            os.replace(self._path, aside)
        except OSError as error:
            reason = f"{reason}; it cannot be set aside: {error.strerror}"
        self._warn("damaged", reason)

    def _warn(self, event: str, reason: str) -> None:
        if self._log is not None:
            self._log(event, file=self._path.name, reason=reason)
        else:
            warnings.warn(f"{self._path}: {event}: {reason}", HistoryWarning, stacklevel=3)


class HistoryWarning(UserWarning):
    """A site starts without its past observations."""

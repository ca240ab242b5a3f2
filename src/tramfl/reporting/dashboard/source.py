"""What the live view shows: anything that gives snapshots of a run (`Now`) and the rows of its committed rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tramfl.record import Now, Row


class Source(Protocol):
    """Something to watch; called by one thread at a time."""

    def now(self) -> Now:
        """The run at this moment; called a few times a second while a page is open."""
        ...

    def rows(self, after: int) -> Sequence[Row]:
        """Rows of the run that `now` last named, without the first `after`; a source may give only some at a time."""
        ...

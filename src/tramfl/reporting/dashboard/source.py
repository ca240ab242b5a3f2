"""What the live view shows, as typed values. Imports only notation, record and reporting.runs.

A run is told in two ways: `Now` is a snapshot, which may change at any moment; rows are the rounds that are done,
which are only ever added to. A simulation has no snapshot worth the name between two rows, so the page plays its
rounds from the rows' own times; a real federation says what its sites are doing, and the page shows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from tramfl.notation import NodeId
from tramfl.record import Row
from tramfl.reporting.runs import Clock

Status = Literal["preparing", "running", "finished", "interrupted", "stopped"]
"""Stopped: nobody is at work on the run, and it did not say how it ended."""
Doing = Literal[
    "unknown", "resting", "gathering", "deciding", "sending", "receiving", "training", "storing", "waiting"
]
"""Unknown: the source cannot tell; the page then goes by the rows."""


class SiteNow(Struct, frozen=True, kw_only=True):
    """One site at this moment; None and `unknown` stand for what the source cannot tell."""

    name: str
    alive: bool = True
    doing: Doing = "unknown"
    progress: float | None = None
    """Of what it is doing, from 0 to 1."""
    flops: float | None = None
    """FLOPS it can spare."""
    bandwidth: float | None = None
    """Bit/s from the holder to it."""
    held: tuple[int, ...] | None = None
    """Training samples of each label."""


class Now(Struct, frozen=True, kw_only=True):
    """A run at this moment."""

    run: str
    """Tells this run from any other, before and after a restart of the source: where it changes, all rows are new."""
    title: str
    policy: str = ""
    seed: int | None = None
    status: Status = "running"
    clock: Clock = "virtual"
    epoch: int | None = None
    round: int | None = None
    """The round under way."""
    holder: NodeId | None = None
    receiver: NodeId | None = None
    """Who the model is on its way to."""
    sites: tuple[SiteNow, ...] = ()
    message: str = ""
    """One sentence about what is unusual; most often there is none."""
    labels: tuple[str, ...] = ()
    variance_limit: float | None = None
    """V."""
    targets: tuple[float, ...] = ()
    """Test accuracies to reach."""
    model_bits: float | None = None
    """D_M."""
    rounds_planned: int | None = None


class Source(Protocol):
    """Something to watch; called by one thread at a time."""

    def now(self) -> Now:
        """What is going on; called a few times a second while somebody watches."""
        ...

    def rows(self, after: int) -> Sequence[Row]:
        """The rows of the run that `now` last named, without the first `after`; as many at a time as it likes."""
        ...

"""A run at one moment, as something to watch: where the model is, and what each site does.

Between two rows a simulation has no snapshot worth the name, so a watcher plays its rounds from the rows' own times.
A real federation reports what its sites are doing.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tramfl.config import ACCURACY
from tramfl.notation import NodeId
from tramfl.record.folder import ClockKind

RunState = Literal["preparing", "running", "finished", "interrupted", "stopped"]
"""Stopped: no process works on the run, and it left no summary, or one that says why it was stopped."""
Doing = Literal[
    "unknown", "resting", "gathering", "deciding", "sending", "receiving", "training", "storing", "waiting"
]
"""Unknown: the source does not know; a watcher then goes by the rows."""


class SiteNow(Struct, frozen=True, kw_only=True):
    """One site at this moment; None and `unknown` stand for what the source does not know."""

    name: str
    alive: bool = True
    doing: Doing = "unknown"
    progress: float | None = None
    """Of what the site is doing, from 0 to 1."""
    flops: float | None = None
    """FLOPS that the site can spare."""
    bandwidth: float | None = None
    """Bit/s from the holder to the site."""
    held: tuple[int, ...] | None = None
    """Training samples of each label."""


class Now(Struct, frozen=True, kw_only=True):
    """A run at this moment."""

    run: str
    """Identifies the run, also after a restart of the source: where it changes, all rows are new."""
    title: str
    policy: str = ""
    seed: int | None = None
    status: RunState = "running"
    clock: ClockKind = "virtual"
    epoch: int | None = None
    round: int | None = None
    """The round under way."""
    holder: NodeId | None = None
    receiver: NodeId | None = None
    """The site that the model is on its way to."""
    sites: tuple[SiteNow, ...] = ()
    message: str = ""
    """One sentence about something unusual; most often there is none."""
    labels: tuple[str, ...] = ()
    variance_limit: float | None = None
    """V."""
    targets: tuple[float, ...] = ()
    """Values of the metric to reach."""
    metric: str = ACCURACY
    """What the targets are of."""
    lower_is_better: bool = False
    """Whether a target is reached from above."""
    model_bits: float | None = None
    """D_M."""
    rounds_planned: int | None = None
    regret: str = ""
    """How much longer the run took than with an oracle, in a few words, once it has ended; most runs have none."""

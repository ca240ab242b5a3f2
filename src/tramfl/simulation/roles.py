"""What a world works with: what trains its weights, and what watches its steps."""

from __future__ import annotations

from typing import Protocol

from tramfl.circulation import commands as do
from tramfl.circulation.custody import Record
from tramfl.notation import Digest, NodeId
from tramfl.simulation.lives import Process


class RunTrainer(Protocol):
    """Trains weights; a digest stands for them."""

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int, /) -> Digest:
        """Train `parent` at `node` on `samples[c]` samples of each label c."""
        ...

    def discard(self, digest: Digest, /) -> None:
        """No node keeps these weights any longer."""
        ...


class NullLearner:
    """Trains nothing: for runs that are only about the schedule."""

    def __init__(self) -> None:
        self._trained = 0

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int) -> Digest:
        """A new name for every training."""
        self._trained += 1
        return f"w{self._trained}"

    def discard(self, digest: Digest) -> None:
        """Nothing is kept."""


class Watcher(Protocol):
    """Sees what happens in a world; raises where an invariant is broken."""

    def swapped(self, author: NodeId, epoch: int, before: Record, after: Record) -> None:
        """`author`, acting under `epoch`, changed the record."""
        ...

    def trained(self, parent: Digest, digest: Digest, samples: tuple[int, ...], accepted: bool) -> None:
        """Weights came into being; `accepted`: the node that trained them found them acceptable."""
        ...

    def answered(self, order: int, record: Record | None) -> None:
        """A node answered an order."""
        ...

    def departed(self, process: Process, command: do.Depart) -> None:
        """A process ended by itself."""
        ...

    def stepped(self) -> None:
        """An event was dealt with."""
        ...

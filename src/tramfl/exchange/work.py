"""What a learner is asked to compute: values by their names, in an order in which it can be done.

There may be 10,000 of these in a round, and none of them is part of a cycle: the garbage collector need not look.
"""

from __future__ import annotations

from msgspec import Struct

from tramfl.notation import Digest, NodeId


class LocalTraining(Struct, frozen=True, gc=False):
    """`child` is to be trained from `parent`."""

    child: Digest
    parent: Digest
    node: NodeId
    samples: tuple[int, ...]
    round: int
    drawn: tuple[int, ...]
    """Samples of each label that the node used before."""
    used: int
    """Samples that all nodes together used before."""
    anchor: Digest | None
    share: float

    @property
    def needs(self) -> tuple[Digest, ...]:
        """The values that it is computed from."""
        return (self.parent,) if self.anchor is None else (self.parent, self.anchor)


class Combining(Struct, frozen=True, gc=False):
    """`child` is to be the sum of factor * value."""

    child: Digest
    values: tuple[Digest, ...]
    factors: tuple[float, ...]

    @property
    def needs(self) -> tuple[Digest, ...]:
        """The values that it is computed from."""
        return self.values


class Predicting(Struct, frozen=True, gc=False):
    """`child` is to be the soft outputs of `parent` on the shared samples."""

    child: Digest
    parent: Digest

    @property
    def needs(self) -> tuple[Digest, ...]:
        """The values that it is computed from."""
        return (self.parent,)


class Distilling(Struct, frozen=True, gc=False):
    """`child` is to be trained from `parent` towards soft outputs on the shared samples."""

    child: Digest
    parent: Digest
    towards: Digest
    passes: int
    node: NodeId
    round: int

    @property
    def needs(self) -> tuple[Digest, ...]:
        """The values that it is computed from."""
        return (self.parent, self.towards)


Work = LocalTraining | Combining | Predicting | Distilling

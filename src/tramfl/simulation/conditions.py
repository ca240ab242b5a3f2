"""What the network, the disks and the processors of a simulated federation are like: calm, or as a schedule of faults
has it (`fault_schedules.Storm`)."""

from __future__ import annotations

from typing import Protocol

from tramfl.notation import NodeId

REGISTER = -1
"""The register's place in the network."""


class Conditions(Protocol):
    """What network, disks and processors are like at the moment."""

    def message(self, sender: NodeId, receiver: NodeId) -> float | None:
        """Seconds a small message takes, or None where it is lost."""
        ...

    def connected(self, sender: NodeId, receiver: NodeId) -> bool:
        """Whether anything that `sender` sends can get to `receiver`; the other direction is another question."""
        ...

    def cut_transfer(self) -> bool:
        """Whether the transfer that begins now will break half-way."""
        ...

    def store_seconds(self, node: NodeId) -> float | None:
        """Seconds until weights are on this node's disk, or None where the disk is full."""
        ...

    def lies(self, node: NodeId) -> bool:
        """Whether this node says that it has what it was sent, and has not."""
        ...

    def slowness(self, node: NodeId) -> float:
        """How many times longer than predicted this node trains."""
        ...

    def slowness_of_link(self, one: NodeId, other: NodeId) -> float:
        """How many times longer than predicted a transfer takes."""
        ...

    def rejects(self, node: NodeId) -> bool:
        """Whether what this node trains now is not acceptable."""
        ...

    def poisons(self, node: NodeId) -> bool:
        """Whether no other node accepts what this node trains now."""
        ...


class Calm:
    """Nothing fails, and only transfers and training take time."""

    def message(self, sender: NodeId, receiver: NodeId) -> float | None:
        """At once."""
        return 0.0

    def connected(self, sender: NodeId, receiver: NodeId) -> bool:
        """Always."""
        return True

    def cut_transfer(self) -> bool:
        """Never."""
        return False

    def store_seconds(self, node: NodeId) -> float | None:
        """At once."""
        return 0.0

    def lies(self, node: NodeId) -> bool:
        """Never."""
        return False

    def slowness(self, node: NodeId) -> float:
        """As predicted."""
        return 1.0

    def slowness_of_link(self, one: NodeId, other: NodeId) -> float:
        """As predicted."""
        return 1.0

    def rejects(self, node: NodeId) -> bool:
        """Never."""
        return False

    def poisons(self, node: NodeId) -> bool:
        """Never."""
        return False

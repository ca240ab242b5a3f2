"""What must hold after every step, whatever fails.

1. One record at a time; epochs never decrease; within an epoch rounds never decrease; `safe.round` never does.
2. Every digest in the record is on the disk of every node that the record names for it.
3. The ledger equals the sum of what was trained on the record's lineage.
4. A node with an old epoch never changes the record.
5. While the register answers, a copy of the safe weights is at a live node and some node can train, rounds advance.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from tramfl.circulation.custody import Record
from tramfl.notation import Digest, Ledger, NodeId


class InvariantBroken(AssertionError):
    """One of the five does not hold."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"invariant {number}: {what}")
        self.number = number


class Invariants:
    """Follows a run from its first record and objects to the first step that breaks one."""

    def __init__(self, record: Record, disk: Callable[[NodeId], Container[Digest]], stall_seconds: float) -> None:
        self._record = record
        self._disk = disk
        self._stall_seconds = stall_seconds
        self._lineage: dict[Digest, tuple[int, ...]] = {record.weights.digest: record.ledger.used}
        self._moved_at = record.weights.since
        self._unwritten: set[tuple[Digest, Ledger]] = set()

    def trained(self, parent: Digest, digest: Digest, samples: tuple[int, ...]) -> None:
        """Weights came into being: remember what they were trained on, from the first sample."""
        history = self._lineage[parent]
        self._lineage[digest] = tuple(a + s for a, s in zip(history, samples, strict=True))

    def swapped(self, author: NodeId, epoch: int, before: Record, after: Record, now: float) -> None:
        """The record changed."""
        if before != self._record:
            raise InvariantBroken(1, f"the record was {before}, not {self._record}")
        if epoch != before.epoch:
            raise InvariantBroken(
                4, f"node {author} acted under epoch {epoch} and changed a record of {before.epoch}"
            )
        if after.epoch < before.epoch:
            raise InvariantBroken(1, f"the epoch fell from {before.epoch} to {after.epoch}")
        if after.epoch == before.epoch and after.round < before.round:
            raise InvariantBroken(
                1, f"within epoch {after.epoch} the round fell from {before.round} to {after.round}"
            )
        if after.safe.round < before.safe.round:
            raise InvariantBroken(1, f"the safe round fell from {before.safe.round} to {after.safe.round}")
        self._check_ledger("the ledger", after.weights.digest, after.ledger.used)
        self._check_ledger("the safe ledger", after.safe.digest, after.safe.ledger.used)
        self._record = after
        if after.round > before.round:
            self._moved_at = now
            self._unwritten.add(_commit(after))

    def closed(self, record: Record) -> None:
        """A row was written for a round that this record was the first to contain."""
        if _commit(record) not in self._unwritten:
            raise InvariantBroken(
                3, f"a row tells of a round that the record does not know, or tells it twice: {record}"
            )
        self._unwritten.remove(_commit(record))

    def _check_ledger(self, name: str, digest: Digest, used: tuple[int, ...]) -> None:
        if used != self._lineage[digest]:
            raise InvariantBroken(3, f"{name} says {used}, but {digest} was trained on {self._lineage[digest]}")

    def stepped(self, now: float, able_since: float | None) -> None:
        """An event was dealt with; `able_since` is since when nothing keeps the run from advancing."""
        for digest, copies in (
            (self._record.weights.digest, self._record.weights.copies),
            (self._record.safe.digest, self._record.safe.copies),
        ):
            for node in copies:
                if digest not in self._disk(node):
                    raise InvariantBroken(2, f"the record says node {node} has {digest}, but its disk does not")
        if able_since is not None and now - max(able_since, self._moved_at) > self._stall_seconds:
            raise InvariantBroken(5, f"no round since {self._moved_at:.1f} s, though nothing is in the way")


def _commit(record: Record) -> tuple[Digest, Ledger]:
    return record.weights.digest, record.ledger

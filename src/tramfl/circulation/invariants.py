"""What must hold after every step, whatever fails.

1. One record at a time; epochs never decrease; within an epoch rounds never decrease; `safe.round` never does, but by
   a rollback.
2. Every digest in the record is on the disk of every node that the record names for it.
3. The ledger equals the sum of what was trained on the record's lineage.
4. A node with an old epoch never changes the record.
5. While the run is running, the register answers, a copy of the safe weights is at a live node and some node can
   train, rounds advance.
6. A paused or stopped run commits the round in hand at most; a stopped run stays stopped; an order that is answered
   was carried out.
7. A run at rest lies on two disks as soon as two nodes are there.
8. A node that leaves hands the model on where another node is there to take it, and gives its lease up only where it
   does not have the newest weights alone.
9. Of two lives of one node, the earlier ends as soon as it reaches the register.
10. While another node reports, a node trains no further once `unsafe_rounds` of its rounds lie at it alone.
11. Weights that their trainer rejected are never committed.
12. A round that is committed was decided by the node that held the model, whatever other nodes say.
13. A node that is no member commits no round and becomes no holder; a change of the members changes nothing else.
14. The seconds of the ledger are the time that passed until the commit: never more, and no less in a run that never
    was at rest. Of a run in which a node lies this is not asked: a holder may lie about the time that it lost.
15. Only a run at rest is rolled back: to a version that the record keeps, with its ledger, under a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from msgspec.structs import replace

from tramfl.circulation.changes import OrderedChange
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Outcome
from tramfl.notation import Digest, Ledger, NodeId

ROUNDING = 1e-6
"""Seconds by which sums of times may differ from the clock."""


class InvariantBroken(AssertionError):
    """One of these does not hold."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"invariant {number}: {what}")
        self.number = number


class Invariants:
    """Follows a run from its first record and objects to the first step that breaks one."""

    def __init__(
        self, record: Record, disk: Callable[[NodeId], Container[Digest]], stall_seconds: float, unsafe_rounds: int
    ) -> None:
        self._record = record
        self._disk = disk
        self._stall_seconds = stall_seconds
        self._unsafe_rounds = unsafe_rounds
        self._lineage: dict[Digest, tuple[int, ...]] = {record.weights.digest: record.ledger.used}
        self._moved_at = record.weights.since
        self._unwritten: set[tuple[Digest, Ledger]] = set()
        self._rounds_at_rest = 0
        self._accepted = {record.weights.digest}
        self._history = [record]
        self._orders: dict[int, tuple[OrderedChange, int]] = {}
        self._began, self._rested, self._lied = record.weights.since, False, False

    def trained(self, parent: Digest, digest: Digest, samples: tuple[int, ...], accepted: bool) -> None:
        """Weights came into being: remember what they were trained on, from the first sample.

        A node may do the same training before and after a crash; weights that it accepted once may be committed.
        """
        history = self._lineage[parent]
        self._lineage[digest] = tuple(a + s for a, s in zip(history, samples, strict=True))
        if accepted:
            self._accepted.add(digest)

    def swapped(self, author: NodeId, epoch: int, before: Record, after: Record, now: float) -> None:
        """The record changed."""
        if before != self._record:
            raise InvariantBroken(1, f"the record was {before}, not {self._record}")
        if epoch != before.epoch:
            raise InvariantBroken(
                4, f"node {author} acted under epoch {epoch} and changed a record of {before.epoch}"
            )
        if after.weights.digest not in self._accepted:
            raise InvariantBroken(11, f"node {author} committed {after.weights.digest}, which was not accepted")
        self._check_order(before, after)
        self._check_status(before, after)
        self._check_members(author, before, after)
        self._check_ledger("the ledger", after.weights.digest, after.ledger.used)
        self._check_ledger("the safe ledger", after.safe.digest, after.safe.ledger.used)
        self._record = after
        self._history.append(after)
        if after.round > before.round:
            self._unwritten.add(_commit(after))
            self._check_seconds(after)
        self._rested = self._rested or after.status != "running"
        if after.round > before.round or after.status != before.status:
            self._moved_at = now

    @staticmethod
    def _check_order(before: Record, after: Record) -> None:
        if after.epoch < before.epoch:
            raise InvariantBroken(1, f"the epoch fell from {before.epoch} to {after.epoch}")
        if after.epoch == before.epoch and after.round < before.round:
            raise InvariantBroken(
                1, f"within epoch {after.epoch} the round fell from {before.round} to {after.round}"
            )
        if after.safe.round < before.safe.round:
            _check_rollback(before, after)

    def _check_status(self, before: Record, after: Record) -> None:
        if after.status != before.status:
            self._rounds_at_rest = 0
            if before.status == "stopped":
                raise InvariantBroken(6, f"a stopped run is {after.status} again")
            if after != replace(before, status=after.status):
                raise InvariantBroken(6, f"an order changed more than the status: {before} became {after}")
        elif after.status != "running" and after.epoch == before.epoch and after.round > before.round:
            self._rounds_at_rest += 1
            if self._rounds_at_rest > 1:
                raise InvariantBroken(6, f"a second round was committed after the run was {after.status}")

    def lies(self) -> None:
        """A node lies from now on."""
        self._lied = True

    def _check_seconds(self, after: Record) -> None:
        passed = after.weights.since - self._began
        missing = passed - after.ledger.seconds
        if not self._lied and (missing < -ROUNDING or (missing > ROUNDING and not self._rested)):
            raise InvariantBroken(
                14, f"{passed} s have passed with round {after.round}, and the ledger has {after.ledger.seconds} s"
            )

    @staticmethod
    def _check_members(author: NodeId, before: Record, after: Record) -> None:
        if after.members != before.members:
            if after != replace(before, members=after.members):
                raise InvariantBroken(13, f"more than the members changed: {before} became {after}")
            if [e.name for e in after.members[: len(before.members)]] != [e.name for e in before.members]:
                raise InvariantBroken(13, f"a node lost its number: {before.members} became {after.members}")
        elif after.round > before.round and not before.is_member(author):
            raise InvariantBroken(13, f"node {author}, which is no member, committed round {after.round}")
        elif after.holder not in (None, before.holder) and not after.is_member(after.holder):
            raise InvariantBroken(13, f"node {after.holder}, which is no member, became the holder")

    def ordered(self, order: int, change: OrderedChange) -> None:
        """A node was ordered to change the record."""
        self._orders[order] = (change, len(self._history) - 1)

    def answered(self, order: int, record: Record | None) -> None:
        """The node answered the order: with a record that the register has had since, or that it does not know."""
        change, since = self._orders.pop(order)
        if record is None:
            return
        if replace(change, epoch=record.epoch).applied(record, -1) is not None:
            raise InvariantBroken(6, f"the answer to the order {change!r} is a record without it: {record}")
        if record not in self._history[since:]:
            raise InvariantBroken(6, f"the answer to the order {change!r} is a record that never was: {record}")

    def closed(self, outcome: Outcome, record: Record) -> None:
        """A row was written for a round that this record was the first to contain."""
        decided_by = outcome.assignment.holder
        before = [r for r in self._history if (r.epoch, r.round) == (record.epoch, record.round - 1)]
        if before and not any(r.holder == decided_by for r in before):
            raise InvariantBroken(12, f"node {decided_by} decided round {record.round} without the model")
        trained_on = outcome.node is not None and outcome.node == outcome.assignment.holder
        # A copy at a node that was removed since the round was decided counts here.
        alone = record.ledger.trained - record.safe.ledger.trained
        if trained_on and outcome.assignment.others and alone > self._unsafe_rounds:
            raise InvariantBroken(10, f"{alone} rounds lie at node {outcome.node} alone, though other nodes report")
        if _commit(record) not in self._unwritten:
            raise InvariantBroken(
                3, f"a row is about a round that the record does not have, or the second about one: {record}"
            )
        self._unwritten.remove(_commit(record))

    def departed(self, node: NodeId, *, release: bool, others: bool) -> None:
        """A node left; `others`: nothing kept another node from taking the model."""
        record = self._record
        if record.holder != node:
            return
        if release and record.weights.copies == (node,):
            raise InvariantBroken(8, f"node {node} gave its lease up, but has {record.weights.digest} alone")
        if others and record.is_member(node) and not (record.status == "stopped" and record.at_rest):
            raise InvariantBroken(8, f"node {node} left as the holder, though another node could have it")

    def doubled(self, node: NodeId, seconds: float, limit: float) -> None:
        """An earlier life of a node runs beside a later one, in reach of the register for this many seconds."""
        if seconds > limit:
            raise InvariantBroken(9, f"an earlier life of node {node} goes on for {seconds:.1f} s beside a later one")

    def _check_ledger(self, name: str, digest: Digest, used: tuple[int, ...]) -> None:
        if used != self._lineage[digest]:
            raise InvariantBroken(3, f"{name} says {used}, but {digest} was trained on {self._lineage[digest]}")

    def stepped(self, now: float, able_since: float | None) -> None:
        """An event was dealt with; since `able_since` nothing keeps the run from its next round, or from rest."""
        record = self._record
        for digest, copies in (
            (record.weights.digest, record.weights.copies),
            *((version.digest, version.copies) for version in (record.safe, *record.kept)),
        ):
            for node in copies:
                if digest not in self._disk(node):
                    raise InvariantBroken(2, f"the record says node {node} has {digest}, but its disk does not")
        if able_since is None or now - max(able_since, self._moved_at) <= self._stall_seconds:
            return
        if record.status == "running":
            raise InvariantBroken(5, f"no round since {self._moved_at:.1f} s, though nothing is in the way")
        if not record.at_rest:
            raise InvariantBroken(7, f"{record.weights.digest} of a {record.status} run lies on one disk alone")


def _check_rollback(before: Record, after: Record) -> None:
    to = after.safe
    if to not in before.kept or (after.weights.digest, after.ledger) != (to.digest, to.ledger):
        raise InvariantBroken(1, f"the safe round fell from {before.safe.round} to {to.round}, which was not kept")
    if before.status == "running" or after.status != before.status or after.epoch == before.epoch:
        raise InvariantBroken(15, f"a {before.status} run was rolled back in epoch {after.epoch}: {after}")


def _commit(record: Record) -> tuple[Digest, Ledger]:
    return record.weights.digest, record.ledger

"""The nine ways a node may change the record.

A change is kept apart from the record it was meant for, so that it can be put to a newer one: `applied` returns
the record as it would then be, or None where the change no longer fits. Each change is made under an epoch and
fits no other epoch. Together with the register's swap, this keeps a node that was taken over from out of the record.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tramfl.circulation.custody import Entry, Record, Safe, Status, Weights
from tramfl.notation import Digest, Ledger, NodeId


class HandOver(Struct, frozen=True, tag=True):
    """The receiver has the model on disk: it holds now, and with two copies the weights are safe."""

    epoch: int
    round: int
    digest: Digest
    to: NodeId

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record with the receiver as holder."""
        if not _is_mine(record, me, self.epoch, self.round, self.digest) or not record.is_member(self.to):
            return None
        copies = _with(record.weights.copies, self.to)
        safe = Safe(record.round, self.digest, copies, record.ledger, record.weights.since)
        weights = replace(record.weights, copies=copies)
        return replace(record, holder=self.to, weights=weights, safe=safe, kept=record.kept_after(safe))


class Commit(Struct, frozen=True, tag=True):
    """A round is done: trained, or skipped, in which case the digest is the parent's."""

    epoch: int
    round: int
    """Rounds done before this one."""
    parent: Digest
    digest: Digest
    samples: tuple[int, ...]
    seconds: float
    at: float

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record with one round more."""
        if not _is_mine(record, me, self.epoch, self.round, self.parent) or not record.is_member(me):
            return None
        ledger = record.ledger.after(self.samples, self.seconds)
        copies = record.weights.copies if self.digest == self.parent else (me,)
        return replace(record, weights=Weights(self.digest, copies, self.at), ledger=ledger)

    def landed(self, record: Record) -> bool:
        """Whether the record shows this very commit, not one that a former life of this node left under way."""
        weights = record.weights
        return (record.round, weights.digest, weights.since) == (self.round + 1, self.digest, self.at)


class TakeOver(Struct, frozen=True, tag=True):
    """The holder is lost: a node that has the newest weights, or the safe ones, goes on from them."""

    epoch: int
    """The one that ends with this change."""
    revision: int
    """Of the record whose holder was lost: if it has changed since, the holder was not lost after all."""
    digest: Digest
    """What this node has."""

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record under a new epoch, with me as holder."""
        if record.epoch != self.epoch or not record.is_member(me):
            return None
        weights, safe = record.weights, record.safe
        if self.digest == weights.digest:
            weights, ledger = replace(weights, copies=_with(weights.copies, me)), record.ledger
        elif self.digest == safe.digest:
            weights, ledger = Weights(safe.digest, _with(safe.copies, me), safe.since), safe.ledger
        else:
            return None
        return replace(record, epoch=record.epoch + 1, holder=me, weights=weights, ledger=ledger)


class MarkSafe(Struct, frozen=True, tag=True):
    """A background copy has arrived: weights of an earlier round are at two nodes now."""

    epoch: int
    round: int
    digest: Digest
    copies: tuple[NodeId, ...]
    ledger: Ledger
    since: float

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record with newer safe weights."""
        if record.epoch != self.epoch or not all(map(record.is_member, self.copies)):
            return None
        # The same weights are marked again where a node that had them was removed.
        again = record.safe.digest == self.digest and not record.newest_is_safe
        if record.safe.round >= self.round and not (again and record.safe.round == self.round):
            return None
        weights = record.weights
        if weights.digest == self.digest:
            weights = replace(weights, copies=tuple(sorted({*weights.copies, *self.copies})))
        safe = Safe(self.round, self.digest, self.copies, self.ledger, self.since)
        return replace(record, weights=weights, safe=safe, kept=record.kept_after(safe))


class Resign(Struct, frozen=True, tag=True):
    """The holder does not have the weights and cannot go on: any node that has them may take over."""

    epoch: int
    has_safe: bool
    """Whether this node still has the safe weights."""

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record without a holder."""
        if record.epoch != self.epoch or record.holder != me:
            return None
        weights = replace(record.weights, copies=_without(record.weights.copies, me))
        safe = record.safe if self.has_safe else replace(record.safe, copies=_without(record.safe.copies, me))
        return replace(record, holder=None, weights=weights, safe=safe)


class SetStatus(Struct, frozen=True, tag=True):
    """The run is paused, resumed or stopped; a stopped run stays stopped."""

    epoch: int
    """Of the record that is changed. An order is made into a new change for every record that it is put to."""
    status: Status

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record with this status, whichever node holds."""
        if record.epoch != self.epoch or record.status in (self.status, "stopped"):
            return None
        return replace(record, status=self.status)


class RollBack(Struct, frozen=True, tag=True):
    """A run at rest goes back to a kept version: later rounds do not count any more, and a new epoch begins.

    The new epoch voids whatever a node still has under way: a commit, a copy, a model on its way.
    """

    epoch: int
    """Of the record that is changed."""
    round: int
    """The version's."""

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record as it was with that version, at a node that has it: the present holder, if it is one."""
        version = next((v for v in record.versions if v.round == self.round), None)
        if record.epoch != self.epoch or record.status == "running" or version is None:
            return None
        there = [node for node in version.copies if record.is_member(node)]
        return replace(
            record,
            epoch=record.epoch + 1,
            holder=record.holder if record.holder in there else there[0],
            weights=Weights(version.digest, version.copies, version.since),
            safe=version,
            ledger=version.ledger,
            kept=tuple(earlier for earlier in record.kept if earlier.round < version.round),
        )


class AddMember(Struct, frozen=True, tag=True):
    """A node becomes a member, again or for the first time, or a member has another address."""

    epoch: int
    name: str
    address: str

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record with the node among the members."""
        entry, number = Entry(self.name, self.address), record.number_of(self.name)
        if record.epoch != self.epoch or (number is not None and record.members[number] == entry):
            return None
        if number is None:
            return replace(record, members=(*record.members, entry))
        return replace(record, members=(*record.members[:number], entry, *record.members[number + 1 :]))


class RemoveMember(Struct, frozen=True, tag=True):
    """A node is a member no more. It keeps its number; what it trained stays in the ledger."""

    epoch: int
    name: str

    def applied(self, record: Record, me: NodeId) -> Record | None:
        """The record without the node among the members; one member at least must stay."""
        number = record.number_of(self.name)
        if record.epoch != self.epoch or number is None or not set(record.present) > {number}:
            return None
        entry = Entry(self.name, None)
        return replace(record, members=(*record.members[:number], entry, *record.members[number + 1 :]))


OrderedChange = SetStatus | RollBack | AddMember | RemoveMember
"""What an operator may order; the epoch is that of the record that the order is put to."""
Change = HandOver | Commit | TakeOver | MarkSafe | Resign | OrderedChange


def _is_mine(record: Record, me: NodeId, epoch: int, round_: int, digest: Digest) -> bool:
    return (
        record.epoch == epoch and record.holder == me and record.round == round_ and record.weights.digest == digest
    )


def _with(copies: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    return copies if node in copies else tuple(sorted((*copies, node)))


def _without(copies: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    return tuple(n for n in copies if n != node)

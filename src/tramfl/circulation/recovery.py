"""What a node is after a start, after news of the record, and after the loss of the holder.

One rule covers every return: look at the record, and be what it says (`take_stock`). If the record names this node
and it has the weights, it holds. If the record names it and it does not have them, it resigns. Otherwise it follows,
and drops what it had in hand. A node that is leaving, or is a member no more, leaves instead.

Takeover: when the holder is lost, a node that has the newest weights swaps itself in at once, and a node that has
only the safe weights does so after a grace. The swap picks one winner. Rounds that were committed but not yet
safe are lost with their only copy; safe rounds never are.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.backing_off import cleared, failed
from tramfl.circulation.backup import halt
from tramfl.circulation.changes import Resign, TakeOver
from tramfl.circulation.commands import Discard, ReadRecord, Wake
from tramfl.circulation.custody import Record, Versioned
from tramfl.circulation.doubting import forgotten
from tramfl.circulation.events import HolderLost, LeaveOrdered, RecordRead, RecordSeen, Started, Woke
from tramfl.circulation.holding import gather, train
from tramfl.circulation.leaving import leave
from tramfl.circulation.phases import (
    Attempt,
    Deciding,
    Following,
    Gathering,
    Halted,
    Joining,
    Shipping,
    StandingBy,
    State,
    Swapping,
    Waiting,
)
from tramfl.circulation.steps import Step, abandon, current, issue, propose
from tramfl.notation import Digest, NodeId


def started(state: State, event: Started) -> Step:
    """Read the record."""
    state, ticket = issue(replace(state, copies=event.copies))
    return replace(state, phase=Joining(ticket)), (ReadRecord(ticket),)


def record_read(state: State, event: RecordRead) -> Step:
    """Be what the record says."""
    state, discard = noticed(state, event.versioned)
    state, commands = take_stock(state, event.at)
    return state, (*discard, *commands)


def record_seen(state: State, event: RecordSeen) -> Step:
    """If the record has moved, cancel what is in hand and be what it says; ignore old news."""
    return learn(state, event.versioned, event.at)


def learn(state: State, versioned: Versioned, at: float) -> Step:
    """The record may have changed: go on where it leaves this node's work alone, else take stock."""
    before = state.seen
    if before is not None and versioned.revision <= before.revision:
        return state, ()
    state, discard = noticed(state, versioned)
    phase, record = state.phase, versioned.record
    if isinstance(phase, Joining | Swapping):
        # Their own answer is on its way, and settles it.
        return state, discard
    # A swap that a former life left under way may move a holder's own record: then its work starts from the past.
    unmoved = before is not None and _standing(record) == _standing(before.record)
    if unmoved and record.holder == state.me and not _must_turn(state, record):
        return state, discard
    cancel = abandon(phase)
    state, commands = take_stock(state, at)
    return state, (*discard, *cancel, *commands)


def _standing(record: Record) -> tuple[int, int, Digest]:
    return record.epoch, record.round, record.weights.digest


def _must_turn(state: State, record: Record) -> bool:
    """Whether a holder cannot go on as it is, though the model has not moved."""
    if isinstance(state.phase, Following | StandingBy | Halted | Shipping):
        return True
    if not record.is_member(state.me):
        return not state.leaving
    # The round in hand may be finished once the model is on its way or in training; nothing new is begun.
    return record.status != "running" and isinstance(state.phase, Gathering | Deciding | Waiting)


def noticed(state: State, versioned: Versioned) -> Step:
    """Remember the record if it is newer, and delete the weights that it and its future can do without."""
    if state.seen is not None and versioned.revision <= state.seen.revision:
        return state, ()
    record = versioned.record
    lost = _lost(state.seen.record, record) if state.seen is not None else None
    if lost is not None:
        # A node that resigned or was taken over from is still asked for its load, but nobody waits for it.
        # One that is lost again and again is not even asked.
        state = failed(replace(state, absent=state.absent | {lost}), lost, record.round - 1)
    state = forgotten(cleared(state, record), record)
    backup = state.backup
    if backup is not None and backup.in_doubt_at is not None and versioned.revision > backup.in_doubt_at:
        # The record has moved: the swap that went unanswered was made by now, or never will be.
        state = replace(state, backup=(backup := None))
    named = {record.weights.digest, record.safe.digest, backup.change.digest if backup else None}
    named |= kept_at(record, state.me)
    # Safe rounds and epochs only grow, and a rollback goes to kept weights alone, so no later swap can name others
    # that lie before them. Weights that the holder has trained past can be named only by its own backup, or by its
    # former life's until the record first moves.
    settled = state.seen is not None and record.holder == state.me
    past = record.round if settled else record.safe.round
    gone = tuple(
        copy for copy in state.copies if copy.digest not in named and (copy.round < past or copy.epoch < record.epoch)
    )
    if not gone:
        return replace(state, seen=versioned), ()
    kept = tuple(copy for copy in state.copies if copy not in gone)
    return replace(state, seen=versioned, copies=kept), (Discard(tuple(copy.digest for copy in gone)),)


def _lost(before: Record, record: Record) -> NodeId | None:
    """The holder that resigned, or was taken over from, between two records."""
    lost = record.epoch > before.epoch or record.holder is None
    return before.holder if lost and before.holder != record.holder else None


def kept_at(record: Record, me: NodeId) -> set[Digest | None]:
    """The earlier versions that the record counts on this node to keep."""
    return {version.digest for version in record.kept if me in version.copies}


def take_stock(state: State, at: float) -> Step:
    """Be what the record says."""
    record = current(state)
    mine = record.holder == state.me
    if mine and not state.has(record.weights.digest):
        return propose(state, Resign(record.epoch, state.has(record.safe.digest)))
    if state.leaving or not record.is_member(state.me):
        return leave(replace(state, leaving=True))
    if not mine:
        return replace(state, phase=Following()), ()
    if record.status != "running":
        return halt(state)
    accepted = state.accepted
    if accepted is not None:
        state = replace(state, accepted=None)
        offer = accepted.offer
        if (offer.epoch, offer.round, offer.digest) == (record.epoch, record.round, record.weights.digest):
            assert offer.assignment is not None
            # A pause between arrival and training is no overhead.
            attempt = Attempt(
                at if isinstance(state.phase, Halted) else accepted.at,
                offer.assignment.lost_seconds,
                rejected=offer.assignment.rejected,
                overhead_seconds=offer.assignment.overhead_seconds,
            )
            return train(state, attempt, offer.assignment, accepted.seconds)
    # A run that was paused has lost nothing; any other has lost the time since its last commit.
    since = at if isinstance(state.phase, Halted) else record.weights.since
    return gather(state, Attempt(at, max(0.0, at - since)))


def leave_ordered(state: State, event: LeaveOrdered) -> Step:
    """Cancel what is in hand and read the record, to leave as what it says; a swap under way is settled first."""
    if state.leaving:
        return state, ()
    cancel = abandon(state.phase)
    state, ticket = issue(replace(state, leaving=True))
    # A register that was silent before may be back: whether it answers now, only a new question shows.
    phase = replace(state.phase, ticket=ticket) if isinstance(state.phase, Swapping) else Joining(ticket)
    return replace(state, phase=phase), (*cancel, ReadRecord(ticket))


def holder_lost(state: State, event: HolderLost) -> Step:
    """A follower with the newest weights takes over; one with only the safe weights stands by."""
    state, commands = learn(state, event.versioned, event.at)
    seen = state.seen
    assert seen is not None
    record = seen.record
    stale = seen.revision != event.versioned.revision
    if stale or not isinstance(state.phase, Following) or record.status == "stopped":
        return state, commands
    if state.has(record.weights.digest) and record.weights.digest != state.disowned:
        state, takeover = propose(state, TakeOver(record.epoch, seen.revision, record.weights.digest))
        return state, (*commands, *takeover)
    if state.has(record.safe.digest):
        state, ticket = issue(state)
        # A node that the others do not follow lets them go first.
        graces = 2 if record.weights.digest == state.disowned else 1
        wake = Wake(ticket, graces * state.limits.takeover_grace)
        return replace(state, phase=StandingBy(ticket)), (*commands, wake)
    return state, commands


def grace_over(state: State, event: Woke) -> Step:
    """Take over from the safe weights: no node with newer ones came forward."""
    phase, seen = state.phase, state.seen
    assert isinstance(phase, StandingBy)
    assert seen is not None
    record = seen.record
    for digest in (record.weights.digest, record.safe.digest):
        if state.has(digest) and digest != state.disowned:
            return propose(state, TakeOver(record.epoch, seen.revision, digest))
    return replace(state, phase=Following()), ()

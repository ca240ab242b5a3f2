"""What a node may do after it, or the holder, was away.

One rule covers every return: look at the record, and be what it says. If it names me and I have its weights, I
hold; if it names me and I do not have them, I resign; otherwise I follow, and drop whatever I had in hand.

Takeover: when the holder is lost, a node that has the newest weights swaps itself in at once, and one that has
only the safe weights does so after a grace. The swap picks one winner. Rounds that were committed but not yet
safe are lost with their only copy; safe ones never.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.changes import Resign, TakeOver
from tramfl.circulation.commands import CancelSend, CancelTraining, Command, Discard, ReadRecord, Wake
from tramfl.circulation.custody import Record, Versioned
from tramfl.circulation.events import HolderLost, RecordRead, RecordSeen, Started, Woke
from tramfl.circulation.phases import (
    Attempt,
    Following,
    Halted,
    Joining,
    Sending,
    StandingBy,
    State,
    Swapping,
    Training,
)
from tramfl.circulation.rounds import Step, current, gather, halt, issue, propose, train
from tramfl.notation import Digest


def started(state: State, event: Started) -> Step:
    """The process begins: learn what the record says."""
    state, ticket = issue(replace(state, copies=event.copies))
    return replace(state, phase=Joining(ticket)), (ReadRecord(ticket),)


def record_read(state: State, event: RecordRead) -> Step:
    """The record, after a start."""
    state, discard = noticed(state, event.versioned)
    state, commands = take_stock(state, event.at)
    return state, (*discard, *commands)


def record_seen(state: State, event: RecordSeen) -> Step:
    """News of the record, possibly old."""
    before = state.seen
    if before is not None and event.versioned.revision <= before.revision:
        return state, ()
    state, discard = noticed(state, event.versioned)
    phase, record = state.phase, event.versioned.record
    if isinstance(phase, Joining | Swapping):
        # Their own answer is on its way, and settles it.
        return state, discard
    # A swap that a former life left under way may move even my own record on: then my work starts from the past.
    unmoved = before is not None and _standing(record) == _standing(before.record)
    if unmoved and record.holder == state.me and not isinstance(phase, Following | StandingBy | Halted):
        return state, discard
    cancel: tuple[Command, ...] = ()
    if isinstance(phase, Sending):
        cancel = (CancelSend(phase.ticket),)
    elif isinstance(phase, Training):
        cancel = (CancelTraining(phase.ticket),)
    state, commands = take_stock(state, event.at)
    return state, (*discard, *cancel, *commands)


def _standing(record: Record) -> tuple[int, int, Digest]:
    return record.epoch, record.round, record.weights.digest


def noticed(state: State, versioned: Versioned) -> Step:
    """Remember the record if it is newer, and delete the weights that it and its future can do without."""
    if state.seen is not None and versioned.revision <= state.seen.revision:
        return state, ()
    record = versioned.record
    lost = state.seen.record.holder if state.seen is not None and record.epoch > state.seen.record.epoch else None
    if lost is not None and lost != record.holder:
        # Whoever was given up is still asked for its load, but nobody waits for it.
        state = replace(state, absent=state.absent | {lost})
    backup = state.backup
    if backup is not None and backup.in_doubt_at is not None and versioned.revision > backup.in_doubt_at:
        # The record has moved: the swap that went unanswered was made by now, or never will be.
        state = replace(state, backup=(backup := None))
    named = {record.weights.digest, record.safe.digest, backup.change.digest if backup else None}
    # Safe rounds and epochs only grow, so no later swap can name what lies before them. What the holder itself
    # has trained past, only its own backup could; or one of its former life, until the record first moves.
    settled = state.seen is not None and record.holder == state.me
    past = record.round if settled else record.safe.round
    gone = tuple(
        copy for copy in state.copies if copy.digest not in named and (copy.round < past or copy.epoch < record.epoch)
    )
    if not gone:
        return replace(state, seen=versioned), ()
    kept = tuple(copy for copy in state.copies if copy not in gone)
    return replace(state, seen=versioned, copies=kept), (Discard(tuple(copy.digest for copy in gone)),)


def take_stock(state: State, at: float) -> Step:
    """Be what the record says."""
    record = current(state)
    if record.holder != state.me:
        return replace(state, phase=Following()), ()
    if not state.has(record.weights.digest):
        return propose(state, Resign(record.epoch, state.has(record.safe.digest)))
    if record.status != "running":
        return halt(state)
    accepted = state.accepted
    if accepted is not None:
        state = replace(state, accepted=None)
        offer = accepted.offer
        if (offer.epoch, offer.round, offer.digest) == (record.epoch, record.round, record.weights.digest):
            assert offer.assignment is not None
            attempt = Attempt(at, offer.assignment.lost_seconds)
            return train(state, attempt, offer.assignment, accepted.seconds)
    # A run that was paused has lost nothing; any other has worked in vain since its last commit.
    since = at if isinstance(state.phase, Halted) else record.weights.since
    return gather(state, Attempt(at, max(0.0, at - since)))


def holder_lost(state: State, event: HolderLost) -> Step:
    """The holder is gone: take over, if I have what it takes."""
    state, commands = record_seen(state, RecordSeen(event.at, event.versioned))
    seen = state.seen
    assert seen is not None
    record = seen.record
    stale = seen.revision != event.versioned.revision
    if stale or not isinstance(state.phase, Following) or record.status == "stopped":
        return state, commands
    if state.has(record.weights.digest):
        state, takeover = propose(state, TakeOver(record.epoch, seen.revision, record.weights.digest))
        return state, (*commands, *takeover)
    if state.has(record.safe.digest):
        state, ticket = issue(state)
        wake = Wake(ticket, state.limits.takeover_grace)
        return replace(state, phase=StandingBy(ticket)), (*commands, wake)
    return state, commands


def grace_over(state: State, event: Woke) -> Step:
    """Nobody with newer weights came forward: go on from the safe ones."""
    phase, seen = state.phase, state.seen
    assert isinstance(phase, StandingBy)
    assert seen is not None
    record = seen.record
    for digest in (record.weights.digest, record.safe.digest):
        if state.has(digest):
            return propose(state, TakeOver(record.epoch, seen.revision, digest))
    return replace(state, phase=Following()), ()

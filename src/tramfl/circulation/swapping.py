"""What the register answers to a proposed change.

A swap is made, refused, or goes unanswered; without an answer it may have been made or not. In the last two cases the
change is put to the record as it is now: it may have landed already, may still fit and be proposed again, or fit no
more. Where it fits no more, the node is what the record says.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.backup import mark_safe, start_backup
from tramfl.circulation.changes import Change, Commit, HandOver, Resign, TakeOver
from tramfl.circulation.commands import CloseRound, Nudge, ReadRecord, Wake
from tramfl.circulation.custody import Versioned
from tramfl.circulation.events import RecordRead, RegisterSilent, Swapped, SwapRefused, Woke
from tramfl.circulation.holding import gather
from tramfl.circulation.leaving import depart
from tramfl.circulation.phases import Attempt, Joining, Left, State, Swapping
from tramfl.circulation.recovery import learn, noticed, take_stock
from tramfl.circulation.steps import Step, current, issue, propose
from tramfl.notation import NodeId


def swapped(state: State, event: Swapped) -> Step:
    """Go on with what the change was for."""
    phase = state.phase
    assert isinstance(phase, Swapping)
    state, discard = noticed(state, event.versioned)
    state, commands = _landed(state, phase, event.at)
    return state, (*discard, *commands)


def settle(state: State, event: SwapRefused | RecordRead) -> Step:
    """Landed: go on. Still fits: propose it again. Void: be what the record says."""
    phase = state.phase
    assert isinstance(phase, Swapping)
    state, discard = noticed(state, event.versioned)
    now = state.seen
    assert now is not None
    if isinstance(phase.change, Commit) and phase.change.landed(now.record):
        state, commands = _landed(state, phase, event.at)
    elif _still_fits(phase.change, now, state.me):
        state, commands = propose(state, phase.change, phase.outcome)
    else:
        state, commands = take_stock(state, event.at)
    return state, (*discard, *commands)


def _still_fits(change: Change, now: Versioned, me: NodeId) -> bool:
    # A record that moved since its holder was lost has a holder that moves: no ground to take over.
    if isinstance(change, TakeOver) and now.revision != change.revision:
        return False
    # Whether this node has the safe weights is another question for another record: take stock again.
    if isinstance(change, Resign):
        return False
    return change.applied(now.record, me) is not None


def _landed(state: State, phase: Swapping, at: float) -> Step:
    """A change is in the record, which may have moved on since."""
    if isinstance(phase.change, HandOver):
        state, commands = take_stock(state, at)
        return state, (Nudge(phase.change.to), *commands)
    if not isinstance(phase.change, Commit):
        return take_stock(state, at)
    assert phase.outcome is not None
    close = CloseRound(phase.outcome, phase.proposed)
    if phase.outcome.node is not None:
        state = replace(state, setbacks=0)
    record = current(state)
    goes_on = record.holder == state.me and record.epoch == phase.change.epoch and record.is_member(state.me)
    if not goes_on or state.leaving:
        state, commands = take_stock(state, at)
        return state, (close, *commands)
    state, backup = start_backup(state, phase.outcome.assignment)
    # The next round begins where this one ended: its first overhead is that of the swap.
    state, commands = gather(state, Attempt(phase.change.at if state.counts_overhead else at))
    return state, (close, *backup, *commands)


def ask_later(state: State, event: RegisterSilent) -> Step:
    """Ask the register a little later; a node that is leaving departs instead."""
    phase = state.phase
    assert isinstance(phase, Joining | Swapping)
    if state.leaving:
        return depart(state, in_doubt=True)
    state, ticket = issue(state)
    return replace(state, phase=replace(phase, ticket=ticket)), (Wake(ticket, state.limits.register_retry),)


def ask_now(state: State, event: Woke) -> Step:
    """Ask the register what the record says."""
    phase = state.phase
    assert isinstance(phase, Joining | Swapping)
    state, ticket = issue(state)
    return replace(state, phase=replace(phase, ticket=ticket)), (ReadRecord(ticket),)


def backup_marked(state: State, event: Swapped) -> Step:
    """The record names the background copy; who took it is fit to take the next."""
    assert state.backup is not None
    fit = state.unfit.difference(state.backup.change.copies)
    return learn(replace(state, backup=None, unfit=fit), event.versioned, event.at)


def backup_refused(state: State, event: SwapRefused) -> Step:
    """Mark the copy in the record as it is now, if no newer weights are safe there."""
    state, news = learn(state, event.versioned, event.at)
    if state.backup is None or isinstance(state.phase, Left):
        return state, news
    state, commands = mark_safe(state)
    return state, (*news, *commands)

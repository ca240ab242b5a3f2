"""The small steps that all parts of the machine take: give a ticket out, keep a copy, propose a change."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from tramfl.circulation.changes import Change
from tramfl.circulation.commands import CancelSend, CancelTraining, Command, Swap
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Copy, HandingOn, Outcome, Phase, Sending, State, Swapping, Training

Step: TypeAlias = tuple[State, tuple[Command, ...]]


def current(state: State) -> Record:
    """The record as this node last saw it."""
    assert state.seen is not None
    return state.seen.record


def issue(state: State) -> tuple[State, int]:
    """A new ticket."""
    ticket = state.ticket + 1
    return replace(state, ticket=ticket), ticket


def keep(state: State, copy: Copy) -> State:
    """Weights are on disk; of the same weights under two rounds or epochs the later counts."""
    if any(c.digest == copy.digest and (c.epoch, c.round) >= (copy.epoch, copy.round) for c in state.copies):
        return state
    return replace(state, copies=(*(c for c in state.copies if c.digest != copy.digest), copy))


def abandon(phase: Phase) -> tuple[Command, ...]:
    """Cancel the work that a phase waits for, where it costs something."""
    if isinstance(phase, Sending | HandingOn):
        return (CancelSend(phase.ticket),)
    if isinstance(phase, Training):
        return (CancelTraining(phase.ticket),)
    return ()


def propose(state: State, change: Change, outcome: Outcome | None = None) -> Step:
    """Put a change to the record this node last saw, which it must fit."""
    seen = state.seen
    assert seen is not None
    record = change.applied(seen.record, state.me)
    assert record is not None, f"{change!r} does not fit {seen.record!r}"
    state, ticket = issue(state)
    phase = Swapping(ticket, change, record, outcome)
    return replace(state, phase=phase), (Swap(ticket, seen.revision, record, change.epoch, outcome),)

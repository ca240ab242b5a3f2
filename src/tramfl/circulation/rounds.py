"""The steps that several parts of the machine take: begin a round, train, step back, propose a change."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from tramfl.circulation.changes import Change
from tramfl.circulation.commands import AskLoads, Command, Swap, Train, Wake
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Assignment, Attempt, Copy, Gathering, Halted, Outcome, State, Swapping, Training
from tramfl.notation import NodeId

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


def gather(state: State, attempt: Attempt) -> Step:
    """Step 1 of a round, or a halt where the run is not running."""
    if current(state).status != "running":
        return halt(state)
    state, ticket = issue(state)
    asked = frozenset(range(state.nodes)) - attempt.excluded
    phase = Gathering(ticket, attempt, {}, asked - state.absent)
    ask = AskLoads(ticket, current(state).round + 1, tuple(sorted(asked)))
    return replace(state, phase=phase), (ask, Wake(ticket, state.limits.load_reply))


def halt(state: State) -> Step:
    """The run does not run: rest, but not before somebody else has the newest weights too."""
    record = current(state)
    others = tuple(node for node in range(state.nodes) if node != state.me)
    if record.weights.digest == record.safe.digest or not others:
        return replace(state, phase=Halted()), ()
    state, ticket = issue(state)
    ask = AskLoads(ticket, record.round + 1, others)
    return replace(state, phase=Halted(ticket)), (ask, Wake(ticket, state.limits.load_reply))


def train(state: State, attempt: Attempt, assignment: Assignment, transfer_seconds: float) -> Step:
    """Step 4: begin to train what was assigned."""
    record = current(state)
    state, ticket = issue(state)
    state = replace(state, phase=Training(ticket, attempt, assignment, transfer_seconds))
    deadline = state.limits.overdue_after(assignment.decision.compute_seconds, state.setbacks)
    return state, (Train(ticket, record.weights.digest, record.round + 1, assignment), Wake(ticket, deadline))


def setback(state: State, attempt: Attempt, failed: NodeId, at: float, *cancel: Command) -> Step:
    """An attempt failed: the round is decided again without the node that failed."""
    again = Attempt(at, attempt.lost_seconds + (at - attempt.began), attempt.excluded | {failed})
    state, commands = gather(replace(state, setbacks=state.setbacks + 1), again)
    return state, (*cancel, *commands)


def propose(state: State, change: Change, outcome: Outcome | None = None) -> Step:
    """Put a change to the record this node last saw, which it must fit."""
    seen = state.seen
    assert seen is not None
    record = change.applied(seen.record, state.me)
    assert record is not None, f"{change!r} does not fit {seen.record!r}"
    state, ticket = issue(state)
    phase = Swapping(ticket, change, record, outcome)
    return replace(state, phase=phase), (Swap(ticket, seen.revision, record, change.epoch),)

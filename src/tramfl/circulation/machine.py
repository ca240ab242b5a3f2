"""The round machine of one node: `advance(state, event) -> (state, commands)`.

This file holds the table of who answers which event, and the holder's round: gather, decide, then skip, send
or train, store and commit. `receiving.py` is the other end of a transfer, `recovery.py` what follows a start,
news of the record, or the loss of the holder, `swapping.py` the register's answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tramfl.circulation import receiving, recovery, swapping
from tramfl.circulation.changes import Commit, HandOver
from tramfl.circulation.commands import CancelSend, CancelTraining, Decide, SendModel, Store, Wake
from tramfl.circulation.events import (
    Acknowledged,
    Answer,
    Decided,
    Event,
    HolderLost,
    LoadReported,
    ModelArrived,
    RecordRead,
    RecordSeen,
    RegisterSilent,
    SendFailed,
    Started,
    Stored,
    StoreFailed,
    Swapped,
    SwapRefused,
    Trained,
    TrainingFailed,
    Woke,
)
from tramfl.circulation.phases import (
    Assignment,
    Copy,
    Deciding,
    Gathering,
    Halted,
    Joining,
    Offer,
    Outcome,
    Sending,
    StandingBy,
    State,
    Storing,
    Swapping,
    Training,
    Waiting,
)
from tramfl.circulation.rounds import Step, current, issue, keep, propose, setback, train
from tramfl.notation import Loads


class IllegalEvent(Exception):
    """An event that cannot happen in this phase: a fault of whoever carries the commands out."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"node {state.me}: {event!r} cannot happen in {state.phase!r}")


def advance(state: State, event: Event) -> Step:
    """What the node knows and wants done after `event`."""
    kind = type(event)
    if news := _NEWS.get(kind):
        return news(state, event)
    assert isinstance(event, Answer)
    if event.ticket > state.ticket:
        raise IllegalEvent(state, event)
    if state.backup is not None and event.ticket == state.backup.ticket:
        return _handled(_BACKUP.get(kind), state, event)
    if kind in _INCOMING and any(i.ticket == event.ticket for i in state.incoming):
        return _INCOMING[kind](state, event)
    if event.ticket != getattr(state.phase, "ticket", None):
        return _too_late(state, event)
    return _handled(_PHASES.get((type(state.phase), kind)), state, event)


Handler = Callable[[State, Any], Step]


def _handled(handler: Handler | None, state: State, event: Event) -> Step:
    if handler is None:
        raise IllegalEvent(state, event)
    return handler(state, event)


def _too_late(state: State, event: Answer) -> Step:
    """An answer that no longer matters, but for what it shows: a node that is there, weights that are on disk."""
    if isinstance(event, LoadReported) and event.node in state.absent:
        return replace(state, absent=state.absent - {event.node}), ()
    if isinstance(event, Stored):
        return keep(state, event.copy), ()
    return state, ()


# Step 1: gather.


def _load_reported(state: State, event: LoadReported) -> Step:
    phase = state.phase
    assert isinstance(phase, Gathering)
    reports = {**phase.reports, event.node: (event.flops, event.bandwidth)}
    awaited = phase.awaited - {event.node}
    state = replace(state, phase=replace(phase, reports=reports, awaited=awaited))
    return (state, ()) if awaited else _decide(state, event.at)


def _gathering_over(state: State, event: Woke) -> Step:
    return _decide(state, event.at)


def _decide(state: State, at: float) -> Step:
    phase = state.phase
    assert isinstance(phase, Gathering)
    nobody = (math.nan, math.nan)
    reports = [phase.reports.get(node, nobody) for node in range(state.nodes)]
    loads = Loads(tuple(r[0] for r in reports), tuple(r[1] for r in reports))
    absent = frozenset(range(state.nodes)) - phase.reports.keys() - phase.attempt.excluded
    state, ticket = issue(replace(state, absent=absent))
    state = replace(state, phase=Deciding(ticket, phase.attempt, loads))
    return state, (Decide(ticket, current(state).ledger, loads),)


# Step 2: what was decided.


def _decided(state: State, event: Decided) -> Step:
    phase = state.phase
    assert isinstance(phase, Deciding)
    decision, attempt = event.decision, phase.attempt
    assignment = Assignment(state.me, decision, phase.loads, attempt.lost_seconds)
    state, ticket = issue(state)
    if decision.node is None:
        return replace(state, phase=Waiting(ticket, attempt, assignment)), (Wake(ticket, decision.idle_seconds),)
    if decision.node == state.me:
        return train(state, attempt, assignment, transfer_seconds=0.0)
    record = current(state)
    offer = Offer(record.epoch, record.round, record.weights.digest, ticket, assignment)
    deadline = state.limits.overdue_after(decision.transfer_seconds, state.setbacks)
    state = replace(state, phase=Sending(ticket, attempt, assignment, decision.node))
    return state, (SendModel(ticket, decision.node, offer), Wake(ticket, deadline))


def _waited(state: State, event: Woke) -> Step:
    phase = state.phase
    assert isinstance(phase, Waiting)
    decision = phase.assignment.decision
    outcome = Outcome(phase.assignment, None, 0.0, 0.0, decision.idle_seconds, phase.attempt.lost_seconds)
    return _commit(state, outcome, current(state).weights.digest, event.at)


# Step 3: send.


def _acknowledged(state: State, event: Acknowledged) -> Step:
    phase = state.phase
    assert isinstance(phase, Sending)
    record = current(state)
    return propose(state, HandOver(record.epoch, record.round, record.weights.digest, phase.to))


def _send_failed(state: State, event: SendFailed | Woke) -> Step:
    phase = state.phase
    assert isinstance(phase, Sending)
    return setback(state, phase.attempt, phase.to, event.at, CancelSend(phase.ticket))


# Step 4: train and store.


def _trained(state: State, event: Trained) -> Step:
    phase = state.phase
    assert isinstance(phase, Training)
    record = current(state)
    state, ticket = issue(state)
    storing = Storing(ticket, phase.attempt, phase.assignment, phase.transfer_seconds, event.seconds, event.digest)
    copy = Copy(event.digest, record.round + 1, record.epoch)
    # Nobody predicts a disk; whoever trains and sends a large model for long may store it for long.
    deadline = state.limits.overdue_after(phase.assignment.decision.round_seconds, state.setbacks)
    return replace(state, phase=storing), (Store(ticket, copy), Wake(ticket, deadline))


def _training_failed(state: State, event: TrainingFailed | Woke) -> Step:
    phase = state.phase
    assert isinstance(phase, Training)
    return setback(state, phase.attempt, state.me, event.at, CancelTraining(phase.ticket))


def _stored(state: State, event: Stored) -> Step:
    phase = state.phase
    assert isinstance(phase, Storing)
    outcome = Outcome(
        phase.assignment, state.me, phase.compute_seconds, phase.transfer_seconds, 0.0, phase.attempt.lost_seconds
    )
    return _commit(keep(state, event.copy), outcome, phase.digest, event.at)


def _store_failed(state: State, event: StoreFailed | Woke) -> Step:
    phase = state.phase
    assert isinstance(phase, Storing)
    return setback(state, phase.attempt, state.me, event.at)


def _commit(state: State, outcome: Outcome, digest: str, at: float) -> Step:
    record = current(state)
    samples = outcome.assignment.decision.samples
    commit = Commit(record.epoch, record.round, record.weights.digest, digest, samples, outcome.seconds, at)
    return propose(state, commit, outcome)


_NEWS: dict[type[Event], Handler] = {
    Started: recovery.started,
    RecordSeen: recovery.record_seen,
    HolderLost: recovery.holder_lost,
    ModelArrived: receiving.model_arrived,
}

_INCOMING: dict[type[Event], Handler] = {
    Stored: receiving.incoming_stored,
    StoreFailed: receiving.incoming_not_stored,
}

_BACKUP: dict[type[Event], Handler] = {
    Acknowledged: receiving.backup_acknowledged,
    SendFailed: receiving.backup_given_up,
    Woke: receiving.backup_given_up,
    Swapped: swapping.backup_marked,
    SwapRefused: swapping.backup_refused,
    RegisterSilent: receiving.backup_in_doubt,
}

_PHASES: dict[tuple[type, type[Event]], Handler] = {
    (Joining, RecordRead): recovery.record_read,
    (Joining, RegisterSilent): swapping.ask_later,
    (Joining, Woke): swapping.ask_now,
    (StandingBy, Woke): recovery.grace_over,
    (Halted, LoadReported): receiving.load_reported_at_rest,
    (Halted, Woke): receiving.woke_at_rest,
    (Gathering, LoadReported): _load_reported,
    (Gathering, Woke): _gathering_over,
    (Deciding, Decided): _decided,
    (Waiting, Woke): _waited,
    (Sending, Acknowledged): _acknowledged,
    (Sending, SendFailed): _send_failed,
    (Sending, Woke): _send_failed,
    (Training, Trained): _trained,
    (Training, TrainingFailed): _training_failed,
    (Training, Woke): _training_failed,
    (Storing, Stored): _stored,
    (Storing, StoreFailed): _store_failed,
    (Storing, Woke): _store_failed,
    (Swapping, Swapped): swapping.swapped,
    (Swapping, SwapRefused): swapping.settle,
    (Swapping, RegisterSilent): swapping.ask_later,
    (Swapping, Woke): swapping.ask_now,
    (Swapping, RecordRead): swapping.settle,
}

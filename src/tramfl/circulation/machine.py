"""The round machine of one node: `advance(state, event) -> (state, commands)`.

The theory. A node is its state; what happens to it is an event; what it wants done is a command. A carrier (a real
site, or a simulated world) carries the commands out and brings back what came of them. `advance` reads no clock and
draws no number, so the same events give the same run, and any run can be played again.

One truth: the record in the register. A node acts on the record alone and changes it by compare-and-swap alone. After
every loss, refusal or doubt it reads the record and is what the record says.

Tickets: every command that is answered carries a ticket, and its answer brings it back. An answer to a ticket that
no longer matters is ignored. An answer to a ticket never given out, or of a kind that does not fit, is an error. So
a deadline, a cancelled training and a late acknowledgement may cross each other, and no flags are needed.

The tables below say what deals with which event, and which phases may follow; `advance` holds every step to them.

    NEWS        may come at any time, whatever the phase
    PHASES      answers to the ticket of the phase
    INCOMING    answers to the ticket of a model on its way to disk
    BACKUP      answers to the ticket of the background copy
    ORDERS      answers to the ticket of an order

The last three go beside the phase. They change it only where they bring a newer record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from tramfl.circulation import backup, holding, leaving, ordering, receiving, recovery, swapping
from tramfl.circulation.events import (
    Acknowledged,
    Answer,
    Decided,
    Event,
    HolderLost,
    LeaveOrdered,
    LoadMissing,
    LoadReported,
    ModelArrived,
    Ordered,
    RecordRead,
    RecordSeen,
    RegisterSilent,
    Rejected,
    SendFailed,
    SendSlowed,
    Started,
    Stored,
    StoreFailed,
    Superseded,
    Swapped,
    SwapRefused,
    Trained,
    TrainingFailed,
    Woke,
)
from tramfl.circulation.phases import (
    Deciding,
    Following,
    Gathering,
    Halted,
    HandingOn,
    Joining,
    Leaving,
    Left,
    Sending,
    Shipping,
    StandingBy,
    State,
    Storing,
    Swapping,
    Training,
    Waiting,
)
from tramfl.circulation.steps import Step, keep

Handler = Callable[[State, Any], Step]


class Rule(NamedTuple):
    """What deals with an event, and the phases that may follow; the phase may also stay as it is."""

    handler: Handler
    leads_to: tuple[type, ...] = ()


STOCK: tuple[type, ...] = (Following, Gathering, Training, Halted, Swapping, Leaving, Left)
"""The phases of a node that is what the record says (`recovery.take_stock`)."""

NEWS: dict[type[Event], Rule] = {
    Started: Rule(recovery.started, (Joining,)),
    RecordSeen: Rule(recovery.record_seen, STOCK),
    HolderLost: Rule(recovery.holder_lost, (*STOCK, StandingBy)),
    ModelArrived: Rule(receiving.model_arrived),
    Ordered: Rule(ordering.ordered),
    LeaveOrdered: Rule(recovery.leave_ordered, (Joining,)),
    Superseded: Rule(leaving.superseded, (Left,)),
}

PHASES: dict[tuple[type, type[Event]], Rule] = {
    (Joining, RecordRead): Rule(recovery.record_read, STOCK),
    (Joining, RegisterSilent): Rule(swapping.ask_later, (Left,)),
    (Joining, Woke): Rule(swapping.ask_now),
    (StandingBy, Woke): Rule(recovery.grace_over, (Swapping, Following)),
    (Gathering, LoadReported): Rule(holding.load_reported, (Deciding,)),
    (Gathering, LoadMissing): Rule(holding.load_missing, (Deciding,)),
    (Gathering, Woke): Rule(holding.gathering_over, (Deciding,)),
    (Deciding, Decided): Rule(holding.decided, (Waiting, Shipping, Training, Sending)),
    (Shipping, Woke): Rule(holding.copy_due, (Gathering, Halted, Swapping)),
    (Waiting, Woke): Rule(holding.waited, (Swapping,)),
    (Sending, Acknowledged): Rule(holding.acknowledged, (Swapping, Gathering, Halted)),
    (Sending, SendFailed): Rule(holding.send_failed, (Gathering, Halted, Swapping)),
    (Sending, SendSlowed): Rule(holding.send_slowed, (Gathering, Halted, Swapping)),
    (Sending, Woke): Rule(holding.send_failed, (Gathering, Halted, Swapping)),
    (Training, Trained): Rule(holding.trained, (Storing,)),
    (Training, Rejected): Rule(holding.training_rejected, (Gathering, Halted, Swapping)),
    (Training, TrainingFailed): Rule(holding.training_failed, (Gathering, Halted, Swapping)),
    (Training, Woke): Rule(holding.training_failed, (Gathering, Halted, Swapping)),
    (Storing, Stored): Rule(holding.stored, (Swapping,)),
    (Storing, StoreFailed): Rule(holding.store_failed, (Gathering, Halted, Swapping)),
    (Storing, Woke): Rule(holding.store_failed, (Gathering, Halted, Swapping)),
    (Swapping, Swapped): Rule(swapping.swapped, STOCK),
    (Swapping, SwapRefused): Rule(swapping.settle, STOCK),
    (Swapping, RecordRead): Rule(swapping.settle, STOCK),
    (Swapping, RegisterSilent): Rule(swapping.ask_later, (Left,)),
    (Swapping, Woke): Rule(swapping.ask_now),
    (Halted, LoadReported): Rule(backup.load_reported_at_rest),
    (Halted, LoadMissing): Rule(backup.load_missing_at_rest),
    (Halted, Woke): Rule(backup.woke_at_rest),
    (Leaving, LoadReported): Rule(leaving.load_reported, (HandingOn, Left)),
    (Leaving, LoadMissing): Rule(leaving.load_missing, (HandingOn, Left)),
    (Leaving, Woke): Rule(leaving.asking_over, (HandingOn, Left)),
    (HandingOn, Acknowledged): Rule(leaving.acknowledged, (Swapping, Leaving, Left)),
    (HandingOn, SendFailed): Rule(leaving.send_failed, (Leaving, Left)),
    (HandingOn, Woke): Rule(leaving.send_failed, (Leaving, Left)),
}

INCOMING: dict[type[Event], Rule] = {
    Stored: Rule(receiving.incoming_stored),
    StoreFailed: Rule(receiving.incoming_not_stored),
}

BACKUP: dict[type[Event], Rule] = {
    Acknowledged: Rule(backup.backup_acknowledged),
    SendFailed: Rule(backup.backup_failed),
    Woke: Rule(backup.backup_failed),
    Swapped: Rule(swapping.backup_marked, STOCK),
    SwapRefused: Rule(swapping.backup_refused, STOCK),
    RegisterSilent: Rule(backup.backup_in_doubt),
}

ORDERS: dict[type[Event], Rule] = {
    RecordRead: Rule(ordering.put, STOCK),
    SwapRefused: Rule(ordering.put, STOCK),
    Swapped: Rule(ordering.done, STOCK),
    RegisterSilent: Rule(ordering.in_doubt),
    Woke: Rule(ordering.again),
}


class IllegalEvent(Exception):
    """An event that cannot happen in this phase: a fault of the carrier."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"node {state.me}: {event!r} cannot happen in {state.phase!r}")


class IllegalStep(AssertionError):
    """A step that the tables do not have: a fault of the machine."""

    def __init__(self, before: State, event: Event, after: State) -> None:
        super().__init__(f"node {before.me}: {event!r} leads from {before.phase!r} to {after.phase!r}")


def advance(state: State, event: Event) -> Step:
    """What the node knows and wants done after `event`."""
    if isinstance(state.phase, Left):
        return state, ()
    rule = NEWS.get(type(event))
    if rule is None:
        assert isinstance(event, Answer)
        if event.ticket not in awaited(state):
            return _too_late(state, event)
        rule = _rule_for(state, event)
    after, commands = rule.handler(state, event)
    kind = type(after.phase)
    if kind is not type(state.phase) and kind not in rule.leads_to:
        raise IllegalStep(state, event, after)
    return after, commands


def awaited(state: State) -> set[int]:
    """The tickets whose answers still matter; a carrier may drop all others."""
    tickets = {i.ticket for i in state.incoming} | {o.ticket for o in state.orders}
    if state.backup is not None:
        tickets.add(state.backup.ticket)
    if (ticket := getattr(state.phase, "ticket", None)) is not None:
        tickets.add(ticket)
    return tickets


def _rule_for(state: State, event: Answer) -> Rule:
    kind, ticket = type(event), event.ticket
    rule: Rule | None
    if any(i.ticket == ticket for i in state.incoming):
        rule = INCOMING.get(kind)
    elif state.backup is not None and ticket == state.backup.ticket:
        rule = BACKUP.get(kind)
    elif any(o.ticket == ticket for o in state.orders):
        rule = ORDERS.get(kind)
    else:
        rule = PHASES.get((type(state.phase), kind))
    if rule is None:
        raise IllegalEvent(state, event)
    return rule


def _too_late(state: State, event: Answer) -> Step:
    """An answer that no longer matters, but for what it shows: a node that is there, weights that are on disk."""
    if event.ticket > state.ticket:
        raise IllegalEvent(state, event)
    if isinstance(event, LoadReported) and event.node in state.absent:
        return replace(state, absent=state.absent - {event.node}), ()
    if isinstance(event, Stored):
        return keep(state, event.copy), ()
    return state, ()

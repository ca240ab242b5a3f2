"""The other end of a transfer.

A model that arrives is stored first and acknowledged after: an acknowledgement is a promise that the record may name
this node among the copies.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.commands import Acknowledge, Refuse, Store
from tramfl.circulation.events import ModelArrived, Stored, StoreFailed
from tramfl.circulation.phases import Copy, Incoming, State
from tramfl.circulation.steps import Step, issue, keep

LEAVING = "the site is about to end"


def model_arrived(state: State, event: ModelArrived) -> Step:
    """Store the model; refuse one that the run has moved past, or any model while this node is leaving."""
    offer = event.offer
    if state.leaving:
        return state, (Refuse(event.sender, offer.ticket, LEAVING),)
    if state.seen is not None:
        record = state.seen.record
        if (offer.epoch, offer.round) < (record.epoch, record.safe.round):
            reason = f"round {offer.round} of epoch {offer.epoch} is past"
            return state, (Refuse(event.sender, offer.ticket, reason),)
    state, ticket = issue(state)
    incoming = (*state.incoming, Incoming(ticket, event.sender, offer, event.seconds, event.at))
    return replace(state, incoming=incoming), (Store(ticket, Copy(offer.digest, offer.round, offer.epoch)),)


def incoming_stored(state: State, event: Stored) -> Step:
    """Acknowledge the model, and keep its assignment until the record names this node."""
    state, incoming = _taken(state, event.ticket)
    offer, state = incoming.offer, keep(state, event.copy)
    if state.leaving:
        return state, (Refuse(incoming.sender, offer.ticket, LEAVING),)
    if offer.assignment is not None:
        state = replace(state, accepted=_assigned(state, incoming))
    return state, (Acknowledge(incoming.sender, offer.ticket),)


def _assigned(state: State, incoming: Incoming) -> Incoming | None:
    """What to train once the record names this node: an assignment counts only from the record's holder.

    A node that has not seen the record which the sender acts on forgets the assignment, and decides the round anew.
    """
    if state.seen is None:
        return None
    record, offer = state.seen.record, incoming.offer
    theirs = (offer.epoch, offer.round, offer.digest, incoming.sender)
    is_holders = theirs == (record.epoch, record.round, record.weights.digest, record.holder)
    return incoming if is_holders else state.accepted


def incoming_not_stored(state: State, event: StoreFailed) -> Step:
    """Refuse the model: the sender must look elsewhere."""
    state, incoming = _taken(state, event.ticket)
    return state, (Refuse(incoming.sender, incoming.offer.ticket, "the weights could not be stored"),)


def _taken(state: State, ticket: int) -> tuple[State, Incoming]:
    (incoming,) = (i for i in state.incoming if i.ticket == ticket)
    rest = tuple(i for i in state.incoming if i.ticket != ticket)
    return replace(state, incoming=rest), incoming

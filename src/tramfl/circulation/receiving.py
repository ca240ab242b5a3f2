"""The other end of a transfer, and the background copy.

What arrives is stored first and acknowledged after: an acknowledgement is a promise that the record may name
this node among the copies.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.changes import MarkSafe
from tramfl.circulation.commands import Acknowledge, CancelSend, Refuse, SendModel, Store, Swap, Wake
from tramfl.circulation.events import (
    Acknowledged,
    LoadReported,
    ModelArrived,
    RegisterSilent,
    SendFailed,
    Stored,
    StoreFailed,
    Woke,
)
from tramfl.circulation.phases import Assignment, Backup, Copy, Halted, Incoming, Offer, State
from tramfl.circulation.rounds import Step, current, halt, issue, keep
from tramfl.notation import NodeId


def model_arrived(state: State, event: ModelArrived) -> Step:
    """A model is here: store it, unless the run has moved past it."""
    offer = event.offer
    if state.seen is not None:
        record = state.seen.record
        if (offer.epoch, offer.round) < (record.epoch, record.safe.round):
            reason = f"round {offer.round} of epoch {offer.epoch} is past"
            return state, (Refuse(event.sender, offer.ticket, reason),)
    state, ticket = issue(state)
    incoming = (*state.incoming, Incoming(ticket, event.sender, offer, event.seconds))
    return replace(state, incoming=incoming), (Store(ticket, Copy(offer.digest, offer.round, offer.epoch)),)


def incoming_stored(state: State, event: Stored) -> Step:
    """It is on disk: acknowledge it, and keep its assignment until the record names me."""
    state, incoming = _taken(state, event.ticket)
    offer, state = incoming.offer, keep(state, event.copy)
    if offer.assignment is not None:
        state = replace(state, accepted=incoming)
    return state, (Acknowledge(incoming.sender, offer.ticket),)


def incoming_not_stored(state: State, event: StoreFailed) -> Step:
    """It could not be written: the sender must look elsewhere."""
    state, incoming = _taken(state, event.ticket)
    return state, (Refuse(incoming.sender, incoming.offer.ticket, "the weights could not be stored"),)


def _taken(state: State, ticket: int) -> tuple[State, Incoming]:
    (incoming,) = (i for i in state.incoming if i.ticket == ticket)
    rest = tuple(i for i in state.incoming if i.ticket != ticket)
    return replace(state, incoming=rest), incoming


def start_backup(state: State, assignment: Assignment) -> Step:
    """Ship a background copy where too much work lies at this node alone."""
    record = current(state)
    rounds = record.round - record.safe.round
    seconds = record.ledger.seconds - record.safe.ledger.seconds
    enough = rounds >= state.limits.unsafe_rounds or seconds >= state.limits.unsafe_seconds
    # Of a run that has come to rest, nothing shall lie at one node alone.
    enough = enough or record.status != "running"
    return _ship(state, _links(state, assignment)) if enough else (state, ())


def load_reported_at_rest(state: State, event: LoadReported) -> Step:
    """Somebody is there who could take a copy."""
    phase = state.phase
    assert isinstance(phase, Halted)
    links = {**phase.links, event.node: event.bandwidth} if event.bandwidth > 0 else phase.links
    return replace(state, phase=replace(phase, links=links)), ()


def woke_at_rest(state: State, event: Woke) -> Step:
    """Send a copy to the best of those who answered, and see later whether that was enough."""
    phase = state.phase
    assert isinstance(phase, Halted)
    if state.backup is not None and state.backup.in_doubt_at is not None:
        # Nobody else will move this record: ask the register again, which makes a swap once at most.
        state, shipped = _mark_safe(state)
    else:
        state, shipped = _ship(state, phase.links)
    state, commands = halt(state)
    return state, (*shipped, *commands)


def _ship(state: State, links: dict[NodeId, float]) -> Step:
    """Send the newest weights to another node, unless that is done or under way."""
    record = current(state)
    if state.backup is not None or record.weights.digest == record.safe.digest or not links:
        return state, ()
    # Whoever did not take the last copy is asked again only after everybody else.
    to = max(links, key=lambda n: (n not in state.unfit, links[n], -n))
    state, ticket = issue(state)
    change = MarkSafe(
        record.epoch,
        record.round,
        record.weights.digest,
        tuple(sorted((state.me, to))),
        record.ledger,
        record.weights.since,
    )
    offer = Offer(record.epoch, record.round, record.weights.digest, ticket, None)
    deadline = state.limits.overdue_after(state.model_bits / links[to], 0)
    return replace(state, backup=Backup(ticket, change)), (SendModel(ticket, to, offer), Wake(ticket, deadline))


def _links(state: State, assignment: Assignment) -> dict[NodeId, float]:
    """The bandwidth from here to each node that reported, as far as the round's decision knows it."""
    loads = assignment.loads
    if assignment.holder == state.me:
        return {n: loads.bandwidth[n] for n in loads.reporting if n != state.me}
    # Its loads are about the links of the node that decided; one of them leads here.
    return {assignment.holder: loads.bandwidth[state.me]}


def backup_acknowledged(state: State, event: Acknowledged) -> Step:
    """The copy is on disk at its peer: let the record say so."""
    return _mark_safe(state)


def _mark_safe(state: State) -> Step:
    """Put the copy to the record, if it is still news there."""
    backup, seen = state.backup, state.seen
    assert backup is not None
    assert seen is not None
    record = backup.change.applied(seen.record, state.me)
    if record is None:
        return replace(state, backup=None), ()
    state, ticket = issue(state)
    state = replace(state, backup=replace(backup, ticket=ticket, in_doubt_at=None))
    return state, (Swap(ticket, seen.revision, record, backup.change.epoch),)


def backup_given_up(state: State, event: SendFailed | Woke) -> Step:
    """No copy this time; a later commit will try again, or the holder at rest."""
    backup = state.backup
    assert backup is not None
    cancel = (CancelSend(event.ticket),) if isinstance(event, Woke) else ()
    unfit = state.unfit | (set(backup.change.copies) - {state.me})
    return replace(state, backup=None, unfit=unfit), cancel


def backup_in_doubt(state: State, event: RegisterSilent) -> Step:
    """The copy may be marked, or may be yet: it must stay on disk until the record has moved."""
    backup, seen = state.backup, state.seen
    assert backup is not None
    assert seen is not None
    return replace(state, backup=replace(backup, ticket=0, in_doubt_at=seen.revision)), ()

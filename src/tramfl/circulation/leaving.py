"""How a node leaves: no other node has to wait for its lease, no epoch ends, and no committed round is lost.

A node that is to end drops the round in hand. If it does not hold the model, it departs. If it does, it asks which
nodes are there, sends one of them the newest weights, makes it the holder and departs. A node whose disk has the
newest weights already is preferred, then the one with the best link. Where that node fails, the others are asked
again, since the model may have been sent before they answered. Two things can end this early: no node takes the
model, or the register is silent. Then the node departs as it is.

A departing node gives its lease up, so that the others know at once. It keeps the lease where its disk alone has the
newest weights, or may have: the others could only go on from older ones, and a quick return loses nothing.

A node that is a member no more leaves in the same way as soon as it learns so.

A stopped run needs no holder. Its model is handed on only while the newest weights lie on this disk alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.changes import HandOver
from tramfl.circulation.commands import AskLoads, CancelSend, Depart, SendModel, Wake
from tramfl.circulation.events import Acknowledged, LoadMissing, LoadReported, SendFailed, Superseded, Woke
from tramfl.circulation.phases import HandingOn, Leaving, Left, Offer, State, Swapping
from tramfl.circulation.steps import Step, abandon, current, issue, propose
from tramfl.notation import NodeId


def leave(state: State) -> Step:
    """Depart, or first find the next holder."""
    record = current(state)
    ended = record.status == "stopped" and record.newest_is_safe
    return depart(state) if record.holder != state.me or ended else _ask(state, frozenset())


def _ask(state: State, tried: frozenset[NodeId]) -> Step:
    others = tuple(node for node in current(state).present if node != state.me and node not in tried)
    if not others:
        return depart(state)
    state, ticket = issue(state)
    phase = Leaving(ticket, {}, frozenset(others) - state.absent, tried)
    ask = AskLoads(ticket, current(state).round + 1, others)
    return replace(state, phase=phase), (ask, Wake(ticket, state.limits.load_reply))


def load_reported(state: State, event: LoadReported) -> Step:
    """Send the model at once to a node that has the weights, else once no awaited node is missing."""
    phase = state.phase
    assert isinstance(phase, Leaving)
    links = {**phase.links, event.node: event.bandwidth} if event.bandwidth > 0 else phase.links
    state = replace(state, phase=replace(phase, links=links))
    if event.node in links and event.node in current(state).weights.copies:
        return _hand_on(state, links, phase.tried)
    return _without(state, event.node)


def load_missing(state: State, event: LoadMissing) -> Step:
    """Do not wait for that node; send the model once no awaited node is missing."""
    return _without(state, event.node)


def asking_over(state: State, event: Woke) -> Step:
    """Send the model to the best of the nodes that reported; depart where none did."""
    phase = state.phase
    assert isinstance(phase, Leaving)
    return _hand_on(state, phase.links, phase.tried)


def _without(state: State, node: NodeId) -> Step:
    phase = state.phase
    assert isinstance(phase, Leaving)
    awaited = phase.awaited - {node}
    state = replace(state, phase=replace(phase, awaited=awaited))
    # An absent node may be back: with all others gone, the deadline decides.
    return (state, ()) if awaited or not phase.awaited else _hand_on(state, phase.links, phase.tried)


def _hand_on(state: State, links: dict[NodeId, float], tried: frozenset[NodeId]) -> Step:
    record = current(state)
    links = {node: bandwidth for node, bandwidth in links.items() if record.is_member(node)}
    if not links:
        return depart(state)
    to = max(links, key=lambda n: (n in record.weights.copies, links[n], -n))
    rest = {node: bandwidth for node, bandwidth in links.items() if node != to}
    state, ticket = issue(state)
    offer = Offer(record.epoch, record.round, record.weights.digest, ticket, None)
    deadline = state.limits.overdue_after(state.model_bits / links[to], 0)
    state = replace(state, phase=HandingOn(ticket, to, rest, tried))
    return state, (SendModel(ticket, to, offer), Wake(ticket, deadline))


def acknowledged(state: State, event: Acknowledged) -> Step:
    """Make the receiver the holder, then depart; try the next node where it was removed meanwhile."""
    phase = state.phase
    assert isinstance(phase, HandingOn)
    record = current(state)
    if not record.is_member(phase.to):
        return _try_next(state, phase)
    return propose(state, HandOver(record.epoch, record.round, record.weights.digest, phase.to))


def send_failed(state: State, event: SendFailed | Woke) -> Step:
    """Send the model to the next best node; where none is left, ask the nodes that have not been tried."""
    phase = state.phase
    assert isinstance(phase, HandingOn)
    state, commands = _try_next(state, phase)
    return state, (CancelSend(phase.ticket, overdue=isinstance(event, Woke)), *commands)


def _try_next(state: State, phase: HandingOn) -> Step:
    tried = phase.tried | {phase.to}
    return _hand_on(state, phase.links, tried) if phase.links else _ask(state, tried)


def depart(state: State, *, in_doubt: bool = False) -> Step:
    """End this node's part. `in_doubt`: a change of this node may yet land in the record."""
    record = state.seen.record if state.seen is not None else None
    alone = record is not None and record.holder == state.me and record.weights.copies == (state.me,)
    phase, to = state.phase, None
    if isinstance(phase, Swapping) and isinstance(phase.change, HandOver) and not in_doubt:
        to = phase.change.to
    removed = record is not None and not record.is_member(state.me)
    depart = Depart(release=not (in_doubt or alone), to=to, removed=removed)
    return replace(state, phase=Left(), leaving=True), (depart,)


def superseded(state: State, event: Superseded) -> Step:
    """Cancel what is in hand and depart: a later life of this node goes on."""
    cancel = abandon(state.phase)
    return replace(state, phase=Left(), leaving=True), (*cancel, Depart(release=False, superseded=True))

"""The background copy: no work lies on one disk alone for long, and nothing of a run at rest does.

A holder that stays put sends a copy of its newest weights to another node after some rounds, beside its own work, and
marks it safe in the record once it is acknowledged. A holder with `unsafe_rounds` trained rounds that only it has
trains no further before a copy is safe, so that no loss of one node costs more rounds than that. Only where no other
node reports does it go on: there is none to send a copy to. A holder at rest ships at once, and asks again and again
until some node has taken the copy.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.changes import MarkSafe
from tramfl.circulation.commands import AskLoads, CancelSend, SendModel, Swap, Wake
from tramfl.circulation.doubting import noted
from tramfl.circulation.events import Acknowledged, LoadMissing, LoadReported, RegisterSilent, SendFailed, Woke
from tramfl.circulation.phases import Assignment, Backup, Halted, Offer, Shipping, State
from tramfl.circulation.steps import Step, current, issue
from tramfl.notation import NodeId


def start_backup(state: State, assignment: Assignment) -> Step:
    """Ship a background copy where too much work lies at this node alone."""
    record = current(state)
    seconds = record.ledger.seconds - record.safe.ledger.seconds
    # Half of the bound, rounded up: the copy travels while this node trains the rest.
    enough = record.unsafe_rounds >= (state.limits.unsafe_rounds + 1) // 2 or seconds >= state.limits.unsafe_seconds
    # A run at rest must lie on two disks.
    enough = enough or record.status != "running"
    return _ship(state, _links(state, assignment)) if enough else (state, ())


def hold_back(state: State, assignment: Assignment) -> Step:
    """Train no further before a copy is safe: ship one, unless one is on its way."""
    state, shipped = _ship(state, _links(state, assignment))
    state, ticket = issue(state)
    return replace(state, phase=Shipping(ticket)), (*shipped, Wake(ticket, state.limits.load_reply))


def halt(state: State) -> Step:
    """The run is not running: rest, but not before another node has the newest weights too."""
    record = current(state)
    others = tuple(node for node in record.present if node != state.me)
    if record.newest_is_safe or not others:
        return replace(state, phase=Halted()), ()
    state, ticket = issue(state)
    ask = AskLoads(ticket, record.round + 1, others)
    return replace(state, phase=Halted(ticket)), (ask, Wake(ticket, state.limits.load_reply))


def load_reported_at_rest(state: State, event: LoadReported) -> Step:
    """Note that the node is there to take a copy."""
    phase = state.phase
    assert isinstance(phase, Halted)
    links = {**phase.links, event.node: event.bandwidth} if event.bandwidth > 0 else phase.links
    return replace(state, phase=replace(phase, links=links)), ()


def load_missing_at_rest(state: State, event: LoadMissing) -> Step:
    """Nothing: the question is asked again."""
    return state, ()


def woke_at_rest(state: State, event: Woke) -> Step:
    """Send a copy to the nearest node that reported, and ask all nodes again until a copy is safe."""
    phase = state.phase
    assert isinstance(phase, Halted)
    if state.backup is not None and state.backup.in_doubt_at is not None:
        # No other node will move this record: ask the register again, which makes a swap once at most.
        state, shipped = mark_safe(state)
    else:
        state, shipped = _ship(state, phase.links)
    state, commands = halt(state)
    return state, (*shipped, *commands)


def _ship(state: State, links: dict[NodeId, float]) -> Step:
    """Send the newest weights to another node, unless that is done or under way."""
    record = current(state)
    links = {node: bandwidth for node, bandwidth in links.items() if record.is_member(node)}
    if state.backup is not None or record.newest_is_safe or not links:
        return state, ()
    # A node that did not take its last copy is asked again only after every other node: it may never take one. One
    # that refused this node's work comes last of all.
    to = max(links, key=lambda n: (n not in state.doubted_by, n not in state.unfit, links[n], -n))
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
    deadline = state.limits.overdue_after(state.model_bits / links[to], state.setbacks)
    return replace(state, backup=Backup(ticket, change)), (SendModel(ticket, to, offer), Wake(ticket, deadline))


def _links(state: State, assignment: Assignment) -> dict[NodeId, float]:
    """The bandwidth from here to each node that reported, as far as the round's decision knows it."""
    loads = assignment.loads
    if assignment.holder == state.me:
        return {n: loads.bandwidth[n] for n in loads.reporting if n != state.me}
    # Its loads are about the links of the node that decided; one of them leads here.
    return {assignment.holder: loads.bandwidth[state.me]}


def backup_acknowledged(state: State, event: Acknowledged) -> Step:
    """Mark the copy safe in the record."""
    return mark_safe(state)


def mark_safe(state: State) -> Step:
    """Put the mark to the record; forget it where newer weights are safe there."""
    backup, seen = state.backup, state.seen
    assert backup is not None
    assert seen is not None
    record = backup.change.applied(seen.record, state.me)
    if record is None:
        return replace(state, backup=None), ()
    state, ticket = issue(state)
    state = replace(state, backup=replace(backup, ticket=ticket, in_doubt_at=None))
    return state, (Swap(ticket, seen.revision, record, backup.change.epoch),)


def backup_failed(state: State, event: SendFailed | Woke) -> Step:
    """Forget the copy; a later commit tries again, or the holder at rest."""
    backup = state.backup
    assert backup is not None
    cancel = (CancelSend(event.ticket, overdue=True),) if isinstance(event, Woke) else ()
    (receiver,) = set(backup.change.copies) - {state.me}
    state = noted(state, event, receiver)
    return replace(state, backup=None, unfit=state.unfit | {receiver}, setbacks=state.setbacks + 1), cancel


def backup_in_doubt(state: State, event: RegisterSilent) -> Step:
    """Keep the copy until the record has moved: it may be marked, or may be yet."""
    backup, seen = state.backup, state.seen
    assert backup is not None
    assert seen is not None
    return replace(state, backup=replace(backup, ticket=0, in_doubt_at=seen.revision)), ()

"""The holder's round: gather loads, decide, then skip, or send, or train, store and commit.

    Gathering -> Deciding -> Waiting                               nobody trains: commit the round after H
                          -> Sending                               another node trains: hand the model over
                          -> Training -> Storing                   this node trains: commit the new weights

A step that fails or is overdue is a setback: the round is decided again without the node that failed. Every
deadline is a multiple of the predicted time plus a slack, and doubles with every setback in a row.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from tramfl.circulation.backup import halt
from tramfl.circulation.changes import Commit, HandOver
from tramfl.circulation.commands import (
    AskLoads,
    CancelSend,
    CancelTraining,
    Command,
    Decide,
    SendModel,
    Store,
    Train,
    Wake,
)
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    LoadMissing,
    LoadReported,
    SendFailed,
    Stored,
    StoreFailed,
    Trained,
    TrainingFailed,
    Woke,
)
from tramfl.circulation.phases import (
    Assignment,
    Attempt,
    Copy,
    Deciding,
    Gathering,
    Offer,
    Outcome,
    Sending,
    State,
    Storing,
    Training,
    Waiting,
)
from tramfl.circulation.steps import Step, current, issue, keep, propose
from tramfl.notation import Digest, Loads, NodeId, Outlook

# Step 1: gather.


def gather(state: State, attempt: Attempt) -> Step:
    """Ask every node for its load; halt where the run is not running."""
    if current(state).status != "running":
        return halt(state)
    state, ticket = issue(state)
    asked = frozenset(range(state.nodes)) - attempt.excluded
    phase = Gathering(ticket, attempt, {}, asked - state.absent)
    # Nobody waits for an absent node: only if it is asked first can it count in the round in which it is back.
    order = tuple(sorted(asked, key=lambda node: (node not in state.absent, node)))
    ask = AskLoads(ticket, current(state).round + 1, order)
    return replace(state, phase=phase), (ask, Wake(ticket, state.limits.load_reply))


def load_reported(state: State, event: LoadReported) -> Step:
    """Note the report; decide once no awaited node is missing."""
    phase = state.phase
    assert isinstance(phase, Gathering)
    reports = {**phase.reports, event.node: (event.flops, event.bandwidth, event.outlook)}
    return _without(replace(state, phase=replace(phase, reports=reports)), event.node)


def reports_noted(state: State, ticket: int, reports: dict[NodeId, tuple[float, float, Outlook | None]]) -> State:
    """The state after these reports, had they come one by one; at least one more must be awaited.

    A carrier that has the reports of a thousand nodes at one moment saves a thousand steps.
    """
    phase = state.phase
    if not isinstance(phase, Gathering) or phase.ticket != ticket:
        return state
    awaited = phase.awaited.difference(reports)
    assert awaited, "the last report decides: it must come as an event"
    return replace(state, phase=replace(phase, reports={**phase.reports, **reports}, awaited=awaited))


def load_missing(state: State, event: LoadMissing) -> Step:
    """Do not wait for that node; decide once no awaited node is missing."""
    return _without(state, event.node)


def _without(state: State, node: NodeId) -> Step:
    phase = state.phase
    assert isinstance(phase, Gathering)
    awaited = phase.awaited - {node}
    state = replace(state, phase=replace(phase, awaited=awaited))
    # With no report at all there is nothing to decide on before the deadline.
    return (state, ()) if awaited or not phase.reports else _decide(state)


def gathering_over(state: State, event: Woke) -> Step:
    """Decide on the reports that came in time."""
    return _decide(state)


def _decide(state: State) -> Step:
    phase = state.phase
    assert isinstance(phase, Gathering)
    nobody = (math.nan, math.nan, None)
    reports = [phase.reports.get(node, nobody) for node in range(state.nodes)]
    flops, bandwidth, outlooks = zip(*reports, strict=True)
    loads = Loads(flops, bandwidth, outlooks if any(outlooks) else ())
    absent = frozenset(range(state.nodes)).difference(phase.reports, phase.attempt.excluded)
    state, ticket = issue(replace(state, absent=absent))
    state = replace(state, phase=Deciding(ticket, phase.attempt, loads))
    return state, (Decide(ticket, current(state).ledger, loads),)


# Step 2: carry out what was decided.


def decided(state: State, event: Decided) -> Step:
    """Wait where nobody trains, train where this node does, else send the model."""
    phase = state.phase
    assert isinstance(phase, Deciding)
    decision, attempt = event.decision, phase.attempt
    # The outlooks were for the decision alone. Of many nodes they are too long to travel with the model.
    loads = replace(phase.loads, outlook=()) if phase.loads.outlook else phase.loads
    assignment = Assignment(state.me, decision, loads, attempt.lost_seconds)
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


def waited(state: State, event: Woke) -> Step:
    """Commit the skipped round."""
    phase = state.phase
    assert isinstance(phase, Waiting)
    decision = phase.assignment.decision
    outcome = Outcome(phase.assignment, None, 0.0, 0.0, decision.idle_seconds, phase.attempt.lost_seconds)
    return _commit(state, outcome, current(state).weights.digest, event.at)


# Step 3: send.


def acknowledged(state: State, event: Acknowledged) -> Step:
    """Make the receiver the holder."""
    phase = state.phase
    assert isinstance(phase, Sending)
    record = current(state)
    return propose(state, HandOver(record.epoch, record.round, record.weights.digest, phase.to))


def send_failed(state: State, event: SendFailed | Woke) -> Step:
    """Decide the round again, without the receiver."""
    phase = state.phase
    assert isinstance(phase, Sending)
    cancel = CancelSend(phase.ticket, overdue=isinstance(event, Woke))
    return _setback(state, phase.attempt, phase.to, event.at, cancel)


# Step 4: train and store.


def train(state: State, attempt: Attempt, assignment: Assignment, transfer_seconds: float) -> Step:
    """Begin to train what was assigned."""
    record = current(state)
    state, ticket = issue(state)
    state = replace(state, phase=Training(ticket, attempt, assignment, transfer_seconds))
    deadline = state.limits.overdue_after(assignment.decision.compute_seconds, state.setbacks)
    return state, (Train(ticket, record.weights.digest, record.round + 1, assignment), Wake(ticket, deadline))


def trained(state: State, event: Trained) -> Step:
    """Store the new weights."""
    phase = state.phase
    assert isinstance(phase, Training)
    record = current(state)
    state, ticket = issue(state)
    storing = Storing(ticket, phase.attempt, phase.assignment, phase.transfer_seconds, event.seconds, event.digest)
    copy = Copy(event.digest, record.round + 1, record.epoch)
    # Nobody predicts a disk; a node that trains and sends a large model for long may store it for long.
    deadline = state.limits.overdue_after(phase.assignment.decision.round_seconds, state.setbacks)
    return replace(state, phase=storing), (Store(ticket, copy), Wake(ticket, deadline))


def training_failed(state: State, event: TrainingFailed | Woke) -> Step:
    """Decide the round again, without this node."""
    phase = state.phase
    assert isinstance(phase, Training)
    cancel = CancelTraining(phase.ticket, overdue=isinstance(event, Woke))
    return _setback(state, _with_transfer(phase), state.me, event.at, cancel)


def stored(state: State, event: Stored) -> Step:
    """Commit the trained round."""
    phase = state.phase
    assert isinstance(phase, Storing)
    outcome = Outcome(
        phase.assignment, state.me, phase.compute_seconds, phase.transfer_seconds, 0.0, phase.attempt.lost_seconds
    )
    return _commit(keep(state, event.copy), outcome, phase.digest, event.at)


def store_failed(state: State, event: StoreFailed | Woke) -> Step:
    """Decide the round again, without this node."""
    phase = state.phase
    assert isinstance(phase, Storing)
    return _setback(state, _with_transfer(phase), state.me, event.at)


def _commit(state: State, outcome: Outcome, digest: Digest, at: float) -> Step:
    record = current(state)
    samples = outcome.assignment.decision.samples
    commit = Commit(record.epoch, record.round, record.weights.digest, digest, samples, outcome.seconds, at)
    return propose(state, commit, outcome)


def _with_transfer(phase: Training | Storing) -> Attempt:
    """The attempt with the transfer that brought the model here among its losses: its time has passed, too."""
    return replace(phase.attempt, lost_seconds=phase.attempt.lost_seconds + phase.transfer_seconds)


def _setback(state: State, attempt: Attempt, failed: NodeId, at: float, *cancel: Command) -> Step:
    again = Attempt(at, attempt.lost_seconds + (at - attempt.began), attempt.excluded | {failed})
    state, commands = gather(replace(state, setbacks=state.setbacks + 1), again)
    return state, (*cancel, *commands)

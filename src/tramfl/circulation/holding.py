"""The holder's round: gather loads, decide, then skip, or send, or train, store and commit.

    Gathering -> Deciding -> Waiting                               nobody trains: commit the round after H
                          -> Shipping                              too much work lies here alone: copy it first
                          -> Sending                               another node trains: hand the model over
                          -> Training -> Storing                   this node trains: commit the new weights

A step that fails or is overdue is a setback: the round is decided again without the node that failed. Every
deadline is a multiple of the predicted time plus a slack, and doubles with every setback in a row. A hop that is
given up for its pace alone is a setback too. A policy that weighs nodes may choose its receiver again, over a link as
slow as it was seen: so its labels stay in the balance.
"""

from __future__ import annotations

import math
import statistics

from msgspec.structs import replace

from tramfl.circulation.backing_off import failed as has_failed
from tramfl.circulation.backing_off import left_out
from tramfl.circulation.backup import halt, hold_back, mark_safe
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
from tramfl.circulation.doubting import is_forsaken, is_stuck, noted, resign
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    LoadMissing,
    LoadReported,
    Rejected,
    SendFailed,
    SendSlowed,
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
    Shipping,
    SlowHop,
    State,
    Storing,
    Training,
    Waiting,
)
from tramfl.circulation.steps import Step, current, issue, keep, propose
from tramfl.notation import Decision, Digest, Loads, NodeId, Outlook

# Step 1: gather.


def gather(state: State, attempt: Attempt) -> Step:
    """Ask every node for its load; halt where the run is not running, resign where all others refuse the weights."""
    if current(state).status != "running":
        return halt(state)
    if is_forsaken(state):
        return resign(state)
    excluded = left_out(state, current(state).round, attempt.began)
    # A back-off that counts rounds would not end: ask all nodes but those that have refused.
    excluded = excluded & state.doubted_by if is_stuck(state) else excluded
    excluded = excluded.difference(hop.to for hop in attempt.slow)
    attempt = replace(attempt, excluded=attempt.excluded | excluded)
    state, ticket = issue(state)
    asked = frozenset(current(state).present) - attempt.excluded
    phase = Gathering(ticket, attempt, {}, asked - state.absent)
    # Nobody waits for an absent node: only if it is asked first can it count in the round in which it is back.
    order = (*sorted(asked & state.absent), *sorted(asked - state.absent))
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
    record = current(state)
    reports = [phase.reports.get(node, nobody) for node in range(len(record.members))]
    flops, reported, outlooks = zip(*reports, strict=True)
    bandwidth = list(reported)
    for hop in phase.attempt.slow:
        bandwidth[hop.to] = min(bandwidth[hop.to], hop.bandwidth)
    loads = Loads(flops, tuple(bandwidth), outlooks if any(outlooks) else ())
    absent = frozenset(record.present).difference(phase.reports, phase.attempt.excluded)
    state, ticket = issue(replace(state, absent=absent))
    state = replace(state, phase=Deciding(ticket, phase.attempt, loads))
    # A node that has the weights is sent none, so it costs no transfer, like the holder itself.
    having, links = _having(state, loads), list(loads.bandwidth)
    for node in having:
        links[node] = math.inf
    return state, (Decide(ticket, current(state).ledger, replace(loads, bandwidth=tuple(links))),)


def _having(state: State, loads: Loads) -> tuple[NodeId, ...]:
    """The other nodes that reported and have the newest weights, as the record says."""
    return tuple(node for node in current(state).weights.copies if node != state.me and loads.has(node))


# Step 2: carry out what was decided.


def decided(state: State, event: Decided) -> Step:
    """Wait where nobody trains, train where this node may train on, else send the model."""
    phase = state.phase
    assert isinstance(phase, Deciding)
    attempt = phase.attempt
    decision = _explained(event.decision, attempt)
    # The outlooks were for the decision alone. Of many nodes they are too long to travel with the model.
    loads = replace(phase.loads, outlook=()) if phase.loads.outlook else phase.loads
    assignment = Assignment(
        state.me,
        decision,
        loads,
        attempt.lost_seconds,
        _having(state, loads),
        attempt.rejected,
        _overhead(state, attempt, event.at, 0.0),
    )
    state, ticket = issue(state)
    if decision.node is None:
        return replace(state, phase=Waiting(ticket, attempt, assignment)), (Wake(ticket, decision.idle_seconds),)
    if decision.node == state.me:
        # Sending the model on makes its work safe; training on here adds to what lies at this node alone.
        if current(state).unsafe_rounds >= state.limits.unsafe_rounds and assignment.others:
            return hold_back(state, assignment)
        return train(state, attempt, assignment, transfer_seconds=0.0)
    record = current(state)
    offer = Offer(record.epoch, record.round, record.weights.digest, ticket, assignment)
    # Not a multiple of the time at the slow pace, which could be hours: so slow a link may be dead.
    predicted = min(decision.transfer_seconds, _usual_seconds(attempt, decision.node))
    deadline = state.limits.overdue_after(predicted, state.setbacks)
    state = replace(state, phase=Sending(ticket, attempt, assignment, decision.node))
    return state, (SendModel(ticket, decision.node, offer), Wake(ticket, deadline))


def _usual_seconds(attempt: Attempt, to: NodeId) -> float:
    """What a hop was predicted to take before it was given up for its pace; infinite where it was not."""
    return next((hop.usual_seconds for hop in attempt.slow if hop.to == to), math.inf)


def _explained(decision: Decision, attempt: Attempt) -> Decision:
    """The decision; its reason says why it was made again, where a hop was given up for its pace."""
    if not attempt.slow:
        return decision
    hops = ", and ".join(f"the hop to node {hop.to} was given up: {hop.reason}" for hop in attempt.slow)
    return replace(decision, reason=f"{decision.reason.removesuffix('.')}; decided again, as {hops}.")


def copy_due(state: State, event: Woke) -> Step:
    """Ask all nodes again once no copy is on its way: it is safe by now, or another node must take one."""
    commands: tuple[Command, ...] = ()
    if state.backup is not None and state.backup.in_doubt_at is not None:
        # No other node will move this record: ask the register again, which makes a swap once at most.
        state, commands = mark_safe(state)
    if state.backup is None:
        state, asked = gather(state, Attempt(event.at, max(0.0, event.at - current(state).weights.since)))
        return state, (*commands, *asked)
    state, ticket = issue(state)
    return replace(state, phase=Shipping(ticket)), (*commands, Wake(ticket, state.limits.load_reply))


def waited(state: State, event: Woke) -> Step:
    """Commit the skipped round."""
    phase = state.phase
    assert isinstance(phase, Waiting)
    decision = phase.assignment.decision
    idle, attempt = decision.idle_seconds, phase.attempt
    overhead = _overhead(state, attempt, event.at, idle)
    outcome = Outcome(phase.assignment, None, 0.0, 0.0, idle, attempt.lost_seconds, overhead)
    return _commit(state, outcome, current(state).weights.digest, event.at)


# Step 3: send.


def acknowledged(state: State, event: Acknowledged) -> Step:
    """Make the receiver the holder; decide the round again where it was removed meanwhile."""
    phase = state.phase
    assert isinstance(phase, Sending)
    record = current(state)
    if not record.is_member(phase.to):
        return _setback(state, phase.attempt, phase.to, event.at)
    return propose(state, HandOver(record.epoch, record.round, record.weights.digest, phase.to))


def send_failed(state: State, event: SendFailed | Woke) -> Step:
    """Decide the round again, without the receiver."""
    phase = state.phase
    assert isinstance(phase, Sending)
    cancel = CancelSend(phase.ticket, overdue=isinstance(event, Woke))
    return _setback(noted(state, event, phase.to), phase.attempt, phase.to, event.at, cancel)


def send_slowed(state: State, event: SendSlowed) -> Step:
    """Decide the round again, the slow link known, where a round elsewhere is predicted to end sooner."""
    phase = state.phase
    assert isinstance(phase, Sending)
    waiting = event.seconds_left + phase.assignment.decision.compute_seconds
    elsewhere = seconds_elsewhere(phase.assignment, phase.to, state.me, state.model_bits)
    if elsewhere is None or waiting <= state.limits.detour * elsewhere:
        return state, ()
    reason = f"at this pace the round takes {waiting:.3g} s more, and elsewhere {elsewhere:.3g} s"
    cancel, decision = CancelSend(phase.ticket, reason=reason), phase.assignment.decision
    if len(decision.candidates) == 1:
        # A policy that does not weigh nodes against each other would not see that the link is slow.
        return _setback(state, phase.attempt, phase.to, event.at, cancel)
    usual = min(decision.transfer_seconds, _usual_seconds(phase.attempt, phase.to))
    hop = SlowHop(phase.to, state.model_bits / event.seconds_left, usual, reason)
    others = tuple(other for other in phase.attempt.slow if other.to != phase.to)
    attempt = replace(phase.attempt, slow=(*others, hop))
    return _setback(state, attempt, phase.to, event.at, cancel, may_return=True)


def seconds_elsewhere(assignment: Assignment, to: NodeId, me: NodeId, model_bits: float) -> float | None:
    """Predicted seconds, at the next best node, of a round that is sent to a node; None where there is no other."""
    decision, loads = assignment.decision, assignment.loads
    others = [c for c in decision.candidates if c.node != to and c.feasible and c.samples >= 1]
    if others:
        best = max(others, key=lambda c: c.score)
        return best.compute_seconds + best.transfer_seconds
    # The policy weighed one node alone, and may choose any of the others next: the same work at a middling one.
    having = (me, *assignment.having)
    seconds = [
        decision.compute_seconds * loads.flops[to] / loads.flops[node]
        + (0.0 if node in having else model_bits / loads.bandwidth[node])
        for node in loads.reporting
        if node != to
    ]
    return statistics.median(seconds) if seconds else None


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


def training_rejected(state: State, event: Rejected) -> Step:
    """Decide the round again, without this node; its weights are not committed."""
    phase = state.phase
    assert isinstance(phase, Training)
    attempt = _with_transfer(phase)
    return _setback(state, replace(attempt, rejected=(*attempt.rejected, state.me)), state.me, event.at)


def stored(state: State, event: Stored) -> Step:
    """Commit the trained round."""
    phase = state.phase
    assert isinstance(phase, Storing)
    compute, attempt = phase.compute_seconds, phase.attempt
    overhead = _overhead(state, attempt, event.at, compute)
    outcome = Outcome(
        phase.assignment, state.me, compute, phase.transfer_seconds, 0.0, attempt.lost_seconds, overhead
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


def _overhead(state: State, attempt: Attempt, at: float, working: float) -> float:
    """What has passed in this attempt beside `working` seconds of training or waiting, here and at the sender."""
    return attempt.overhead_seconds + max(0.0, at - attempt.began - working) if state.counts_overhead else 0.0


def _with_transfer(phase: Training | Storing) -> Attempt:
    """The attempt with the transfer that brought the model here among its losses: its time has passed, too."""
    return replace(phase.attempt, lost_seconds=phase.attempt.lost_seconds + phase.transfer_seconds)


def _setback(
    state: State, attempt: Attempt, node: NodeId, at: float, *cancel: Command, may_return: bool = False
) -> Step:
    """Decide again; `may_return`: whether the node at which it went wrong may be chosen again."""
    state = has_failed(state, node, current(state).round, at, at - attempt.began)
    lost = attempt.lost_seconds + attempt.overhead_seconds + (at - attempt.began)
    again = Attempt(at, lost, attempt.excluded, attempt.rejected, slow=attempt.slow)
    if not may_return:
        slow = tuple(hop for hop in attempt.slow if hop.to != node)
        again = replace(again, excluded=attempt.excluded | {node}, slow=slow)
    state, commands = gather(replace(state, setbacks=state.setbacks + 1), again)
    return state, (*cancel, *commands)

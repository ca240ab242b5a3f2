"""A federation in virtual time: N round machines, a register in memory, and commands carried out on a clock.

Nothing here decides: the machines of `circulation/` do, and their commands carry all that is needed. When nothing
fails, asking, storing and swapping take no time, a transfer takes T_comm (`_transfer_seconds`) and a training T_comp
(`_training_seconds`), so that the clock shows exactly the paper's T_total. `faults.py` gives a world bad conditions;
`watcher` sees every step and may object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.circulation.changes import OrderedChange
from tramfl.circulation.custody import Record
from tramfl.circulation.holding import reports_noted
from tramfl.circulation.machine import advance
from tramfl.circulation.passage import WATCH_SECONDS, Passage
from tramfl.circulation.phases import Assignment, Copy, Limits, Offer, State
from tramfl.config import LoadModel
from tramfl.draws import deciding
from tramfl.notation import Digest, ModelCost, NodeId
from tramfl.scheduling.policy import Policy, check_decision
from tramfl.simulation.clock import Clock
from tramfl.simulation.conditions import REGISTER, Calm, Conditions
from tramfl.simulation.foresight import Foresight
from tramfl.simulation.lives import Lives, Process
from tramfl.simulation.load_clock import LoadClock, RoundClock, SlotClock
from tramfl.simulation.loads import LoadSource
from tramfl.simulation.register import WorldRegister
from tramfl.simulation.roles import NullLearner, RunTrainer, Watcher

CARELESS = Limits(unsafe_rounds=1 << 62, unsafe_seconds=math.inf)
"""For the paper's experiments: nothing fails, so no node ships a background copy, or waits for one."""
SLOW_AFTER = 2.0
"""Seconds after which a sender sees how slow a transfer is."""


class World:
    """The federation."""

    def __init__(
        self,
        *,
        record: Record,
        policy: Policy,
        held: NDArray[np.int64],
        cost: ModelCost,
        loads: LoadSource,
        seed: int,
        learner: RunTrainer | None = None,
        limits: Limits | None = None,
        lease_seconds: float = 5.0,
        register_timeout: float = 1.0,
        conditions: Conditions | None = None,
        watcher: Watcher | None = None,
        close_round: Callable[[do.CloseRound], None] | None = None,
        load_model: LoadModel | None = None,
        usual_samples: float = 1000.0,
        counts_overhead: bool = False,
    ) -> None:
        """`counts_overhead`: whether what passes between the steps of a round belongs to the run's time."""
        self.clock = Clock(record.weights.since)
        self.policy, self.held, self.cost, self.seed = policy, held, cost, seed
        self.learner: RunTrainer = learner or NullLearner()
        self.conditions: Conditions = conditions or Calm()
        self.watcher = watcher
        self._calm = type(self.conditions) is Calm and watcher is None
        """Whether nothing can fail and nobody watches the steps."""
        self._close_round = close_round
        load_model = load_model or LoadModel()
        slots = load_model.clock == "slot"
        self.load_clock: LoadClock = (
            SlotClock(loads, cost, load_model.slot_seconds) if slots else RoundClock(loads, cost)
        )
        self._foresight = Foresight(
            self.load_clock,
            load_model,
            cost,
            len(held),
            seed,
            usual_samples=usual_samples,
            looks_ahead=getattr(policy, "looks_ahead", False),
        )
        slow = load_model.give_up == "slow" if load_model.give_up else getattr(policy, "gives_up_slow_hops", False)
        self._watches = slots and slow and self._calm and not load_model.known
        """Whether a sender looks at the pace of a hop, as a site does."""
        self._arrived: dict[tuple[NodeId, Digest], float] = {}
        """Bits of a model that a watched hop of this round has brought to a node."""
        copy = Copy(record.weights.digest, record.round, record.epoch)
        self._lives = Lives(
            [
                Process(
                    State(node, cost.model_bits, limits or CARELESS, counts_overhead=counts_overhead),
                    {copy.digest: copy} if node in record.weights.copies else {},
                )
                for node in range(len(held))
            ]
        )
        self.register = WorldRegister(
            record,
            self._lives,
            self.clock,
            self.conditions,
            watcher,
            self._tell,
            calm=self._calm,
            lease_seconds=lease_seconds,
            timeout=register_timeout,
        )
        self.poisoned: set[Digest] = set()
        """Weights that no node takes in from the one that trained them."""
        self._orders = 0

    @property
    def sites(self) -> list[Process]:
        """Each node's latest life; of a node that is no member yet, one that never began."""
        return self._lives.latest

    @property
    def former(self) -> list[Process]:
        """Lives that go on although their node was started a second time."""
        return self._lives.former

    # Running.

    def start(self) -> None:
        """Start every member."""
        for node in self.register.read().record.present:
            self.revive(node)

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until `until` says so, or nothing is left to happen."""
        while not until() and self.clock.step():
            if self.watcher is not None:
                self.watcher.stepped()

    def revive(self, node: NodeId) -> None:
        """Start a node's process, unless it runs; what is on its disk is all it knows."""
        if not self.sites[node].alive:
            self._begin(node, self.sites[node].disk)

    def double(self, node: NodeId, *, cut_off: bool = False) -> None:
        """Start a node a second time, elsewhere, on a copy of its disk; the first process goes on, or is cut off."""
        before = self.sites[node]
        before.cut_off = cut_off
        if before.alive:
            self.former.append(before)
        self._begin(node, dict(before.disk))

    def _begin(self, node: NodeId, disk: dict[Digest, Copy]) -> None:
        old = self.sites[node]
        # Tickets of an earlier life must never be mistaken for this one's.
        ticket = (old.incarnation + 1) << 32
        before = old.state
        state = State(node, before.model_bits, before.limits, ticket=ticket, counts_overhead=before.counts_overhead)
        process = Process(state, disk)
        process.alive = True
        self.sites[node] = process
        self._tell(process, 0.0, on.Started(self.clock.now, tuple(disk.values())))
        self.register.in_touch(node)

    def crash(self, node: NodeId) -> None:
        """Kill a node's process, every life of it; its disk stays."""
        for process in self._lives.of(node):
            self._lives.end(process)
        self.register.out_of_touch(node)

    def order(self, node: NodeId, change: OrderedChange, *, persistent: bool = False) -> int | None:
        """Order a node to change the record; the order's number, or None where the node is not there."""
        for process in self._lives.of(node)[:1]:
            self._orders += 1
            self._tell(process, 0.0, on.Ordered(self.clock.now, self._orders, change, persistent))
            return self._orders
        return None

    def leave(self, node: NodeId) -> None:
        """Ask a node to end."""
        for process in self._lives.of(node)[:1]:
            process.leaving = True
            self._tell(process, 0.0, on.LeaveOrdered(self.clock.now))

    # Events in, commands out.

    def _tell(self, process: Process, seconds: float, event: on.Event) -> None:
        """An event reaches a process after a while, if that still runs by then."""
        self.clock.after(seconds, self._deliver, process, event)

    def _deliver(self, process: Process, event: on.Event) -> None:
        if not process.alive:
            return
        process.state, commands = advance(process.state, event)
        for command in commands:
            _CARRY_OUT[type(command)](self, process, command)

    def _ask_loads(self, process: Process, command: do.AskLoads) -> None:
        node, now = process.node, self.clock.now
        loads, outlooks = self._foresight.reports(node, command.round, now)
        links = loads.bandwidth[node]
        if command.nodes and self._all_answer_at_once and not any(map(math.isnan, loads.flops)):
            *others, last = command.nodes
            reports = {other: (loads.flops[other], links[other], outlooks[other]) for other in others}
            process.state = reports_noted(process.state, command.ticket, reports)
            report = on.LoadReported(now, command.ticket, last, loads.flops[last], links[last], outlooks[last])
            self._tell(process, 0.0, report)
            return
        for other in command.nodes:
            there = 0.0 if other == node else self.conditions.message(node, other)
            back = 0.0 if other == node else self.conditions.message(other, node)
            if there is None or back is None:
                continue
            at, flops, ticket = now + there + back, loads.flops[other], command.ticket
            asked = self.sites[other] if self.sites[other].alive else next(iter(self._lives.of(other)), None)
            if asked is None or asked.leaving or math.isnan(flops):
                self._tell(process, there + back, on.LoadMissing(at, ticket, other))
            else:
                report = on.LoadReported(at, ticket, other, flops, links[other], outlooks[other])
                self._tell(process, there + back, report)

    @property
    def _all_answer_at_once(self) -> bool:
        """Whether nothing fails, takes time or is watched, so that a thousand equal steps may be done as one."""
        return self._calm and all(process.alive and not process.leaving for process in self.sites)

    def _decide(self, process: Process, command: do.Decide) -> None:
        rng = deciding(self.seed, command.ledger.round + 1)
        held = self.held[: len(command.loads.flops)]
        decision = self.policy.decide(command.ledger, command.loads, held, process.node, self.cost, rng)
        checked = check_decision(decision, command.loads, held)
        seconds = 0.0
        if process.state.counts_overhead:
            # Of a recorded round: all that was neither training nor transfer nor waiting.
            step = self.load_clock.step(command.ledger.round + 1, self.clock.now)
            seconds = self.load_clock.loads(step).overhead_seconds
        self._tell(process, seconds, on.Decided(self.clock.now + seconds, command.ticket, checked))

    def _wake(self, process: Process, command: do.Wake) -> None:
        self._tell(process, command.seconds, on.Woke(self.clock.now + command.seconds, command.ticket))

    # Transfers.

    def _transfer_seconds(self, node: NodeId, command: do.SendModel) -> float:
        """T_comm at the loads that the transfer meets, times how much slower the link is than they say; 0 where
        the receiver has the weights."""
        if command.offer.digest in self.sites[command.to].disk:
            return 0.0
        there = self._arrived.get((command.to, command.offer.digest))
        bits = None if there is None else self.cost.model_bits - there
        seconds = self.load_clock.sending_seconds(node, command.to, command.offer.round + 1, self.clock.now, bits)
        return seconds * self.conditions.slowness_of_link(node, command.to)

    def _send_model(self, process: Process, command: do.SendModel) -> None:
        node, to = process.node, command.to
        assert command.offer.digest in process.disk, f"node {node} sends what it does not have: {command}"
        seconds = self._transfer_seconds(node, command)
        receiver = next(iter(self._lives.of(to)), None)
        if receiver is None and self._linked(node, to):
            self._tell(process, 0.0, on.SendFailed(self.clock.now, command.ticket))
        elif self.conditions.cut_transfer():
            at = self.clock.now + seconds / 2
            self._tell(process, seconds / 2, on.SendFailed(at, command.ticket))
        elif receiver is not None:
            process.sending.add(command.ticket)
            self.clock.after(seconds, self._arrive, process, receiver, command, seconds)
            assignment = command.offer.assignment
            if self._watches and assignment is not None and seconds > 0:
                self._begin_to_watch(process, command, assignment)
            slow = self.conditions.slowness_of_link(node, to) > 1
            if slow and assignment is not None and seconds - SLOW_AFTER > assignment.decision.transfer_seconds:
                slowed = on.SendSlowed(self.clock.now + SLOW_AFTER, command.ticket, seconds - SLOW_AFTER)
                self._tell(process, SLOW_AFTER, slowed)

    def _begin_to_watch(self, process: Process, command: do.SendModel, assignment: Assignment) -> None:
        now, what = self.clock.now, (command.to, command.offer.digest)
        passage = Passage(self.cost.model_bits, assignment.decision.transfer_seconds, 1.0, now)
        passage.arrived(self._arrived.setdefault(what, 0.0), now)
        self.clock.after(WATCH_SECONDS, self._watch, process, command, passage, now)

    def _watch(self, process: Process, command: do.SendModel, passage: Passage, before: float) -> None:
        """Look at the pace of a hop, and what is left of it, while it is under way."""
        if command.ticket not in process.sending:
            return
        assert isinstance(self.load_clock, SlotClock)
        now, what = self.clock.now, (command.to, command.offer.digest)
        self._arrived[what] += self.load_clock.sent_bits(process.node, command.to, before, now)
        passage.arrived(self._arrived[what], now)
        left = passage.slowed(now)
        if left is not None:
            self._deliver(process, on.SendSlowed(now, command.ticket, left))
        self.clock.after(WATCH_SECONDS, self._watch, process, command, passage, now)

    def _arrive(self, sender: Process, receiver: Process, command: do.SendModel, seconds: float) -> None:
        """The last byte is due: does it get there?"""
        given_up = command.ticket not in sender.sending
        sender.sending.discard(command.ticket)
        if not self._linked(sender.node, receiver.node) or not sender.alive:
            return
        if given_up and self._calm and command.offer.assignment is not None:
            return
        if receiver.alive and self.conditions.lies(receiver.node):
            self._reply(receiver.node, sender.node, command.offer.ticket, on.Acknowledged)
        elif receiver.alive and command.offer.digest in self.poisoned:
            self._reply(receiver.node, sender.node, command.offer.ticket, _not_accepted)
        elif receiver.alive:
            if self.register.in_reach(receiver):
                # A site reads the record before it lets a model in.
                self._tell(receiver, 0.0, on.RecordSeen(self.clock.now, self.register.read()))
            self._tell(receiver, 0.0, on.ModelArrived(self.clock.now, sender.node, command.offer, seconds))
        else:
            self._tell(sender, 0.0, on.SendFailed(self.clock.now, command.ticket))

    def deceive(self, liar: NodeId, victim: NodeId, offer: Offer) -> None:
        """A node sends another a model that nothing in its own machine asked it to send."""
        for process in self._lives.of(victim)[:1]:
            if self._linked(liar, victim) and offer.digest not in self.poisoned:
                if self.register.in_reach(process):
                    self._tell(process, 0.0, on.RecordSeen(self.clock.now, self.register.read()))
                self._tell(process, 0.0, on.ModelArrived(self.clock.now, liar, offer, 0.1))

    def _linked(self, one: NodeId, other: NodeId) -> bool:
        """Whether a connection holds, which needs both directions."""
        return self.conditions.connected(one, other) and self.conditions.connected(other, one)

    def _acknowledge(self, process: Process, command: do.Acknowledge) -> None:
        self._reply(process.node, command.to, command.ticket, on.Acknowledged)

    def _refuse(self, process: Process, command: do.Refuse) -> None:
        self._reply(process.node, command.to, command.ticket, on.SendFailed)

    def _reply(self, node: NodeId, to: NodeId, ticket: int, kind: Callable[[float, int], on.Answer]) -> None:
        seconds = self.conditions.message(node, to)
        if seconds is None:
            return
        # A reply finds only the life of the sender that asked for it.
        for process in self._lives.of(to):
            if process.incarnation == ticket >> 32:
                self._tell(process, seconds, kind(self.clock.now + seconds, ticket))

    def _nudge(self, process: Process, command: do.Nudge) -> None:
        seconds = self.conditions.message(process.node, command.to)
        if seconds is not None:
            self.clock.after(seconds, self._look, command.to)

    def _look(self, node: NodeId) -> None:
        for process in self._lives.of(node)[:1]:
            if self.register.in_reach(process):
                self._tell(process, 0.0, on.RecordSeen(self.clock.now, self.register.read()))

    # Work at a node.

    def _training_seconds(self, node: NodeId, command: do.Train) -> float:
        """T_comp at the loads that the training meets, times how much slower the node is than they say."""
        samples = command.assignment.decision.samples
        seconds = self.load_clock.training_seconds(node, samples, command.round, self.clock.now)
        return seconds * self.conditions.slowness(node)

    def _train(self, process: Process, command: do.Train) -> None:
        node, samples = process.node, command.assignment.decision.samples
        assert command.parent in process.disk, f"node {node} trains what it does not have: {command}"
        digest = self.learner.train(node, command.parent, samples, command.round)
        accepted = not self.conditions.rejects(node)
        if command.parent in self.poisoned or self.conditions.poisons(node):
            self.poisoned.add(digest)
        if self.watcher is not None:
            self.watcher.trained(command.parent, digest, samples, accepted)
        seconds = self._training_seconds(node, command)
        kind = on.Trained if accepted else on.Rejected
        self._tell(process, seconds, kind(self.clock.now + seconds, command.ticket, digest, seconds))

    def _store(self, process: Process, command: do.Store) -> None:
        seconds = self.conditions.store_seconds(process.node)
        if seconds is None:
            self._tell(process, 0.0, on.StoreFailed(self.clock.now, command.ticket))
        else:
            self.clock.after(seconds, self._put, process, command)

    def _put(self, process: Process, command: do.Store) -> None:
        copy = command.copy
        if process.alive:
            there = process.disk.get(copy.digest, copy)
            process.disk[copy.digest] = max(there, copy, key=lambda c: (c.epoch, c.round))
            self._tell(process, 0.0, on.Stored(self.clock.now, command.ticket, copy))

    def _discard(self, process: Process, command: do.Discard) -> None:
        for digest in command.digests:
            process.disk.pop(digest, None)
            # Nodes drop their first weights in the order of their numbers, so the last ones still have them.
            if not any(digest in other.disk for other in chain(reversed(self.sites), self.former)):
                self.learner.discard(digest)

    def _cancel_send(self, process: Process, command: do.CancelSend) -> None:
        process.sending.discard(command.ticket)

    def _cancel_training(self, process: Process, command: do.CancelTraining) -> None:
        """Nothing to do: the answer, should it still come, carries a ticket that no longer matters."""

    def _finish_round(self, process: Process, command: do.CloseRound) -> None:
        if self._close_round is not None:
            self._close_round(command)

    def _answer_order(self, process: Process, command: do.AnswerOrder) -> None:
        if self.watcher is not None:
            self.watcher.answered(command.order, command.record)

    def _depart(self, process: Process, command: do.Depart) -> None:
        node = process.node
        if self.watcher is not None:
            self.watcher.departed(process, command)
        latest = process is self.sites[node]
        self._lives.end(process)
        # A later life's lease is not an earlier one's to give up.
        if latest and command.release and self.conditions.message(node, REGISTER) is not None:
            self.register.lose_lease(node)
        elif latest:
            self.register.out_of_touch(node)

    # The register.

    def _read_record(self, process: Process, command: do.ReadRecord) -> None:
        self.register.read_for(process, command)

    def _swap(self, process: Process, command: do.Swap) -> None:
        committed = command.record.ledger
        commits = committed.round > self.register.read().record.ledger.round
        if commits and self._calm:
            self._begin_as_resumed(committed.seconds, process.state.counts_overhead)
        self.register.swap_for(process, command)

    def _begin_as_resumed(self, seconds: float, counts_overhead: bool) -> None:
        """A round is over: the next begins with what the record says and nothing else, as in a resumed run."""
        if not counts_overhead and math.isclose(seconds, self.clock.now):
            # The clock has added the same times in another order. A resumed run has the ledger's sum.
            self.clock.now = seconds
        self._arrived.clear()
        for process in self.sites:
            if process.state.setbacks or process.state.backoff:
                process.state = replace(process.state, setbacks=0, backoff={})


def _not_accepted(at: float, ticket: int) -> on.SendFailed:
    return on.SendFailed(at, ticket, not_accepted=True)


_CARRY_OUT: dict[type[do.Command], Callable[[World, Process, Any], None]] = {
    do.AskLoads: World._ask_loads,
    do.Decide: World._decide,
    do.Wake: World._wake,
    do.SendModel: World._send_model,
    do.CancelSend: World._cancel_send,
    do.CancelTraining: World._cancel_training,
    do.Acknowledge: World._acknowledge,
    do.Refuse: World._refuse,
    do.Train: World._train,
    do.Store: World._store,
    do.Discard: World._discard,
    do.CloseRound: World._finish_round,
    do.ReadRecord: World._read_record,
    do.Swap: World._swap,
    do.Nudge: World._nudge,
    do.AnswerOrder: World._answer_order,
    do.Depart: World._depart,
}

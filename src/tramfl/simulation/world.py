"""A federation in virtual time: N round machines, a register in memory, and commands carried out on a clock.

Nothing here decides: the machines of `circulation/` do. When nothing fails, asking, storing and swapping take no
time, a transfer takes T_comm and a training T_comp, so that the clock shows exactly the paper's T_total.
`faults.py` gives a world bad conditions; `watcher` sees every step and may object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.circulation.custody import MemoryRegister, Record, Versioned
from tramfl.circulation.machine import advance
from tramfl.circulation.phases import Copy, Limits, State
from tramfl.draws import deciding
from tramfl.notation import Digest, ModelCost, NodeId
from tramfl.scheduling.policy import Policy, check_decision
from tramfl.scheduling.timing import compute_seconds, transfer_seconds
from tramfl.simulation.clock import Clock
from tramfl.simulation.loads import LoadSource, RoundLoads

REGISTER = -1
"""The register's place in the network."""


class NodeTrainer(Protocol):
    """Trains weights; a digest stands for them."""

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int, /) -> Digest:
        """Train `parent` at `node` on so many samples of each label."""
        ...

    def discard(self, digest: Digest, /) -> None:
        """No node keeps these weights any longer."""
        ...


class NullLearner:
    """Trains nothing: for runs that are only about the schedule."""

    def __init__(self) -> None:
        self._trained = 0

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int) -> Digest:
        """A new name for every training."""
        self._trained += 1
        return f"w{self._trained}"

    def discard(self, digest: Digest) -> None:
        """Nothing is kept."""


class Conditions(Protocol):
    """What network, disks and processors are like at the moment."""

    def message(self, sender: NodeId, receiver: NodeId) -> float | None:
        """Seconds a small message takes, or None where it is lost."""
        ...

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Whether a link works at all."""
        ...

    def cut_transfer(self) -> bool:
        """Whether the transfer that begins now will break half-way."""
        ...

    def store_seconds(self, node: NodeId) -> float | None:
        """Seconds until weights are on this node's disk, or None where the disk is full."""
        ...

    def slowness(self, node: NodeId) -> float:
        """How many times longer than predicted this node trains."""
        ...

    def slowness_of_link(self, one: NodeId, other: NodeId) -> float:
        """How many times longer than predicted a transfer takes."""
        ...


class Calm:
    """Nothing fails, and only transfers and training take time."""

    def message(self, sender: NodeId, receiver: NodeId) -> float | None:
        """At once."""
        return 0.0

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Always."""
        return True

    def cut_transfer(self) -> bool:
        """Never."""
        return False

    def store_seconds(self, node: NodeId) -> float | None:
        """At once."""
        return 0.0

    def slowness(self, node: NodeId) -> float:
        """As predicted."""
        return 1.0

    def slowness_of_link(self, one: NodeId, other: NodeId) -> float:
        """As predicted."""
        return 1.0


class Watcher(Protocol):
    """Sees what happens in a world; raises where an invariant is broken."""

    def swapped(self, author: NodeId, epoch: int, before: Record, after: Record) -> None:
        """`author`, acting under `epoch`, changed the record."""
        ...

    def trained(self, parent: Digest, digest: Digest, samples: tuple[int, ...]) -> None:
        """Weights came into being."""
        ...

    def stepped(self) -> None:
        """An event was dealt with."""
        ...


class Site:
    """One node's process and its disk."""

    def __init__(self, state: State, disk: dict[Digest, Copy]) -> None:
        self.state = state
        self.disk = disk
        self.alive = False
        self.incarnation = 0
        self.times_in_touch = 0
        """How often it came to reach the register: a lease runs out only if that has not happened again."""


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
        learner: NodeTrainer | None = None,
        limits: Limits | None = None,
        lease_seconds: float = 5.0,
        register_timeout: float = 1.0,
        conditions: Conditions | None = None,
        watcher: Watcher | None = None,
        close_round: Callable[[do.CloseRound], None] | None = None,
    ) -> None:
        self.clock = Clock(record.weights.since)
        self.register = MemoryRegister(record)
        self.policy, self.held, self.cost, self.seed = policy, held, cost, seed
        self.learner: NodeTrainer = learner or NullLearner()
        self.conditions: Conditions = conditions or Calm()
        self.watcher = watcher
        self.lease_seconds, self.register_timeout = lease_seconds, register_timeout
        self._close_round = close_round
        self._loads = loads
        self._loads_now: tuple[int, RoundLoads] = (0, loads.at(1))
        copy = Copy(record.weights.digest, record.round, record.epoch)
        limits = limits or Limits()
        nodes = len(held)
        self.sites = [
            Site(
                State(node, nodes, cost.model_bits, limits),
                {copy.digest: copy} if node in record.weights.copies else {},
            )
            for node in range(nodes)
        ]
        self.leases = set(range(nodes))
        self._telling = False

    # Running.

    def start(self) -> None:
        """Start every node."""
        for node in range(len(self.sites)):
            self.revive(node)

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until `until` says so, or nothing is left to happen."""
        while not until() and self.clock.step():
            if self.watcher is not None:
                self.watcher.stepped()

    def revive(self, node: NodeId) -> None:
        """Start a node's process; what is on its disk is all it knows."""
        site = self.sites[node]
        if site.alive:
            return
        site.alive = True
        site.incarnation += 1
        old = site.state
        # Tickets of an earlier life must never be mistaken for this one's.
        site.state = State(node, old.nodes, old.model_bits, old.limits, ticket=site.incarnation << 32)
        self._tell(node, 0.0, on.Started(self.clock.now, tuple(site.disk.values())))
        self.in_touch(node)

    def crash(self, node: NodeId) -> None:
        """Kill a node's process; its disk stays."""
        self.sites[node].alive = False
        self.out_of_touch(node)

    # Leases.

    def reaches_register(self, node: NodeId) -> bool:
        """Whether a node can renew its lease and see the record."""
        return self.sites[node].alive and self.conditions.connected(node, REGISTER)

    def out_of_touch(self, node: NodeId) -> None:
        """A node cannot reach the register: its lease runs out unless it returns in time."""
        self.clock.after(self.lease_seconds, self._lease_due, node, self.sites[node].times_in_touch)

    def in_touch(self, node: NodeId) -> None:
        """A node reaches the register: it has a lease, and sees the record as it is."""
        if not self.reaches_register(node):
            return
        self.sites[node].times_in_touch += 1
        self.leases.add(node)
        self._tell(node, 0.0, on.RecordSeen(self.clock.now, self.register.read()))

    def _lease_due(self, node: NodeId, times_in_touch: int) -> None:
        if self.sites[node].times_in_touch == times_in_touch:
            self.leases.discard(node)
            self._look_after_holder()

    def _look_after_holder(self) -> None:
        """Tell every node that can hear it, again and again, while the record's holder has no lease."""
        if not self._telling and self.register.read().record.holder not in self.leases:
            self._telling = True
            self._tell_holder_lost()

    def _tell_holder_lost(self) -> None:
        versioned = self.register.read()
        if versioned.record.holder in self.leases:
            self._telling = False
            return
        for node in range(len(self.sites)):
            if self.reaches_register(node):
                self._tell(node, 0.0, on.HolderLost(self.clock.now, versioned))
        self.clock.after(self.lease_seconds, self._tell_holder_lost)

    # Events in, commands out.

    def _tell(self, node: NodeId, seconds: float, event: on.Event) -> None:
        """An event reaches a node after a while, if it is the same process by then."""
        self.clock.after(seconds, self._deliver, node, self.sites[node].incarnation, event)

    def _deliver(self, node: NodeId, incarnation: int, event: on.Event) -> None:
        site = self.sites[node]
        if not site.alive or site.incarnation != incarnation:
            return
        site.state, commands = advance(site.state, event)
        for command in commands:
            _CARRY_OUT[type(command)](self, node, command)

    def loads_at(self, round_: int) -> RoundLoads:
        """The loads of a round."""
        if self._loads_now[0] != round_:
            self._loads_now = (round_, self._loads.at(round_))
        return self._loads_now[1]

    def _loads_for(self, node: NodeId) -> RoundLoads:
        """The loads of the round that a node is in, as far as it knows."""
        seen = self.sites[node].state.seen
        assert seen is not None
        return self.loads_at(seen.record.round + 1)

    def _ask_loads(self, node: NodeId, command: do.AskLoads) -> None:
        loads = self.loads_at(command.round)
        now, links = self.clock.now, loads.bandwidth[node]
        absent = self.sites[node].state.absent
        # Nobody waits for who was absent: only if it is told first does it count in the round it is back in.
        for other in sorted(command.nodes, key=lambda other: other not in absent):
            there = 0.0 if other == node else self.conditions.message(node, other)
            back = 0.0 if other == node else self.conditions.message(other, node)
            flops = loads.flops[other]
            if there is None or back is None or not self.sites[other].alive or math.isnan(flops):
                continue
            seconds = there + back
            self._tell(node, seconds, on.LoadReported(now + seconds, command.ticket, other, flops, links[other]))

    def _decide(self, node: NodeId, command: do.Decide) -> None:
        rng = deciding(self.seed, command.ledger.round + 1)
        decision = self.policy.decide(command.ledger, command.loads, self.held, node, self.cost, rng)
        checked = check_decision(decision, command.loads, self.held)
        self._tell(node, 0.0, on.Decided(self.clock.now, command.ticket, checked))

    def _wake(self, node: NodeId, command: do.Wake) -> None:
        self._tell(node, command.seconds, on.Woke(self.clock.now + command.seconds, command.ticket))

    # Transfers.

    def _send_model(self, node: NodeId, command: do.SendModel) -> None:
        to = command.to
        assert command.offer.digest in self.sites[node].disk, f"node {node} sends what it does not have: {command}"
        loads = self._loads_for(node)
        if loads.took is not None and loads.took.node == to:
            seconds = loads.took.transfer_seconds
        else:
            seconds = transfer_seconds(self.cost, loads.bandwidth[node][to])
        seconds *= self.conditions.slowness_of_link(node, to)
        receiver, sender = self.sites[to].incarnation, self.sites[node].incarnation
        if not self.sites[to].alive and self.conditions.connected(node, to):
            self._tell(node, 0.0, on.SendFailed(self.clock.now, command.ticket))
        elif self.conditions.cut_transfer():
            at = self.clock.now + seconds / 2
            self._tell(node, seconds / 2, on.SendFailed(at, command.ticket))
        else:
            self.clock.after(seconds, self._arrive, node, sender, to, receiver, command, seconds)

    def _arrive(
        self, node: NodeId, sender: int, to: NodeId, receiver: int, command: do.SendModel, seconds: float
    ) -> None:
        """The last byte is due: does it get there?"""
        if not self.conditions.connected(node, to):
            return
        same_sender = self.sites[node].alive and self.sites[node].incarnation == sender
        same_receiver = self.sites[to].alive and self.sites[to].incarnation == receiver
        if not same_receiver and same_sender:
            self._tell(node, 0.0, on.SendFailed(self.clock.now, command.ticket))
        elif same_receiver and same_sender:
            self._tell(to, 0.0, on.ModelArrived(self.clock.now, node, command.offer, seconds))

    def _acknowledge(self, node: NodeId, command: do.Acknowledge) -> None:
        self._reply(node, command.to, command.ticket, on.Acknowledged)

    def _refuse(self, node: NodeId, command: do.Refuse) -> None:
        self._reply(node, command.to, command.ticket, on.SendFailed)

    def _reply(self, node: NodeId, to: NodeId, ticket: int, kind: type[on.Answer]) -> None:
        seconds = self.conditions.message(node, to)
        # A reply finds only the life of the sender that asked for it.
        if seconds is not None and self.sites[to].incarnation == ticket >> 32:
            self._tell(to, seconds, kind(self.clock.now + seconds, ticket))

    # Work at a node.

    def _train(self, node: NodeId, command: do.Train) -> None:
        assert command.parent in self.sites[node].disk, f"node {node} trains what it does not have: {command}"
        samples = command.assignment.decision.samples
        digest = self.learner.train(node, command.parent, samples, command.round)
        if self.watcher is not None:
            self.watcher.trained(command.parent, digest, samples)
        loads = self.loads_at(command.round)
        if loads.took is not None and (loads.took.node, loads.took.samples) == (node, samples):
            seconds = loads.took.compute_seconds
        else:
            seconds = compute_seconds(sum(samples), self.cost, loads.flops[node])
        seconds *= self.conditions.slowness(node)
        self._tell(node, seconds, on.Trained(self.clock.now + seconds, command.ticket, digest, seconds))

    def _store(self, node: NodeId, command: do.Store) -> None:
        seconds = self.conditions.store_seconds(node)
        if seconds is None:
            self._tell(node, 0.0, on.StoreFailed(self.clock.now, command.ticket))
        else:
            self.clock.after(seconds, self._put, node, self.sites[node].incarnation, command)

    def _put(self, node: NodeId, incarnation: int, command: do.Store) -> None:
        site, copy = self.sites[node], command.copy
        if site.alive and site.incarnation == incarnation:
            there = site.disk.get(copy.digest, copy)
            site.disk[copy.digest] = max(there, copy, key=lambda c: (c.epoch, c.round))
            self._tell(node, 0.0, on.Stored(self.clock.now, command.ticket, copy))

    def _discard(self, node: NodeId, command: do.Discard) -> None:
        for digest in command.digests:
            self.sites[node].disk.pop(digest, None)
            if not any(digest in site.disk for site in self.sites):
                self.learner.discard(digest)

    def _give_up(self, node: NodeId, command: do.CancelSend | do.CancelTraining) -> None:
        """Nothing to do: the answer, should it still come, bears a ticket that no longer matters."""

    def _finish_round(self, node: NodeId, command: do.CloseRound) -> None:
        if self._close_round is not None:
            self._close_round(command)

    # The register.

    def _read_record(self, node: NodeId, command: do.ReadRecord) -> None:
        self._ask_register(node, command.ticket, self._answer_read, (node, command))

    def _swap(self, node: NodeId, command: do.Swap) -> None:
        self._ask_register(node, command.ticket, self._answer_swap, (node, command))

    def _ask_register(
        self, node: NodeId, ticket: int, answer: Callable[..., on.Event], arguments: tuple[Any, ...]
    ) -> None:
        """A question to the register; without an answer in time the node is told so, and never learns why."""
        there = self.conditions.message(node, REGISTER)
        incarnation = self.sites[node].incarnation
        if there == 0.0 and self._serve(node, incarnation, answer, arguments):
            return
        late = self.clock.now + self.register_timeout
        self._tell(node, self.register_timeout, on.RegisterSilent(late, ticket))
        if there:
            self.clock.after(there, self._serve, node, incarnation, answer, arguments)

    def _serve(
        self, node: NodeId, incarnation: int, answer: Callable[..., on.Event], arguments: tuple[Any, ...]
    ) -> bool:
        """The question is at the register: it is dealt with even if its sender is gone by now."""
        if not self.conditions.connected(REGISTER, REGISTER):
            return False
        back = self.conditions.message(REGISTER, node)
        event = answer(*arguments, self.clock.now + (back or 0.0))
        if back is not None:
            self.clock.after(back, self._deliver, node, incarnation, event)
        return back is not None and back < self.register_timeout

    def _answer_read(self, node: NodeId, command: do.ReadRecord, at: float) -> on.Event:
        return on.RecordRead(at, command.ticket, self.register.read())

    def _answer_swap(self, node: NodeId, command: do.Swap, at: float) -> on.Event:
        before = self.register.read()
        after = self.register.swap(command.revision, command.record)
        if after is None:
            return on.SwapRefused(at, command.ticket, before)
        if self.watcher is not None:
            self.watcher.swapped(node, command.epoch, before.record, after.record)
        self._spread_news(after)
        return on.Swapped(at, command.ticket, after)

    def _spread_news(self, versioned: Versioned) -> None:
        """Tell everyone, the author too: it may have been started anew since it asked for the swap."""
        for node in range(len(self.sites)):
            if self.reaches_register(node):
                # A lost notice is sent again; who is cut off sees the record when it is back in touch.
                seconds = self.conditions.message(REGISTER, node)
                seconds = self.register_timeout if seconds is None else seconds
                self._tell(node, seconds, on.RecordSeen(self.clock.now + seconds, versioned))
        self._look_after_holder()


_CARRY_OUT: dict[type[do.Command], Callable[[World, NodeId, Any], None]] = {
    do.AskLoads: World._ask_loads,
    do.Decide: World._decide,
    do.Wake: World._wake,
    do.SendModel: World._send_model,
    do.CancelSend: World._give_up,
    do.CancelTraining: World._give_up,
    do.Acknowledge: World._acknowledge,
    do.Refuse: World._refuse,
    do.Train: World._train,
    do.Store: World._store,
    do.Discard: World._discard,
    do.CloseRound: World._finish_round,
    do.ReadRecord: World._read_record,
    do.Swap: World._swap,
}

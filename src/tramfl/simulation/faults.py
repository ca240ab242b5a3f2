"""The search for a schedule of faults that breaks an invariant: a world under a schedule, checked after every event.

Everything about a schedule follows from its seed: the federation, what fails, when and for how long. A seed that
fails fails again, in the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Container

import numpy as np
from msgspec.structs import replace

from tramfl.circulation.changes import AddMember, OrderedChange, RemoveMember, RollBack, SetStatus
from tramfl.circulation.commands import Depart
from tramfl.circulation.custody import Record, first_record
from tramfl.circulation.invariants import InvariantBroken, Invariants
from tramfl.circulation.machine import IllegalEvent
from tramfl.circulation.phases import Assignment, Limits, Offer
from tramfl.config import LoadModel
from tramfl.notation import Decision, Digest, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import PolicySettings, policy_named
from tramfl.simulation.fault_schedules import (
    HORIZON,
    Backward,
    Blackout,
    Crash,
    Fault,
    Join,
    Leave,
    Lies,
    LostDisk,
    Pause,
    Remove,
    Schedule,
    Stop,
    Storm,
    Twin,
    schedule_of,
)
from tramfl.simulation.lives import Process
from tramfl.simulation.loads import load_source
from tramfl.simulation.roles import NullLearner
from tramfl.simulation.world import World

ROUNDS_AFTER = 5
"""Once all is well again, a run that was not stopped must do this many rounds more."""
QUIET_SECONDS = 30.0
"""Once all is well again, a stopped run is watched for this long."""

LIE_SECONDS = 0.7
"""Between two lies of a node."""

_COST = ModelCost(flops_per_sample=3e9, model_bits=1e8)
_TENTHS = frozenset({"random", "time-first"})
"""Policies that train a tenth of the data a round: at five times the cost they play no more rounds than others."""
_LOADS = LoadModel(flops=1e12, bandwidth=1e8, compute_share=(0.1, 1.0), bandwidth_share=(0.1, 1.0))
_SLOWEST_SECONDS = 12.0
"""The longest hop or training that can be predicted with these costs, loads and holdings."""


class _Everything:
    """Contains anything."""

    def __contains__(self, digest: object) -> bool:
        return True


_EVERYTHING = _Everything()


class RepeatableLearner:
    """Trains nothing, and gives the same work the same name, as training from a seed does."""

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int) -> Digest:
        """A name that follows from the arguments."""
        return f"w{round_}-{zlib.crc32(f'{parent} {node} {samples}'.encode()):08x}"

    def discard(self, digest: Digest) -> None:
        """Nothing is kept."""


class Trial:
    """One schedule, played with every invariant checked after every event."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        rng = np.random.default_rng((schedule.seed, 5))
        self._joins = [fault for fault in schedule.faults if isinstance(fault, Join)]
        nodes = schedule.nodes + len(self._joins)
        held = _holdings(rng, nodes)
        record = first_record("trial", int(rng.integers(schedule.nodes)), "w0", tuple(range(schedule.nodes)), 4)
        keeping = np.random.default_rng((schedule.seed, 11))
        record = replace(record, keep_versions=int(keeping.integers(1, 4)), keep_every=int(keeping.integers(1, 6)))
        limits = Limits(unsafe_rounds=int(rng.integers(1, 4)))
        self.storm = Storm(schedule.seed)
        self.storm.silenced = self._silence
        self.world = World(
            record=record,
            policy=policy_named(schedule.policy, PolicySettings(variance_limit=400.0)),
            held=held,
            cost=replace(_COST, flops_per_sample=15e9) if schedule.policy in _TENTHS else _COST,
            loads=load_source(_LOADS, nodes, schedule.seed),
            seed=schedule.seed,
            learner=NullLearner() if rng.random() < 0.5 else RepeatableLearner(),
            limits=limits,
            conditions=self.storm,
            watcher=self,
            close_round=lambda closed: self._invariants.closed(closed.outcome, closed.record),
            counts_overhead=True,
        )
        # A holder lost, a grace, a gathering, the longest deadline with every doubling, and one round.
        stall = 3 * self.world.register.lease_seconds + limits.takeover_grace + limits.load_reply
        stall += limits.overdue_after(_SLOWEST_SECONDS, setbacks=4) + 3 * _SLOWEST_SECONDS
        self._invariants = Invariants(record, self._disk, stall, limits.unsafe_rounds)
        self._able_since: float | None = 0.0
        self._struck: dict[Fault, list[NodeId]] = {}
        self._lost: dict[NodeId, set[Digest]] = {}
        """What was on disks that are gone: the one loss that no order of steps can prevent."""
        self._there: dict[Process, list[Process]] = {}
        """Of every node that was asked to leave: the others that were there, while nothing kept them from it."""
        self._beside: dict[Process, float] = {}
        """Of every earlier life in reach of the register: since when."""
        self._liars: set[NodeId] = set()
        self._deceit = np.random.default_rng((schedule.seed, 9))
        self._calm_since: float | None = None
        self._rounds_to_go = ROUNDS_AFTER

    def start(self) -> None:
        """Start every node, and set the faults to come."""
        self.world.start()
        for fault in self.schedule.faults:
            self.world.clock.after(fault.begin, self._begin, fault)
            if fault.end < float("inf"):
                self.world.clock.after(fault.end, self._end, fault)
        self.world.clock.after(HORIZON, self._calm)

    def play(self) -> None:
        """Play the schedule, then see the run go on, or rest where it was stopped; raises InvariantBroken."""
        self.start()
        self.world.run(self._over)
        if not self._over():
            number = 5 if self.world.register.read().record.status == "running" else 7
            raise InvariantBroken(number, f"at {self.world.clock.now:.1f} s nothing is left to happen")

    def _over(self) -> bool:
        if self._calm_since is None:
            return False
        record = self.world.register.read().record
        if record.status == "stopped" and (record.at_rest or not self._can_move(record)):
            return self.world.clock.now >= self._calm_since + QUIET_SECONDS
        return self._rounds_to_go <= 0 or not self._can_move(record)

    def _calm(self) -> None:
        """All faults are over: from now on the run must get on."""
        self._calm_since = self.world.clock.now
        self._resume()
        self.world.clock.after(QUIET_SECONDS, lambda: None)

    def _resume(self) -> None:
        if self.world.register.read().record.status == "paused":
            self._order(0, SetStatus(0, "running"))
            self.world.clock.after(self.world.register.lease_seconds, self._resume)

    # What goes wrong, and what is ordered.

    def _begin(self, fault: Fault) -> None:
        reached = self._in_touch()
        if isinstance(fault, Crash | Blackout | Leave):
            self._struck[fault] = self._victims(fault)
            for node in self._struck[fault]:
                self._strike(fault, node)
        elif isinstance(fault, Pause | Stop | Backward | Join | Remove):
            self._operate(fault)
        elif isinstance(fault, Twin):
            self.world.double(fault.node, cut_off=fault.cut_off)
        else:
            self.storm.active.append(fault)
            self._there.clear()
        if isinstance(fault, Lies):
            self._liars.add(fault.node)
            self._invariants.lies()
            self._lie(fault)
        for process, (heard, _) in self._in_touch().items():
            if process in reached and reached[process][0] and not heard:
                self.world.register.out_of_touch(process.node)

    def _end(self, fault: Fault) -> None:
        reached = self._in_touch()
        if isinstance(fault, Crash | Blackout | Leave):
            for node in self._struck[fault]:
                self.world.revive(node)
        elif isinstance(fault, Pause | Backward):
            self._order(fault.node, SetStatus(0, "running"))
        elif isinstance(fault, Remove):
            for node in self._struck[fault]:
                self._order(node + 1, AddMember(0, self._name(node), ""))
        elif isinstance(fault, Twin):
            for process in self.world.former:
                process.cut_off = process.cut_off and process.node != fault.node
            self.world.register.in_touch(fault.node)
        elif fault in self.storm.active:
            self.storm.active.remove(fault)
        back = [
            process.node
            for process, now in self._in_touch().items()
            if any(works and not worked for works, worked in zip(now, reached.get(process, now), strict=True))
        ]
        for node in dict.fromkeys(back):
            self.world.register.in_touch(node)

    def _operate(self, fault: Pause | Stop | Backward | Join | Remove) -> None:
        """Give the order that a schedule has in place of a fault."""
        if isinstance(fault, Pause):
            self._order(fault.node, SetStatus(0, "paused"))
        elif isinstance(fault, Stop):
            self._order(fault.node, SetStatus(0, "stopped"), persistent=fault.persistent)
        elif isinstance(fault, Backward):
            if not fault.careless:
                self._order(fault.node, SetStatus(0, "paused"))
            self.world.clock.after((fault.end - fault.begin) / 2, self._roll_back, fault)
        elif isinstance(fault, Join):
            self._order(0, AddMember(0, f"joins at {fault.begin}", "a"))
        else:
            self._struck[fault] = self._victims(fault)
            for node in self._struck[fault]:
                self._order(node + 1, RemoveMember(0, self._name(node)))

    def _roll_back(self, fault: Backward) -> None:
        if versions := self.world.register.read().record.versions:
            self._order(fault.node, RollBack(0, versions[int(fault.version * len(versions))].round))

    def _lie(self, fault: Lies) -> None:
        """Offer some node a model, with a round to train that nobody but the liar decided; and again in a while."""
        if fault not in self.storm.active:
            return
        rng, record = self._deceit, self.world.register.read().record
        victim = int(rng.integers(self.schedule.nodes))
        samples = tuple(int(count) for count in rng.integers(0, self.world.held[victim] + 1))
        decision = Decision("lie", victim, samples, 1.0, 1.0, 0.0, "A liar decided this.")
        loads = Loads((1e12,) * self.schedule.nodes, (1e8,) * self.schedule.nodes)
        assignment = Assignment(fault.node, decision, loads, float(rng.choice([0, 5e6])))
        digest = record.weights.digest if rng.random() < 0.8 else f"lie-{int(rng.integers(1 << 30))}"
        epoch, round_ = record.epoch + int(rng.integers(0, 2)), record.round + int(rng.integers(0, 2))
        offer = Offer(epoch, round_, digest, 0, assignment if rng.random() < 0.8 else None)
        if victim != fault.node:
            self.world.deceive(fault.node, victim, offer)
        self.world.clock.after(LIE_SECONDS, self._lie, fault)

    def _strike(self, fault: Fault, node: NodeId) -> None:
        if isinstance(fault, Leave):
            process = self.world.sites[node]
            if not self.storm.active and not self.world.former:
                self._there[process] = [p for p in self.world.sites if p.alive and p is not process]
            self.world.leave(node)
        else:
            self._kill(node, wipe=isinstance(fault, LostDisk))

    def _order(self, node: NodeId, change: OrderedChange, *, persistent: bool = False) -> None:
        """Order it of this node, or of the next one that is there."""
        for n in range(node, node + self.schedule.nodes):
            order = self.world.order(n % self.schedule.nodes, change, persistent=persistent)
            if order is not None:
                self._invariants.ordered(order, change)
                return

    def _name(self, node: NodeId) -> str:
        return self.world.register.read().record.members[node].name

    def _silence(self, node: NodeId, away: float) -> None:
        self.world.clock.after(0.0, self._kill, node)
        self.world.clock.after(away, self.world.revive, node)

    def _victims(self, fault: Crash | Blackout | Leave | Remove) -> list[NodeId]:
        if isinstance(fault, Blackout):
            return list(range(self.schedule.nodes))
        node = self.world.register.read().record.holder if fault.node is None else fault.node
        return [] if node is None else [node]

    def _kill(self, node: NodeId, *, wipe: bool = False) -> None:
        site = self.world.sites[node]
        for former in self.world.former:
            if former.node == node:
                self._lose(former)
        self.world.crash(node)
        if wipe:
            self._lose(site)
            site.disk.clear()

    def _lose(self, process: Process) -> None:
        self._lost.setdefault(process.node, set()).update(process.disk)

    def _disk(self, node: NodeId) -> Container[Digest]:
        if node in self._liars:
            return _EVERYTHING  # what a liar said it had, no other node could know
        disk = self.world.sites[node].disk
        former = [p.disk for p in self.world.former if p.node == node]
        lost = self._lost.get(node)
        if not lost and not former:
            return disk
        if lost:
            lost -= disk.keys()
        return set(disk).union(lost or (), *former)

    def _in_touch(self) -> dict[Process, tuple[bool, bool]]:
        """Of each process: whether the register hears it and keeps its lease, and whether it hears the register."""
        latest = {p: (self.world.register.is_heard(p.node), self.world.register.hears(p)) for p in self.world.sites}
        # An earlier life has no lease. It must notice that also where the later one is gone by then.
        return latest | {p: (False, self.world.register.hears(p)) for p in self.world.former}

    def _can_move(self, record: Record) -> bool:
        """Whether nothing keeps a run from its next round, or one that is not running from a second disk."""
        if self.storm.active:
            return False
        alive = [site for site in self.world.sites if site.alive and record.is_member(site.node)]
        good = {record.safe.digest, record.weights.digest} - self.world.poisoned
        if record.status != "running" and record.weights.digest not in good:
            return False  # nobody takes a copy
        if record.status == "stopped":
            # Nobody takes a stopped run over: it waits for its holder.
            return len(alive) > 1 and any(p.node == record.holder and record.weights.digest in p.disk for p in alive)
        able = any(not good.isdisjoint(p.disk) for p in alive)
        return able and (record.status == "running" or len(alive) > 1)

    # What the world lets its watcher see.

    def trained(self, parent: Digest, digest: Digest, samples: tuple[int, ...], accepted: bool) -> None:
        """Weights came into being."""
        self._invariants.trained(parent, digest, samples, accepted)

    def swapped(self, author: NodeId, epoch: int, before: Record, after: Record) -> None:
        """The record changed."""
        self._invariants.swapped(author, epoch, before, after, self.world.clock.now)
        if self._calm_since is not None and after.round > before.round:
            self._rounds_to_go -= 1
        for node in set(after.present) - set(before.present):
            seconds = self._joins.pop(0).after if node >= len(before.members) else 0.0
            self.world.clock.after(seconds, self.world.revive, node)

    def answered(self, order: int, record: Record | None) -> None:
        """A node answered an order."""
        self._invariants.answered(order, record)

    def departed(self, process: Process, command: Depart) -> None:
        """A process ended by itself."""
        if process in self.world.former:
            self._lose(process)
            return
        if not command.superseded:
            others = any(p.alive and not p.leaving for p in self._there.pop(process, ()))
            others = others and self.world.register.read().record.weights.digest not in self.world.poisoned
            self._invariants.departed(process.node, release=command.release, others=others)

    def stepped(self) -> None:
        """An event was dealt with."""
        now = self.world.clock.now
        if not self._can_move(self.world.register.read().record):
            self._able_since = None
        elif self._able_since is None:
            self._able_since = now
        self._invariants.stepped(now, self._able_since)
        if self.world.former or self._beside:
            self._check_lives(now)

    def _check_lives(self, now: float) -> None:
        beside = [
            p for p in self.world.former if self.world.register.is_superseded(p) and self.world.register.in_reach(p)
        ]
        self._beside = {p: self._beside.get(p, now) for p in beside}
        for process, since in self._beside.items():
            self._invariants.doubled(process.node, now - since, self.world.register.lease_seconds)


def _holdings(rng: np.random.Generator, nodes: int) -> np.ndarray:
    """What the nodes hold of four labels: some lack some, every label is somewhere."""
    held = rng.integers(20, 100, size=(nodes, 4)) * (rng.random((nodes, 4)) < 0.7)
    held[rng.integers(nodes, size=4), range(4)] = 100
    return held


def try_schedule(seed: int) -> str | None:
    """None where every invariant held under the seed's schedule, else what broke."""
    try:
        Trial(schedule_of(seed)).play()
    except (IllegalEvent, AssertionError) as broken:
        return f"{type(broken).__name__}: {broken}"
    return None

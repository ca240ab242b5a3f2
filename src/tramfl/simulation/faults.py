"""Bad conditions for a world, and the search for a schedule of faults that breaks an invariant.

Everything about a schedule follows from its seed: the federation, what fails, when and for how long. A seed that
fails fails again, in the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tramfl.circulation.custody import Record, first_record
from tramfl.circulation.invariants import InvariantBroken, Invariants
from tramfl.circulation.machine import IllegalEvent
from tramfl.circulation.phases import Limits
from tramfl.config import LoadModel
from tramfl.notation import Digest, ModelCost, NodeId
from tramfl.scheduling.policy import PolicySettings, policy_named
from tramfl.simulation.loads import load_source
from tramfl.simulation.world import REGISTER, NullLearner, World

HORIZON = 120.0
"""Faults begin and end within so many seconds."""
ROUNDS_AFTER = 5
"""Once all is well again the run must do so many rounds more."""

_COST = ModelCost(flops_per_sample=3e9, model_bits=1e8)
_TENTHS = frozenset({"random", "time-first"})
"""Policies that train a tenth of the data a round: at five times the cost they play no more rounds than others."""
_LOADS = LoadModel(flops=1e12, bandwidth=1e8, compute_share=(0.1, 1.0), bandwidth_share=(0.1, 1.0))
_SLOWEST_SECONDS = 12.0
"""The longest hop or training that can be predicted with these costs, loads and holdings."""


class Fault(Struct, frozen=True):
    """Something that goes wrong from `begin` on, and is mended at `end` (if ever)."""

    begin: float
    end: float


class Crash(Fault, frozen=True):
    """A node's process is killed; at the end it is started again. Without an end it stays dead."""

    node: NodeId | None
    """None: whoever holds the model then."""


class Blackout(Fault, frozen=True):
    """Every process is killed at once; at the end all are started again."""


class LostDisk(Crash, frozen=True):
    """A node's process is killed, and it comes back with an empty disk."""


class LastWords(Fault, frozen=True):
    """The next request to the register is under way for so long, and its author is killed and back meanwhile."""

    delay: float
    away: float


class Partition(Fault, frozen=True):
    """These nodes, and the register if it is among them, hear only each other."""

    side: frozenset[NodeId]


class RegisterOutage(Fault, frozen=True):
    """The register answers nobody."""


class Lossy(Fault, frozen=True):
    """Small messages are lost with this probability and take up to so many seconds, past every time-out."""

    loss: float
    delay: float


class SlowDisk(Fault, frozen=True):
    """Storing takes so many seconds: a million is a disk that hangs, endless one that is full and says so."""

    node: NodeId
    seconds: float


class SlowLinks(Fault, frozen=True):
    """Transfers that begin take so many times longer than the loads promise."""

    factor: float


class CutTransfers(Fault, frozen=True):
    """Every transfer that begins breaks half-way."""


class SlowTraining(Fault, frozen=True):
    """A node trains so many times slower than it predicts."""

    node: NodeId
    factor: float


class Schedule(Struct, frozen=True):
    """A federation and its misfortunes."""

    seed: int
    nodes: int
    policy: str
    faults: tuple[Fault, ...]

    def describe(self) -> Iterator[str]:
        """One line a fault, in order of time."""
        yield f"seed {self.seed}: {self.nodes} nodes, policy {self.policy}"
        for fault in sorted(self.faults, key=lambda f: f.begin):
            yield f"  {fault}"


def schedule_of(seed: int) -> Schedule:
    """The schedule that a seed stands for."""
    rng = np.random.default_rng((seed, 3))
    nodes = int(rng.integers(2, 7))
    policy = str(rng.choice(["load-aware", "load-aware", "random", "variance-first", "time-first"]))
    faults = tuple(_fault(rng, nodes) for _ in range(1 + rng.poisson(7)))
    return Schedule(seed, nodes, policy, faults)


def _fault(rng: np.random.Generator, nodes: int) -> Fault:
    begin = float(rng.uniform(0.0, HORIZON))
    # Some are over before their victim is missed, some last longer than every deadline.
    end = min(HORIZON, begin + float(rng.exponential(rng.choice([1.0, 15.0, 15.0, 60.0]))))
    node = int(rng.integers(nodes))
    everyone = np.array([REGISTER, *range(nodes)])
    side = frozenset(everyone[rng.random(everyone.size) < 0.5].tolist())
    stays_dead = rng.random() < 0.15
    kinds: list[Fault] = [
        Crash(begin, float("inf") if stays_dead else end, node if rng.random() < 0.6 else None),
        Blackout(begin, end),
        LostDisk(begin, end, node if rng.random() < 0.6 else None),
        LastWords(begin, end, float(rng.uniform(0.0, 8.0)), float(rng.uniform(0.0, 4.0))),
        Partition(begin, end, side),
        RegisterOutage(begin, end),
        Lossy(begin, end, float(rng.uniform(0.0, 0.6)), float(rng.choice([0.01, 3.0, 40.0]))),
        SlowDisk(begin, end, node, float(rng.choice([2.0, 20.0, 1e6, np.inf]))),
        SlowLinks(begin, end, float(rng.uniform(2.0, 50.0))),
        CutTransfers(begin, end),
        SlowTraining(begin, end, node, float(rng.uniform(2.0, 200.0))),
    ]
    return kinds[int(rng.choice(len(kinds), p=_FREQUENCY))]


_FREQUENCY = [0.2, 0.04, 0.04, 0.12, 0.14, 0.08, 0.12, 0.08, 0.05, 0.05, 0.08]


class Storm:
    """The conditions under a schedule: which faults are active, and what they do to each request."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng((seed, 4))
        self.active: list[Fault] = []
        self.silenced: Callable[[NodeId, float], object] = lambda node, away: None
        """Called when a node has said its last words, and for how long it is to be away."""

    def _having(self, kind: type[Fault]) -> list[Fault]:
        return [fault for fault in self.active if isinstance(fault, kind)]

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Whether a link works; the register's link to itself says whether it is up."""
        if REGISTER in (one, other) and self._having(RegisterOutage):
            return False
        return not any(
            isinstance(fault, Partition) and (one in fault.side) != (other in fault.side) for fault in self.active
        )

    def message(self, sender: NodeId, receiver: NodeId) -> float | None:
        """Seconds a message takes, or None where it is lost."""
        if not self.active:
            return 0.0
        if not self.connected(sender, receiver):
            return None
        seconds = 0.0
        for fault in tuple(self.active):
            if isinstance(fault, Lossy):
                if self._rng.random() < fault.loss:
                    return None
                # Most are quick and a few are very late: so a swap can land long after all else went on.
                seconds += fault.delay * float(self._rng.random()) ** 6
            elif isinstance(fault, LastWords) and receiver == REGISTER:
                self.active.remove(fault)
                self.silenced(sender, fault.away)
                seconds += fault.delay
        return seconds

    def cut_transfer(self) -> bool:
        """Whether the transfer that begins now will break."""
        return bool(self._having(CutTransfers))

    def store_seconds(self, node: NodeId) -> float | None:
        """Seconds that storing takes at this node now."""
        seconds = sum(f.seconds for f in self.active if isinstance(f, SlowDisk) and f.node == node)
        return None if seconds == float("inf") else seconds

    def slowness(self, node: NodeId) -> float:
        """How many times slower than predicted this node trains now."""
        return max((f.factor for f in self.active if isinstance(f, SlowTraining) and f.node == node), default=1.0)

    def slowness_of_link(self, one: NodeId, other: NodeId) -> float:
        """How many times slower than promised a transfer is now."""
        return max((f.factor for f in self.active if isinstance(f, SlowLinks)), default=1.0)


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
        held = _holdings(rng, schedule.nodes)
        record = first_record("trial", int(rng.integers(schedule.nodes)), "w0", tuple(range(schedule.nodes)), 4)
        limits = Limits(unsafe_rounds=int(rng.integers(1, 4)))
        self.storm = Storm(schedule.seed)
        self.storm.silenced = self._silence
        self.world = World(
            record=record,
            policy=policy_named(schedule.policy, PolicySettings(variance_limit=400.0)),
            held=held,
            cost=replace(_COST, flops_per_sample=15e9) if schedule.policy in _TENTHS else _COST,
            loads=load_source(_LOADS, schedule.nodes, schedule.seed),
            seed=schedule.seed,
            learner=NullLearner() if rng.random() < 0.5 else RepeatableLearner(),
            limits=limits,
            conditions=self.storm,
            watcher=self,
            close_round=lambda closed: self._invariants.closed(closed.record),
        )
        # A holder lost, a grace, a gathering, the longest deadline with every doubling, and one round.
        stall = 3 * self.world.lease_seconds + limits.takeover_grace + limits.load_reply
        stall += limits.overdue_after(_SLOWEST_SECONDS, setbacks=4) + 3 * _SLOWEST_SECONDS
        self._invariants = Invariants(record, self._disk, stall)
        self._able_since: float | None = 0.0
        self._struck: dict[Fault, list[NodeId]] = {}
        self._lost: dict[NodeId, set[Digest]] = {}
        """What was on disks that are gone: the one loss that no order of steps can prevent."""
        self._rounds_to_go: int | None = None

    def start(self) -> None:
        """Start every node, and set the faults to come."""
        self.world.start()
        for fault in self.schedule.faults:
            self.world.clock.after(fault.begin, self._begin, fault)
            if fault.end < float("inf"):
                self.world.clock.after(fault.end, self._end, fault)
        self.world.clock.after(HORIZON, self._calm)

    def play(self) -> None:
        """Play the schedule, then see the run go on; raises InvariantBroken."""
        self.start()
        self.world.run(self._over)
        if not self._over():
            raise InvariantBroken(5, f"at {self.world.clock.now:.1f} s nothing is left to happen")

    def _over(self) -> bool:
        if self._rounds_to_go is None:
            return False
        return self._rounds_to_go <= 0 or not self._can_advance(self.world.register.read().record)

    def _calm(self) -> None:
        self._rounds_to_go = ROUNDS_AFTER

    def _begin(self, fault: Fault) -> None:
        reached = self._in_touch()
        if isinstance(fault, Crash | Blackout):
            self._struck[fault] = self._victims(fault)
            for node in self._struck[fault]:
                self._kill(node, wipe=isinstance(fault, LostDisk))
        else:
            self.storm.active.append(fault)
        for node in reached - self._in_touch():
            self.world.out_of_touch(node)

    def _end(self, fault: Fault) -> None:
        reached = self._in_touch()
        if isinstance(fault, Crash | Blackout):
            for node in self._struck[fault]:
                self.world.revive(node)
        elif fault in self.storm.active:
            self.storm.active.remove(fault)
        for node in sorted(self._in_touch() - reached):
            self.world.in_touch(node)

    def _silence(self, node: NodeId, away: float) -> None:
        self.world.clock.after(0.0, self._kill, node)
        self.world.clock.after(away, self.world.revive, node)

    def _victims(self, fault: Crash | Blackout) -> list[NodeId]:
        if isinstance(fault, Blackout):
            return list(range(self.schedule.nodes))
        node = self.world.register.read().record.holder if fault.node is None else fault.node
        return [] if node is None else [node]

    def _kill(self, node: NodeId, *, wipe: bool = False) -> None:
        site = self.world.sites[node]
        if site.alive:
            self.world.crash(node)
        if wipe:
            self._lost.setdefault(node, set()).update(site.disk)
            site.disk.clear()

    def _disk(self, node: NodeId) -> Container[Digest]:
        disk = self.world.sites[node].disk
        if not (lost := self._lost.get(node)):
            return disk
        lost -= disk.keys()
        return lost | disk.keys()

    def _in_touch(self) -> set[NodeId]:
        return {node for node in range(self.schedule.nodes) if self.world.reaches_register(node)}

    def _can_advance(self, record: Record) -> bool:
        """Whether nothing is in the way: no fault but dead nodes, and a live one with weights to go on from."""
        return not self.storm.active and any(
            site.alive and (record.safe.digest in site.disk or record.weights.digest in site.disk)
            for site in self.world.sites
        )

    # What the world lets its watcher see.

    def trained(self, parent: Digest, digest: Digest, samples: tuple[int, ...]) -> None:
        """Weights came into being."""
        self._invariants.trained(parent, digest, samples)

    def swapped(self, author: NodeId, epoch: int, before: Record, after: Record) -> None:
        """The record changed."""
        self._invariants.swapped(author, epoch, before, after, self.world.clock.now)
        if self._rounds_to_go is not None and after.round > before.round:
            self._rounds_to_go -= 1

    def stepped(self) -> None:
        """An event was dealt with."""
        now = self.world.clock.now
        if not self._can_advance(self.world.register.read().record):
            self._able_since = None
        elif self._able_since is None:
            self._able_since = now
        self._invariants.stepped(now, self._able_since)


def _holdings(rng: np.random.Generator, nodes: int) -> np.ndarray:
    """What the nodes hold of four labels: some lack some, every label is somewhere."""
    held = rng.integers(20, 100, size=(nodes, 4)) * (rng.random((nodes, 4)) < 0.7)
    held[rng.integers(nodes, size=4), range(4)] = 100
    return held


def try_schedule(seed: int) -> str | None:
    """None where every invariant held under the seed's schedule, else what broke."""
    try:
        Trial(schedule_of(seed)).play()
    except (InvariantBroken, IllegalEvent, AssertionError) as broken:
        return f"{type(broken).__name__}: {broken}"
    return None

"""What goes wrong in a federation, as a schedule that follows from a seed, and what each fault does to a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from tramfl.notation import NodeId
from tramfl.simulation.conditions import REGISTER

HORIZON = 120.0
"""Faults begin and end within this many seconds."""


class Fault(Struct, frozen=True):
    """Something that goes wrong at `begin`, and ends at `end` (if ever)."""

    begin: float
    end: float


class Crash(Fault, frozen=True):
    """A node's process is killed; at the end it is started again. Without an end it stays dead."""

    node: NodeId | None
    """None: the node that holds the model then."""


class Blackout(Fault, frozen=True):
    """Every process is killed at once; at the end all are started again."""


class LostDisk(Crash, frozen=True):
    """A node's process is killed, and it comes back with an empty disk."""


class LastWords(Fault, frozen=True):
    """The next request to the register takes `delay` seconds, and its author is killed and back meanwhile."""

    delay: float
    away: float


class Cut(Fault, frozen=True):
    """The network between these nodes (and the register, if it is among them) and all others is cut."""

    side: frozenset[NodeId]
    one_way: bool = False
    """Whether only what these nodes send is lost, and what the others send still arrives."""


class RegisterOutage(Fault, frozen=True):
    """The register answers nobody."""


class Lossy(Fault, frozen=True):
    """Small messages are lost with this probability, or take up to `delay` seconds, past every time-out."""

    loss: float
    delay: float


class SlowDisk(Fault, frozen=True):
    """Storing takes this many seconds: a million is a disk that hangs; infinity is one that is full, an error."""

    node: NodeId
    seconds: float


class SlowLinks(Fault, frozen=True):
    """Transfers that begin take `factor` times as long as the loads promise."""

    factor: float


class CutTransfers(Fault, frozen=True):
    """Every transfer that begins breaks half-way."""


class SlowTraining(Fault, frozen=True):
    """A node trains `factor` times as long as it predicts."""

    node: NodeId
    factor: float


class BadTraining(Fault, frozen=True):
    """What a node trains is not acceptable."""

    node: NodeId


class Poison(Fault, frozen=True):
    """A node accepts what it trains, and no other node does."""

    node: NodeId


class Pause(Fault, frozen=True):
    """An operator pauses the run through this node, and resumes it at the end."""

    node: NodeId


class Stop(Fault, frozen=True):
    """The run is stopped through this node: by an operator, or, persistently, because its budget is used up."""

    node: NodeId
    persistent: bool


class Leave(Fault, frozen=True):
    """A node is asked to end; at the end it is started again. Without an end it stays away."""

    node: NodeId | None
    """None: the node that holds the model then."""


class Twin(Fault, frozen=True):
    """A node is started a second time, elsewhere, while its first process goes on."""

    node: NodeId
    cut_off: bool
    """Whether the first process cannot reach the register until the end."""


class Lies(Fault, frozen=True):
    """A node lies: it offers models and assigns rounds as if it held the model, and takes models that it drops."""

    node: NodeId


class Join(Fault, frozen=True):
    """A node that never was a member is added, and starts some seconds later."""

    after: float


class Remove(Fault, frozen=True):
    """A member is removed; at the end it is added again. Without an end it stays away."""

    node: NodeId | None
    """None: the node that holds the model then."""


class Backward(Fault, frozen=True):
    """An operator pauses the run, rolls it back, and resumes it at the end; a careless one does not pause it."""

    node: NodeId
    careless: bool
    version: float
    """Which of the kept versions, 0 the oldest and 1 past the newest."""


class Schedule(Struct, frozen=True):
    """A federation and what goes wrong in it."""

    seed: int
    nodes: int
    policy: str
    faults: tuple[Fault, ...]

    def describe(self) -> Iterator[str]:
        """One line per fault, in order of time."""
        yield f"seed {self.seed}: {self.nodes} nodes, policy {self.policy}"
        for fault in sorted(self.faults, key=lambda f: f.begin):
            yield f"  {fault}"


def schedule_of(seed: int) -> Schedule:
    """The schedule that a seed stands for."""
    rng = np.random.default_rng((seed, 3))
    nodes = int(rng.integers(2, 7))
    policy = str(rng.choice(["load-aware", "load-aware", "random", "variance-first", "time-first"]))
    faults = tuple(_fault(rng, nodes) for _ in range(1 + rng.poisson(7)))
    if seed % 2 == 0:
        faults += tuple(_change_of_members(rng, nodes) for _ in range(1 + rng.poisson(1)))
    more = (*_bad_trainings(seed, nodes), *_lies(seed, nodes), *_rollbacks(seed, nodes), *_poisons(seed, nodes))
    return Schedule(seed, nodes, policy, (*faults, *more))


def _rollbacks(seed: int, nodes: int) -> Iterator[Backward]:
    """A rollback or two in every fourth schedule; drawn apart, so that the other faults are what they were."""
    rng = np.random.default_rng((seed, 10))
    for _ in range(int(rng.integers(1, 3)) if seed % 4 == 1 else 0):
        begin = float(rng.uniform(0.0, HORIZON))
        end = min(HORIZON, begin + float(rng.exponential(15.0)))
        yield Backward(begin, end, int(rng.integers(nodes)), bool(rng.random() < 0.3), float(rng.random()))


def _lies(seed: int, nodes: int) -> Iterator[Lies]:
    """One node lies in every third schedule; drawn apart, so that the other faults are what they were."""
    rng = np.random.default_rng((seed, 8))
    if seed % 3 == 0:
        begin = float(rng.uniform(0.0, HORIZON / 2))
        yield Lies(begin, float(rng.uniform(begin, HORIZON)), int(rng.integers(nodes)))


def _bad_trainings(seed: int, nodes: int) -> Iterator[Fault]:
    """In every third schedule, a node or two whose training is not acceptable for a while."""
    rng = np.random.default_rng((seed, 6))
    for _ in range(int(rng.choice([0, 0, 0, 0, 1, 2]))):
        begin = float(rng.uniform(0.0, HORIZON))
        yield BadTraining(begin, min(HORIZON, begin + float(rng.exponential(20.0))), int(rng.integers(nodes)))


def _poisons(seed: int, nodes: int) -> Iterator[Poison]:
    """In every fifth schedule one node poisons the model; drawn apart, so that other faults are what they were."""
    rng = np.random.default_rng((seed, 12))
    if seed % 5 == 2:
        begin = float(rng.uniform(0.0, HORIZON))
        yield Poison(begin, min(HORIZON, begin + float(rng.exponential(30.0))), int(rng.integers(nodes)))


def _change_of_members(rng: np.random.Generator, nodes: int) -> Fault:
    begin, seconds = float(rng.uniform(0.0, HORIZON)), float(rng.exponential(20.0))
    if rng.random() < 0.5:
        return Join(begin, begin, seconds if rng.random() < 0.3 else 0.0)
    end = min(HORIZON, begin + seconds) if rng.random() < 0.5 else float("inf")
    return Remove(begin, end, int(rng.integers(nodes)) if rng.random() < 0.5 else None)


def _fault(rng: np.random.Generator, nodes: int) -> Fault:
    begin = float(rng.uniform(0.0, HORIZON))
    # Some are over before their victim is missed, some last longer than every deadline.
    end = min(HORIZON, begin + float(rng.exponential(rng.choice([1.0, 15.0, 15.0, 60.0]))))
    node = int(rng.integers(nodes))
    everyone = np.array([REGISTER, *range(nodes)])
    side = frozenset(everyone[rng.random(everyone.size) < 0.5].tolist())
    forever = float("inf") if rng.random() < 0.15 else end
    kinds: list[Fault] = [
        Crash(begin, forever, node if rng.random() < 0.6 else None),
        Blackout(begin, end),
        LostDisk(begin, end, node if rng.random() < 0.6 else None),
        LastWords(begin, end, float(rng.uniform(0.0, 8.0)), float(rng.uniform(0.0, 4.0))),
        Cut(begin, end, side, bool(rng.random() < 0.4)),
        RegisterOutage(begin, end),
        Lossy(begin, end, float(rng.uniform(0.0, 0.6)), float(rng.choice([0.01, 3.0, 40.0]))),
        SlowDisk(begin, end, node, float(rng.choice([2.0, 20.0, 1e6, np.inf]))),
        SlowLinks(begin, end, float(rng.uniform(2.0, 50.0))),
        CutTransfers(begin, end),
        SlowTraining(begin, end, node, float(rng.uniform(2.0, 200.0))),
        Pause(begin, end, node),
        Stop(begin, begin, node, bool(rng.random() < 0.5)),
        Leave(begin, forever, node if rng.random() < 0.4 else None),
        Twin(begin, end, node, bool(rng.random() < 0.5)),
    ]
    return kinds[int(rng.choice(len(kinds), p=_FREQUENCY))]


_FREQUENCY = [0.15, 0.03, 0.03, 0.1, 0.11, 0.07, 0.1, 0.07, 0.04, 0.04, 0.06, 0.07, 0.02, 0.07, 0.04]


class Storm:
    """The conditions under a schedule: which faults are active, and what they do to each request."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng((seed, 4))
        self.active: list[Fault] = []
        self.silenced: Callable[[NodeId, float], object] = lambda node, away: None
        """Called when a node has sent its last request, with the seconds that it is to be away."""

    def _having(self, kind: type[Fault]) -> list[Fault]:
        return [fault for fault in self.active if isinstance(fault, kind)]

    def connected(self, sender: NodeId, receiver: NodeId) -> bool:
        """Whether what is sent can arrive; the register's link to itself says whether it is up."""
        if REGISTER in (sender, receiver) and self._having(RegisterOutage):
            return False
        return not any(isinstance(fault, Cut) and _loses(fault, sender, receiver) for fault in self.active)

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

    def lies(self, node: NodeId) -> bool:
        """Whether this node drops what it says it has stored."""
        return any(isinstance(fault, Lies) and fault.node == node for fault in self.active)

    def slowness(self, node: NodeId) -> float:
        """How many times slower than predicted this node trains now."""
        return max((f.factor for f in self.active if isinstance(f, SlowTraining) and f.node == node), default=1.0)

    def rejects(self, node: NodeId) -> bool:
        """Whether what this node trains now is not acceptable."""
        return any(isinstance(f, BadTraining) and f.node == node for f in self.active)

    def poisons(self, node: NodeId) -> bool:
        """Whether no other node accepts what this node trains now."""
        return any(isinstance(f, Poison) and f.node == node for f in self.active)

    def slowness_of_link(self, one: NodeId, other: NodeId) -> float:
        """How many times slower than promised a transfer is now."""
        return max((f.factor for f in self.active if isinstance(f, SlowLinks)), default=1.0)


def _loses(cut: Cut, sender: NodeId, receiver: NodeId) -> bool:
    here, there = sender in cut.side, receiver in cut.side
    return here and not there if cut.one_way else here != there

"""The processes of a federation in virtual time: each is one life of a node."""

from __future__ import annotations

from tramfl.circulation.phases import Copy, State
from tramfl.notation import Digest, NodeId


class Process:
    """One life of a node, and its disk. A node that is started again is another process, with other tickets."""

    def __init__(self, state: State, disk: dict[Digest, Copy]) -> None:
        self.state = state
        self.disk = disk
        self.alive = False
        self.leaving = False
        """Whether it was asked to end: it refuses its peers from then on."""
        self.cut_off = False
        """Whether this life cannot reach the register, whatever its node's links are like."""
        self.sending: set[int] = set()
        """The tickets of its transfers that are under way."""

    @property
    def node(self) -> NodeId:
        """The node whose life this is."""
        return self.state.me

    @property
    def incarnation(self) -> int:
        """How many lives the node has had with this one."""
        return self.state.ticket >> 32


class Lives:
    """Every life of every node that may still do something."""

    def __init__(self, latest: list[Process]) -> None:
        self.latest = latest
        """Each node's latest life; of a node that is no member yet, one that never began."""
        self.former: list[Process] = []
        """Lives that go on although their node was started a second time."""

    def of(self, node: NodeId) -> list[Process]:
        """The processes of a node that run, the latest first."""
        processes = (self.latest[node], *reversed([p for p in self.former if p.node == node]))
        return [process for process in processes if process.alive]

    def all(self) -> list[Process]:
        """Every process, also those that have ended."""
        return [*self.latest, *self.former]

    def end(self, process: Process) -> None:
        """A process ends; its disk stays."""
        process.alive = False
        if process in self.former:
            self.former.remove(process)

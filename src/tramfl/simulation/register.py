"""The register of a world, as nodes reach it: their leases, its news and its answers.

The record is in memory. What a question or an answer meets on its way is up to the world's conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.circulation.custody import MemoryRegister, Record, Versioned
from tramfl.notation import NodeId
from tramfl.simulation.clock import Clock
from tramfl.simulation.conditions import REGISTER, Conditions
from tramfl.simulation.lives import Lives, Process
from tramfl.simulation.roles import Watcher


class WorldRegister:
    """The register."""

    def __init__(
        self,
        record: Record,
        lives: Lives,
        clock: Clock,
        conditions: Conditions,
        watcher: Watcher | None,
        tell: Callable[[Process, float, on.Event], None],
        *,
        calm: bool,
        lease_seconds: float,
        timeout: float,
    ) -> None:
        """`tell` lets an event reach a process after some seconds; `calm`: nothing can fail and nobody watches."""
        self._register = MemoryRegister(record)
        self._lives, self._clock, self._conditions = lives, clock, conditions
        self._watcher, self._tell, self._calm = watcher, tell, calm
        self.lease_seconds, self.timeout = lease_seconds, timeout
        self.leases = set(record.present)
        nodes = len(lives.latest)
        self._times_in_touch = [0] * nodes
        """How often a node came to reach the register: a lease runs out only if that has not happened again."""
        self._joined = [0] * nodes
        """The latest life of each node that reached the register: it answers no earlier one any more."""
        self._notifying = False
        """Whether nodes are being notified that the holder has no lease."""

    def read(self) -> Versioned:
        """The record, and its revision."""
        return self._register.read()

    # Leases and news.

    def is_heard(self, node: NodeId) -> bool:
        """Whether the register hears a node's latest life, so that its lease lasts."""
        return self._lives.latest[node].alive and self._conditions.connected(node, REGISTER)

    def hears(self, process: Process) -> bool:
        """Whether the register's news get to a process."""
        return process.alive and not process.cut_off and self._conditions.connected(REGISTER, process.node)

    def out_of_touch(self, node: NodeId) -> None:
        """The register does not hear a node: its lease runs out unless it returns in time."""
        self._clock.after(self.lease_seconds, self._lease_due, node, self._times_in_touch[node])

    def in_touch(self, node: NodeId) -> None:
        """The link between a node and the register has come back, in one direction at least."""
        if self.is_heard(node):
            self._times_in_touch[node] += 1
            self.leases.add(node)
            self._joined[node] = self._lives.latest[node].incarnation
        for process in self._lives.of(node):
            if self.hears(process):
                self._tell(process, 0.0, on.RecordSeen(self._clock.now, self.read()))
                # A lease is renewed three times in its length.
                self._clock.after(self.lease_seconds / 3, self._renew, process)

    def _renew(self, process: Process) -> None:
        """An earlier life learns that it has no lease any more when it next renews it."""
        if self.is_superseded(process) and self.in_reach(process):
            self._tell(process, 0.0, on.Superseded(self._clock.now))

    def in_reach(self, process: Process) -> bool:
        """Whether a process and the register hear each other."""
        return self.hears(process) and self._conditions.connected(process.node, REGISTER)

    def is_superseded(self, process: Process) -> bool:
        """Whether a later life of the node has joined: the register answers this one no more."""
        return process.incarnation < self._joined[process.node]

    def _lease_due(self, node: NodeId, times_in_touch: int) -> None:
        if self._times_in_touch[node] == times_in_touch:
            self.lose_lease(node)

    def lose_lease(self, node: NodeId) -> None:
        """A lease ends."""
        self.leases.discard(node)
        self._look_after_holder()

    def _look_after_holder(self) -> None:
        """Notify every node that can hear it, again and again, while the record's holder has no lease."""
        if not self._notifying and self.read().record.holder not in self.leases:
            self._notifying = True
            self._notify_of_loss()

    def _notify_of_loss(self) -> None:
        versioned = self.read()
        if versioned.record.holder in self.leases:
            self._notifying = False
            return
        for process in self._lives.all():
            if self.hears(process):
                self._tell(process, 0.0, on.HolderLost(self._clock.now, versioned))
        self._clock.after(self.lease_seconds, self._notify_of_loss)

    # Questions.

    def read_for(self, process: Process, command: do.ReadRecord) -> None:
        """Answer a process that asks what the record says."""
        self._ask(process, command, self._answer_read)

    def swap_for(self, process: Process, command: do.Swap) -> None:
        """Answer a process that asks for a swap."""
        self._ask(process, command, self._answer_swap)

    def _ask(
        self, process: Process, command: do.ReadRecord | do.Swap, answer: Callable[[Process, Any, float], on.Event]
    ) -> None:
        """A question to the register; without an answer in time the node learns so, and never why."""
        there = None if process.cut_off else self._conditions.message(process.node, REGISTER)
        if self.is_superseded(process):
            answer = self._answer_superseded
        if there == 0.0 and self._serve(process, command, answer):
            return
        late = self._clock.now + self.timeout
        self._tell(process, self.timeout, on.RegisterSilent(late, command.ticket))
        if there:
            self._clock.after(there, self._serve, process, command, answer)

    def _serve(
        self, process: Process, command: do.ReadRecord | do.Swap, answer: Callable[[Process, Any, float], on.Event]
    ) -> bool:
        """The question is at the register: it is dealt with even if its sender is gone by now."""
        if not self._conditions.connected(REGISTER, REGISTER):
            return False
        back = self._conditions.message(REGISTER, process.node)
        event = answer(process, command, self._clock.now + (back or 0.0))
        if back is not None and not process.cut_off:
            self._tell(process, back, event)
        return back is not None and back < self.timeout

    def _answer_read(self, process: Process, command: do.ReadRecord, at: float) -> on.Event:
        return on.RecordRead(at, command.ticket, self.read())

    def _answer_swap(self, process: Process, command: do.Swap, at: float) -> on.Event:
        before = self.read()
        after = self._register.swap(command.revision, command.record)
        if after is None:
            return on.SwapRefused(at, command.ticket, before)
        if self._watcher is not None:
            self._watcher.swapped(process.node, command.epoch, before.record, after.record)
        self._spread_news(after)
        return on.Swapped(at, command.ticket, after)

    def _answer_superseded(self, process: Process, command: do.Command, at: float) -> on.Event:
        return on.Superseded(at)

    def _spread_news(self, versioned: Versioned) -> None:
        """Notify every node, the author too: it may have been started anew since it asked for the swap."""
        processes = self._lives.all()
        if self._calm:
            # Where nothing fails, a node without weights has nothing to do with the news until the model comes.
            holder = versioned.record.holder
            processes = [p for p in processes if p.disk or p.node == holder]
        for process in processes:
            if self.hears(process):
                # A lost notice is sent again; a node that is cut off sees the record when it is back in touch.
                seconds = self._conditions.message(REGISTER, process.node)
                seconds = self.timeout if seconds is None else seconds
                self._tell(process, seconds, on.RecordSeen(self._clock.now + seconds, versioned))
        self._look_after_holder()

"""The round machine of one run at one site, and what carries its commands out.

Nothing here decides: `circulation/` does, and its commands carry all that is needed. Every command becomes a task;
what comes of it goes back into the machine as an event, in the order in which it happened. All of it runs on one
event loop; only disk and policy use threads. The last events are kept, and written to a file when something breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.circulation.blackbox import Recorder
from tramfl.circulation.changes import OrderedChange
from tramfl.circulation.custody import Record
from tramfl.circulation.machine import advance, awaited
from tramfl.circulation.phases import Limits, State
from tramfl.draws import deciding
from tramfl.notation import Counts, Digest, ModelCost, NodeId
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import LeaseTaken, Register
from tramfl.runtime.roster import Roster
from tramfl.runtime.site.asking import LoadQuestions
from tramfl.runtime.site.deciding import Decider
from tramfl.runtime.site.register_answers import RegisterAnswers, row_to_commit
from tramfl.runtime.site.surroundings import Surroundings
from tramfl.runtime.site.tapes import write_tape
from tramfl.runtime.training import NewWeights, WorkFailed, Workshop
from tramfl.runtime.transport import NotAccepted, Refusal, Unreachable
from tramfl.runtime.weights import WeightStore
from tramfl.runtime.wire import Accepted, Consignment, Refused
from tramfl.scheduling.policy import Policy

ENDED = "the site takes no part in the run any more"


class DriverEnded(Exception):
    """The driver was ended before an order was answered."""


class Driver:
    """One run at one site."""

    def __init__(
        self,
        *,
        me: NodeId,
        roster: Roster,
        run: str,
        seed: int,
        labels: int,
        limits: Limits,
        cost: ModelCost,
        policy: Policy,
        policy_name: str,
        wait_seconds: float,
        register: Register,
        store: WeightStore,
        workshop: Workshop,
        surroundings: Surroundings,
        clock: Callable[[], float],
        log: Log,
        incarnation: int,
        folder: Path,
    ) -> None:
        """`folder` is where the last events go when something breaks."""
        self.run, self.store = run, store
        self._roster, self._seed = roster, seed
        self._workshop, self._site = workshop, surroundings
        self._clock, self._log = clock, log
        self._answers = RegisterAnswers(register, run, clock, log)
        self._decider = Decider(policy, policy_name, wait_seconds, me, cost, log)
        self.held: Counts = np.zeros((len(roster.names), labels), dtype=np.int64)
        """l_ic, as each site last said."""
        # Tickets of an earlier life must never be mistaken for this one's.
        self.state = State(me, cost.model_bits, limits, ticket=incarnation << 32, counts_overhead=True)
        self.progress: float | None = None
        """Of the transfer or training under way."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends: dict[int, asyncio.Task[None]] = {}
        self._trainings: dict[int, asyncio.Task[None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._staged: dict[Digest, Path] = {}
        self._diverged: Digest | None = None
        """What this site trained last, where that training had no finite loss."""
        self._arrivals: dict[tuple[NodeId, int], list[asyncio.Future[Accepted | Refused]]] = {}
        # One thread, so stores and discards run in the order requested.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._loads = LoadQuestions(run, roster, labels, surroundings.load_of, log)
        self._recorder = Recorder()
        self._folder = folder
        self._orders: dict[int, asyncio.Future[Record | None]] = {}
        self._order_numbers = itertools.count(1)
        self._other_place = ""
        """Where another process of this site has joined since."""
        self._departure: asyncio.Future[do.Depart] = self._loop.create_future()
        self._ended = False

    # Events in, commands out.

    def start(self) -> None:
        """The process begins, with what is on its disk."""
        self.tell(on.Started(self._clock(), self.store.copies()))

    def tell(self, event: on.Event) -> None:
        """Something happened."""
        if self._ended:
            return
        self._recorder.note(self.state, event)
        try:
            self.state, commands = advance(self.state, event)
            self._follow_members()
            self._drop_stale_timers()
            for command in commands:
                _CARRY_OUT[type(command)](self, command)
        except Exception as error:
            self._break(error)

    def _follow_members(self) -> None:
        """Know every member that the machine knows, before its commands name them."""
        if self.state.seen is None:
            return
        self._roster.follow(self.state.seen)
        if (more := len(self._roster.names) - len(self.held)) > 0:
            self.held = np.pad(self.held, ((0, more), (0, 0)))

    async def order(self, change: OrderedChange, *, persistent: bool = False) -> Record | None:
        """Change the record; the record afterwards, or None where the register did not answer.

        Raises DriverEnded where the run, or the site, ended first.
        """
        if self._ended:
            raise DriverEnded(ENDED)
        future: asyncio.Future[Record | None] = self._loop.create_future()
        number = next(self._order_numbers)
        self._orders[number] = future
        self.tell(on.Ordered(self._clock(), number, change, persistent))
        return await future

    async def leave(self) -> do.Depart:
        """Hand the model on where this site holds it; how to depart."""
        self.tell(on.LeaveOrdered(self._clock()))
        return await self._departure

    def _break(self, error: BaseException) -> None:
        """Something failed that no event covers: write the last events down, and end the site."""
        tape = self._recorder.tape(self._roster.names[self.state.me], self.run, f"{type(error).__name__}: {error}")
        write_tape(tape, self._folder / f"blackbox-{int(self._clock())}.msgpack", self._log)
        self._site.broken(error)

    async def end(self) -> None:
        """Stop all that is under way; the disk stays as it is."""
        self._ended = True
        if not self._departure.done():
            self._departure.set_result(do.Depart(release=False))
        for order in self._orders.values():
            if not order.done():
                order.set_exception(DriverEnded(ENDED))
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._loads.forget()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiting in self._arrivals.values():
            for future in waiting:
                if not future.done():
                    future.set_result(Refused(ENDED))
        self._disk.shutdown(wait=True)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _drop_stale_timers(self) -> None:
        wanted = awaited(self.state)
        for ticket in [t for t in self._timers if t not in wanted]:
            self._timers.pop(ticket).cancel()

    # The register.

    def _read_record(self, command: do.ReadRecord) -> None:
        self._task(self._reading(command))

    async def _reading(self, command: do.ReadRecord) -> None:
        self._hear(await self._answers.to_reading(command))

    def _hear(self, event: on.Event | None) -> None:
        if event is not None:
            self.tell(event)

    def _swap(self, command: do.Swap) -> None:
        # The site that trained commits the round, so it knows how the training of these weights went.
        row = row_to_commit(command, diverged=command.record.weights.digest == self._diverged)
        self._task(self._swapping(command, row))

    async def _swapping(self, command: do.Swap, row: bytes | None) -> None:
        try:
            self._hear(await self._answers.to_swap(command, row))
        except LeaseTaken as taken:
            self._other_place = str(taken)
            self.tell(on.Superseded(self._clock()))

    def _nudge(self, command: do.Nudge) -> None:
        self._site.nudge(command.to)

    def _answer_order(self, command: do.AnswerOrder) -> None:
        order = self._orders.pop(command.order)
        if not order.done():
            order.set_result(command.record)

    def _depart(self, command: do.Depart) -> None:
        if command.to is not None:
            self._log("handed-on", peer=self._roster.names[command.to])
        if not self._departure.done():
            self._departure.set_result(command)
        if command.superseded:
            self._site.superseded(self._other_place)
        if command.removed:
            self._site.removed()

    # Step 1: loads.

    def _ask_loads(self, command: do.AskLoads) -> None:
        for node in command.nodes:
            if node == self.state.me:
                self._loop.call_soon(self._report_own, command)
            else:
                self._task(self._asking(command, node))

    def _report_own(self, command: do.AskLoads) -> None:
        flops = self._site.own_load()
        outlook = self._site.own_outlook() if flops > 0 else None
        self.tell(on.LoadReported(self._clock(), command.ticket, self.state.me, flops, math.inf, outlook))

    @property
    def _others(self) -> tuple[NodeId, ...]:
        present = self.state.seen.record.present if self.state.seen is not None else ()
        return tuple(node for node in present if node != self.state.me)

    async def _asking(self, command: do.AskLoads, node: NodeId) -> None:
        found = await self._loads.of(node, command.round, self.state.limits.load_reply)
        if found is None:
            self.tell(on.LoadMissing(self._clock(), command.ticket, node))
            return
        load, bandwidth = found
        self.held[node] = load.held
        self.tell(on.LoadReported(self._clock(), command.ticket, node, load.flops, bandwidth, load.outlook))

    # Step 2: decide and wait.

    def _decide(self, command: do.Decide) -> None:
        self._task(self._deciding(command))

    async def _deciding(self, command: do.Decide) -> None:
        rng = deciding(self._seed, command.ledger.round + 1)
        held = self.held[: len(command.loads.flops)].copy()
        decision = await self._decider.decision(command, held, self._roster.names, rng)
        self.tell(on.Decided(self._clock(), command.ticket, decision))

    def _wake(self, command: do.Wake) -> None:
        self._timers[command.ticket] = self._loop.call_later(command.seconds, self._woke, command.ticket)

    def _woke(self, ticket: int) -> None:
        self._timers.pop(ticket, None)
        self.tell(on.Woke(self._clock(), ticket))

    # Step 3: send and receive.

    def _send_model(self, command: do.SendModel) -> None:
        task = self._sends[command.ticket] = self._task(self._sending(command, self._clock()))
        task.set_name(self._roster.names[command.to])

    async def _sending(self, command: do.SendModel, decided_at: float) -> None:
        path = self.store.path(command.offer.digest)
        try:
            if path is None:
                raise Unreachable(f"the weights {command.offer.digest} are not on disk")
            size = path.stat().st_size
            consignment = Consignment(self.run, command.offer, size, decided_at)

            def moved(sent: int) -> None:
                if command.offer.assignment is not None:
                    self.progress = sent / size

            def slowed(seconds_left: float) -> None:
                self.tell(on.SendSlowed(self._clock(), command.ticket, seconds_left))

            await self._site.send(command.to, consignment, path, moved, slowed)
        except (Refusal, Unreachable, OSError) as error:
            self._log("not-sent", peer=self._roster.names[command.to], reason=str(error))
            self.tell(on.SendFailed(self._clock(), command.ticket, isinstance(error, NotAccepted)))
        else:
            self.tell(on.Acknowledged(self._clock(), command.ticket))
        finally:
            self._sends.pop(command.ticket, None)
            if command.offer.assignment is not None:
                self.progress = None

    def _cancel_send(self, command: do.CancelSend) -> None:
        if command.overdue:
            self._log("overdue", doing="sending")
        if task := self._sends.pop(command.ticket, None):
            if command.reason:
                self._log("given-up", peer=task.get_name(), reason=command.reason)
            task.cancel()

    async def arrived(
        self, sender: NodeId, consignment: Consignment, staged: Path, seconds: float, since: float
    ) -> Accepted | Refused:
        """Take in a peer's model, which is in staging, whole and verified; returns the answer to the peer.

        Its transfer was asked for at `since` on the monotonic clock, and took `seconds`; the rest is overhead, and so
        is what passed before, since the sender had decided.
        """
        if self._ended:
            return Refused(ENDED)  # no event would ever answer it
        offer = consignment.offer
        self._staged[offer.digest] = staged
        future: asyncio.Future[Accepted | Refused] = self._loop.create_future()
        waiting = self._arrivals.setdefault((sender, offer.ticket), [])
        waiting.append(future)
        now, spent = self._clock(), time.monotonic() - since
        way = max(0.0, now - spent - consignment.sent_at) if consignment.sent_at is not None else 0.0
        self.tell(on.ModelArrived(now - way - max(0.0, spent - seconds), sender, offer, seconds))
        try:
            return await future
        finally:
            waiting.remove(future)
            if not waiting:
                self._arrivals.pop((sender, offer.ticket), None)

    def _acknowledge(self, command: do.Acknowledge) -> None:
        self._reply(command.to, command.ticket, Accepted())

    def _refuse(self, command: do.Refuse) -> None:
        # The port logs every refusal, with the caller's address.
        self._reply(command.to, command.ticket, Refused(command.reason))

    def _reply(self, to: NodeId, ticket: int, reply: Accepted | Refused) -> None:
        for future in self._arrivals.get((to, ticket), ()):
            if not future.done():
                future.set_result(reply)

    # Step 4: train and store.

    def _train(self, command: do.Train) -> None:
        self._trainings[command.ticket] = self._task(self._training(command))

    async def _training(self, command: do.Train) -> None:
        samples = command.assignment.decision.samples
        parent = self.store.path(command.parent)
        to = self.store.scratch()
        made: NewWeights | None = None
        try:
            if parent is None:
                raise WorkFailed(f"the weights {command.parent} are not on disk")
            made = await self._workshop.train(parent, samples, command.round, to, self.store.readout)
        except (WorkFailed, ValueError) as error:
            self._log("training-failed", reason=str(error))
            self.tell(on.TrainingFailed(self._clock(), command.ticket))
        else:
            self._site.trained(sum(samples), made.seconds)
            reason = self._site.objection(made)
            if self.state.seen is not None:
                self._site.made(self.state.seen.record, command, made.digest, reason)
            if reason is not None:
                self._log("not-accepted", digest=made.digest, reason=reason)
                self.tell(on.Rejected(self._clock(), command.ticket, made.digest, made.seconds))
                made = None  # its file is removed below
                return
            # The others report while the new weights are stored and committed.
            self._loads.ask_ahead(command.round + 1, self._others, self.state.limits.load_reply)
            self._staged[made.digest] = to
            self._diverged = made.digest if made.diverged else None
            self.tell(on.Trained(self._clock(), command.ticket, made.digest, made.seconds))
        finally:
            self._trainings.pop(command.ticket, None)
            if made is None:
                # Half a file, perhaps; a disk that is full needs the room.
                with contextlib.suppress(OSError):
                    to.unlink()

    def _cancel_training(self, command: do.CancelTraining) -> None:
        if command.overdue:
            self._log("overdue", doing="training")
        if task := self._trainings.pop(command.ticket, None):
            task.cancel()

    def _store(self, command: do.Store) -> None:
        self._task(self._storing(command))

    async def _storing(self, command: do.Store) -> None:
        copy = command.copy
        # What is stored under an older round already is stored anew, under its new one.
        staged = self._staged.pop(copy.digest, None) or self.store.path(copy.digest)
        try:
            if staged is None:
                raise OSError(f"{copy.digest} is neither in staging nor in the store")
            await self._loop.run_in_executor(self._disk, self.store.put, staged, copy)
        except OSError as error:
            self._log("not-stored", digest=copy.digest, reason=str(error.strerror or error))
            self.tell(on.StoreFailed(self._clock(), command.ticket))
        else:
            self.tell(on.Stored(self._clock(), command.ticket, copy))

    def _discard(self, command: do.Discard) -> None:
        self._loop.run_in_executor(self._disk, self.store.discard, command.digests)

    def _close_round(self, command: do.CloseRound) -> None:
        self._site.closed(command, self.store.path(command.record.weights.digest))


_CARRY_OUT: dict[type[do.Command], Callable[[Driver, Any], None]] = {
    do.ReadRecord: Driver._read_record,
    do.Swap: Driver._swap,
    do.AskLoads: Driver._ask_loads,
    do.Decide: Driver._decide,
    do.Wake: Driver._wake,
    do.SendModel: Driver._send_model,
    do.CancelSend: Driver._cancel_send,
    do.Train: Driver._train,
    do.CancelTraining: Driver._cancel_training,
    do.Store: Driver._store,
    do.Acknowledge: Driver._acknowledge,
    do.Refuse: Driver._refuse,
    do.Discard: Driver._discard,
    do.CloseRound: Driver._close_round,
    do.Nudge: Driver._nudge,
    do.AnswerOrder: Driver._answer_order,
    do.Depart: Driver._depart,
}

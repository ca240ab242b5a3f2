"""A site: one process that follows the register, answers its peers, and drives the round machine of the run.

follow      news of the record and of who is alive, into the machine
keep alive  this site's lease
host        what peers and operators ask for (`transport.Host`)
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec

import tramfl
from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.circulation.custody import Record, Status
from tramfl.circulation.phases import Copy, Sending, State
from tramfl.notation import BadInput, Digest, ModelCost, NodeId
from tramfl.record import past, write_atomically
from tramfl.runtime.loads.probe import ComputeMeter, History, LinkMeter, Machine
from tramfl.runtime.registers.contract import LeaseLost, Register, Silent, Standing
from tramfl.runtime.settings import Site
from tramfl.runtime.site.driver import ENDED, Driver
from tramfl.runtime.site.journal import Journal
from tramfl.runtime.site.leaving import hand_on
from tramfl.runtime.site.metrics import Metrics
from tramfl.runtime.site.orders import Orders, check_run_name, misfit
from tramfl.runtime.training.scoring import Scorer, with_scores
from tramfl.runtime.training.workshop import Build, Built, WorkFailed, Workshop
from tramfl.runtime.transport import Credentials, Peers, Refusal, Server, Unreachable
from tramfl.runtime.weights.manifest import Manifest
from tramfl.runtime.weights.store import Store
from tramfl.runtime.wire import (
    Accepted,
    Answer,
    AskLoad,
    AskRows,
    Consignment,
    Load,
    Order,
    Prepared,
    Refused,
    Rows,
    SiteReport,
)
from tramfl.scheduling.policy import PolicySettings, policy_named

MOST_LIVES = 1 << 31
"""A ticket has room for so many lives of a site."""
KEPT_RUNS = 2
"""Weights of the run at hand, and of the one before it."""
PROBE_SECONDS = 1.0


class Node:
    """One site's process."""

    def __init__(
        self,
        site: Site,
        register: Register,
        credentials: Credentials | None,
        log: Journal,
        metrics: int | None = None,
    ) -> None:
        federation = site.federation
        self.site, self.federation, self.scenario = site, federation, federation.file.run
        self.me: NodeId = site.number
        self.names = federation.names
        self.register, self.log = register, log
        self.peers = Peers(federation, site.file.site, credentials)
        self.state_folder = site.beside(site.file.state)
        self.policy = policy_named(
            self.scenario.policy, PolicySettings(self.scenario.variance_limit, self.scenario.wait_seconds)
        )
        self.driver: Driver | None = None
        self.standing: Standing | None = None
        self.built: Built | None = None
        self.initial: tuple[Path, Digest] | None = None
        self.manifest: Manifest | None = None
        self.store: Store | None = None
        """Where arriving weights go; None before a run has begun."""
        self.workshop = Workshop(Build.of(site), log)
        self._server = Server(site.listen, credentials, federation, self, log)
        self._orders = Orders(self)
        self._metrics_port = metrics
        self._wall = time.time() - time.monotonic()
        self._began = time.monotonic()
        self._holder_seen_alive: NodeId | None = None
        self._holder_lost_at = -float("inf")
        self._news_turn = asyncio.Lock()
        targets = self.scenario.budget.targets
        self._scorer = Scorer(self.state_folder, self.workshop, register, targets, log, self._target_reached)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._incarnation = 0
        self._unfit_run: str | None = None

    # Life.

    async def run(self, stop: asyncio.Event) -> None:
        """Be a site until `stop`; raises what keeps it from being one."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._alone())
            self._incarnation = self._next_incarnation()
            stack.push_async_callback(self.peers.close)
            stack.push_async_callback(self.register.close)
            stack.push_async_callback(self.workshop.close)
            await self._load_model()
            stack.push_async_callback(self._server.stop, 0.5)
            await self._server.start()
            if self._metrics_port is not None:
                await stack.enter_async_context(Metrics(self, self._metrics_port))
            stack.push_async_callback(self._end_tasks)
            self._began = time.monotonic()
            for work in (self._keep_alive(), self._follow(), self._scorer.work()):
                self._task(work)
            self.log("started", address=self.site.listen, incarnation=self._incarnation, held=self.held)
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait((stopping, self._broken), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._broken.done():
                self._broken.result()
            await self._leave()
            self.log("ended")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only process of this site: two would answer for each other."""
        try:
            self.state_folder.mkdir(parents=True, exist_ok=True)
            lock = (self.state_folder / "lock").open("wb")
        except OSError as error:
            raise BadInput(f"{self.state_folder} cannot be written: {error.strerror}.") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"{self.state_folder}: another process of site {self.site.file.site!r} is at work there."
                ) from None
            yield

    def _next_incarnation(self) -> int:
        path = self.state_folder / "incarnation"
        try:
            before = int(path.read_text()) if path.exists() else 0
            lost = not 0 <= before < MOST_LIVES
        except (OSError, ValueError):
            lost = True
        if lost:
            # It must not repeat a ticket: the clock is far past any count, and as far below what a ticket can hold.
            before = int(time.time()) % MOST_LIVES
        write_atomically(path, str(before + 1).encode())
        return before + 1

    async def _load_model(self) -> None:
        workshop = self.workshop
        try:
            self.built = await workshop.open()
            path = self.state_folder / "initial.safetensors"
            made = await workshop.make_initial(path)
        except WorkFailed as error:
            raise BadInput(f"site {self.site.file.site!r}: model and data do not load: {error}.") from None
        self.initial = (path, made.digest)
        self.manifest = Manifest.of(path)
        self.machine = Machine(extra_pids=lambda: [workshop.pid] if workshop.pid else [])
        self._history = History(self.state_folder / "history.json", self.log)
        cores = os.cpu_count() or 1
        share = min(1.0, (self.site.file.threads or cores) / cores)
        self.compute = ComputeMeter(self.cost.flops_per_sample, self.site.file.predictor, share)
        self.compute.calibrated(self.built.flops, self.machine.busy_share())
        self.links = LinkMeter(self.site.file.predictor, model_bits=self.cost.model_bits)
        self._history.restore(self.compute, self.links)

    @property
    def cost(self) -> ModelCost:
        """M and D_M of the model that is really trained and sent."""
        assert self.built is not None
        return self.built.cost

    @property
    def held(self) -> tuple[int, ...]:
        """l_ic of this site."""
        return self.built.held if self.built is not None else ()

    @property
    def record(self) -> Record | None:
        """The record as last seen."""
        versioned = self.standing.versioned if self.standing is not None else None
        return versioned.record if versioned is not None else None

    def now(self) -> float:
        """Wall-clock time that never runs backwards within a life."""
        return self._wall + time.monotonic()

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(error)

    async def _end_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.driver is not None:
            await self.driver.end()
        self._history.save(self.compute, self.links)

    def broken(self, error: BaseException) -> None:
        """Something failed that no event tells of: end, and let others take over."""
        trace = "".join(traceback.format_exception(error))
        self.log("broken", reason=f"{type(error).__name__}: {error}", trace=trace)
        if not self._broken.done():
            self._broken.set_exception(error)

    async def _leave(self) -> None:
        """End so that nobody has to wait: hand the model on, then give the lease up.

        Not the lease if only this disk has the newest weights, for nobody would take them: then a quick return loses
        nothing.
        """
        self._ending = True
        self.log("ending")
        if self.driver is not None:
            await self.driver.end()
        with contextlib.suppress(Silent, LeaseLost):
            await hand_on(self)
        await self.look()
        # Before the lease goes: whoever keeps it alive would take another.
        await self._end_tasks()
        record = self.record
        if record is not None and record.holder == self.me and record.weights.copies == (self.me,):
            return
        with contextlib.suppress(Silent):
            await self.register.leave()

    # The register.

    async def _keep_alive(self) -> None:
        lease = self.federation.file.lease_seconds
        joined = False
        while True:
            try:
                if joined:
                    await self.register.renew()
                else:
                    await self.register.join()
                    joined = True
            except LeaseLost:
                self.log("lease-lost")
                joined = False
                continue
            except Silent as error:
                self.log("register-silent", reason=str(error))
                await asyncio.sleep(lease / 10)
                continue
            # A reading is the mean since the one before: after a long rest it would tell of the rest.
            self.machine.busy_share()
            await asyncio.sleep(lease / 3)

    async def _follow(self) -> None:
        lease = self.federation.file.lease_seconds
        standing: Standing | None = None
        while True:
            try:
                standing = await (
                    self.register.look() if standing is None else self.register.changed(standing, lease / 4)
                )
            except Silent as error:
                self.log("register-silent", reason=str(error))
                standing = None
                await asyncio.sleep(min(0.5, lease / 4))
                continue
            await self.news(standing)

    async def look(self) -> None:
        """Read the record now; somebody says it has changed."""
        with contextlib.suppress(Silent):
            await self.news(await self.register.look())

    async def news(self, standing: Standing) -> None:
        """The record and who is alive, as of now."""
        async with self._news_turn:
            versioned, before = standing.versioned, self.standing
            known = before.versioned.revision if before is not None and before.versioned is not None else -1
            if versioned is None:
                self.standing = before if known >= 0 else standing
                return
            if versioned.revision < known:
                return
            self.standing = standing
            record = versioned.record
            self.log.at(record.run, record.epoch, record.round)
            if self.driver is None or self.driver.run != record.run:
                await self._begin(record)
            if self.driver is None or self.driver.run != record.run:
                return
            if before is not None and before.versioned is not None and record.epoch > before.versioned.record.epoch:
                self.log("taken-over", holder=self._name(record.holder), safe=record.safe.round)
            if versioned.revision > known:
                self.driver.tell(on.RecordSeen(self.now(), versioned))
            self._look_after_holder(standing)

    def _name(self, node: NodeId | None) -> str | None:
        return None if node is None else self.names[node]

    async def _begin(self, record: Record) -> None:
        """Take part in a run: this life's first, or one that has just begun."""
        try:
            self._check_record(record)
        except BadInput as error:
            if record.status != "stopped":
                raise
            # Nothing is left to do in a run that has ended; the next may fit.
            if self._unfit_run != record.run:
                self._unfit_run = record.run
                self.log("not-joined", reason=str(error))
            return
        if self.driver is not None:
            await self.driver.end()
            # Another run, another life: its tickets must not be mistaken for those of the last.
            self._incarnation = self._next_incarnation()
        # Checking what is on disk reads all of it: the lease must not wait for that.
        store = await asyncio.to_thread(Store, self.run_folder(record.run))
        for damaged in store.damaged:
            self.log("damaged", file=damaged, reason="its content is not what its name says; set aside")
        self.driver = Driver(
            me=self.me,
            names=self.names,
            run=record.run,
            seed=self.scenario.seed,
            labels=len(self.held),
            limits=self.federation.limits,
            cost=self.cost,
            policy=self.policy,
            policy_name=self.scenario.policy,
            wait_seconds=self.scenario.wait_seconds,
            register=self.register,
            store=store,
            workshop=self.workshop,
            surroundings=self,
            clock=self.now,
            log=self.log,
            incarnation=self._incarnation,
        )
        self.driver.held[self.me] = self.held
        self.store = store
        self._forget_old_runs(record.run)
        self.log("joined", holder=self._name(record.holder), copies=[c.digest for c in store.copies()])
        self.driver.start()

    def _check_record(self, record: Record) -> None:
        check_run_name(record.run)
        if wrong := misfit(record, self.federation, len(self.held)):
            raise BadInput(wrong)

    def run_folder(self, run: str) -> Path:
        """Where the weights of a run lie here."""
        return self.state_folder / "runs" / run

    def _forget_old_runs(self, run: str) -> None:
        folder = self.run_folder(run)
        others = sorted((f for f in folder.parent.iterdir() if f != folder), key=lambda f: f.stat().st_mtime)
        for old in others[: -KEPT_RUNS + 1]:
            shutil.rmtree(old, ignore_errors=True)

    def _look_after_holder(self, standing: Standing) -> None:
        """Say that the holder is lost, again and again, while it has no lease."""
        assert standing.versioned is not None
        assert self.driver is not None
        lease, now = self.federation.file.lease_seconds, time.monotonic()
        holder = standing.versioned.record.holder
        if holder is not None and (holder in standing.alive or holder == self.me):
            self._holder_seen_alive = holder
            self._holder_lost_at = -float("inf")
            return
        # Where everybody has just been started, the holder may be the last to come.
        if holder is not None and holder != self._holder_seen_alive and now - self._began < lease:
            return
        # A machine that was busy when it heard of it, or a register that did not answer, must not cost a whole lease.
        if now - self._holder_lost_at >= lease / 4:
            if self._holder_lost_at < 0:
                self.log("holder-lost", holder=self._name(holder))
            self._holder_lost_at = now
            self.driver.tell(on.HolderLost(self.now(), standing.versioned))

    # What the driver needs (driver.Surroundings).

    def own_load(self) -> float:
        """FLOPS that this site can spare; NaN while it could not train at all."""
        if not self.workshop.ready:
            return math.nan
        return self.compute.available(self.machine.busy_share())

    async def load_of(self, node: NodeId, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        """What another site can spare, and the bandwidth to it: known, as it says, or tried out."""
        began = time.monotonic()
        load = await self.peers.load(node, ask, seconds)
        bandwidth = self.bandwidth(node) or load.bandwidth
        if bandwidth is None:
            left = max(0.05, min(PROBE_SECONDS, seconds - (time.monotonic() - began)))
            bandwidth = await self.peers.probe(node, left)
            self.links.probed(self.names[node], bandwidth, time.monotonic())
        return load, bandwidth

    def bandwidth(self, node: NodeId) -> float | None:
        """bit/s to another site, as far as that is known."""
        return self.links.bandwidth(self.names[node], time.monotonic(), self.machine.traffic())

    async def send(self, node: NodeId, consignment: Consignment, path: Path, progress: Callable[[int], None]) -> None:
        """Move a model and remember how long it took: what did not have to travel, or not again, tells nothing."""
        began = time.monotonic()
        starts: list[int] = []

        def note(offset: int) -> None:
            if not starts:
                starts.append(offset)
            progress(offset)

        await self.peers.send(node, consignment, path, note)
        ended = time.monotonic()
        if starts == [0]:
            self.machine.moved(8 * consignment.size)
            self.links.moved(self.names[node], 8 * consignment.size, ended - began, ended)

    def trained(self, samples: int, seconds: float) -> None:
        """A training took so long, beside whatever else ran here."""
        self.compute.trained(samples, seconds, self.machine.busy_share())

    def handed_over(self, to: NodeId) -> None:
        """Tell the new holder, which would else learn of it from the register a little later."""

        async def tell() -> None:
            with contextlib.suppress(Unreachable, Refusal):
                await self.peers.order(to, Order("look"), 1.0)

        self._task(tell())

    def closed(self, command: do.CloseRound) -> None:
        """A round of this site's is committed: test the weights, and see whether the run is at its end."""
        outcome, record = command.outcome, command.record
        decision = outcome.assignment.decision
        self.log(
            "committed",
            epoch=record.epoch,
            round=record.round,
            node=self._name(outcome.node),
            samples=sum(decision.samples),
            predicted_seconds=round(decision.round_seconds, 4),
            actual_seconds=round(outcome.seconds, 4),
            reason=decision.reason,
        )
        assert self.driver is not None
        path = self.driver.store.path(record.weights.digest)
        if outcome.node is not None and path is not None and record.round % self.scenario.evaluation.every == 0:
            self._scorer.soon(record, path)
        self._history.keep(self.compute, self.links, time.monotonic())
        budget = self.scenario.budget
        if past(budget, record.ledger):
            self._task(self._finish(record.run, "the budget is used up"))

    # The end of a run.

    async def _target_reached(self, run: str) -> None:
        await self._finish(run, "the last target is reached")

    async def _finish(self, run: str, reason: str) -> None:
        """A run is at its end; a register that does not answer is told later."""
        self.log("finished", reason=reason)
        while True:
            with contextlib.suppress(Silent):
                await self.set_status("stopped", run)
                return
            await asyncio.sleep(0.5)

    async def set_status(self, status: Status, run: str | None = None) -> Record | None:
        """Pause, resume or stop the run, or this one alone; the record as it is then, or None where there is none.

        Raises Silent where the register does not answer: then it may have been done or not.
        """
        while True:
            versioned = (await self.register.look()).versioned
            if versioned is None or run not in (None, versioned.record.run):
                return None
            if versioned.record.status in (status, "stopped"):
                return versioned.record
            record = msgspec.structs.replace(versioned.record, status=status)
            try:
                swapped = await self.register.swap(versioned.revision, record)
            except LeaseLost:
                await self.register.join()
                continue
            if swapped is not None:
                await self.look()
                return record

    # What peers and operators ask for (transport.Host).

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        """What this site can spare for a round of a peer's."""
        if self._ending:
            raise Refusal(ENDED)
        if self.driver is None or self.driver.run != ask.run:
            await self.look()
        flops = self.own_load()
        if math.isnan(flops):
            raise Refusal("the process that trains is not ready")
        return Load(flops, self.bandwidth(peer), self.held)

    def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Why a model is not let in."""
        driver, offer = self.driver, consignment.offer
        if self._ending or driver is None or driver.run != consignment.run:
            return ENDED if self._ending else f"this site takes no part in a run {consignment.run!r}"
        if offer.assignment is None:
            return None
        decision = offer.assignment.decision
        if decision.node != self.me:
            return "the assignment is for another site"
        if len(decision.samples) != len(self.held):
            return f"the assignment has {len(decision.samples)} labels, and this site {len(self.held)}"
        if any(wanted > there for wanted, there in zip(decision.samples, self.held, strict=True)):
            return "the assignment wants samples that this site does not hold"
        return None

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float
    ) -> Accepted | Refused:
        """A model is here, whole and verified."""
        if self.driver is None or self.driver.run != consignment.run:
            return Refused(f"this site takes no part in a run {consignment.run!r}")
        if seconds > 0:  # else nothing travelled: the weights were here
            self.machine.moved(8 * consignment.size)
            self.links.moved(self.names[peer], 8 * consignment.size, seconds, time.monotonic())
        return await self.driver.arrived(peer, consignment, staged, seconds)

    async def order(self, who: str, order: Order) -> Answer:
        """What an operator, or a peer, wants done."""
        return await self._orders.carry_out(who, order)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        """Rows of committed rounds, with the scores that are known by now."""
        try:
            lines = await self.register.rows(ask.run, ask.first, ask.last)
            notes = await self.register.notes(ask.run, ask.first, ask.last)
        except Silent as error:
            raise Refusal(f"the register does not answer ({error})") from None
        return Rows(tuple(with_scores(line, notes) for line in lines))

    def model_path(self, digest: Digest) -> Path | None:
        """Weights that this site can give."""
        return self.driver.store.path(digest) if self.driver is not None else None

    def prepare(self, run: str) -> Prepared:
        """Put w_0 where the run will look for it."""
        assert self.built is not None
        assert self.initial is not None
        path, digest = self.initial
        store = Store(self.run_folder(run))
        if store.path(digest) is None:
            stage = store.scratch()
            shutil.copyfile(path, stage)
            store.put(stage, Copy(digest, 0, 1))
        return Prepared(digest, self._orders.settings_digest, self.built.labels, self.held, self.cost)

    def report(self) -> SiteReport:
        """What this site is doing."""
        record, driver = self.record, self.driver
        phase = driver.state.phase if driver is not None else None
        at = time.monotonic()
        known = {n: self.links.bandwidth(n, at) for n in self.names if n != self.site.file.site}
        return SiteReport(
            site=self.site.file.site,
            doing=_doing(driver.state) if driver is not None else "idle",
            run=record.run if record is not None else None,
            epoch=record.epoch if record is not None else None,
            round=record.round if record is not None else None,
            progress=driver.progress if driver is not None else None,
            to=phase.to if isinstance(phase, Sending) else None,
            flops=self.compute.expected() if self.workshop.ready else None,
            bandwidth={name: bits for name, bits in known.items() if bits is not None},
            held=self.held,
            labels=self.built.labels if self.built is not None else (),
            copies=tuple(c.digest for c in driver.state.copies) if driver is not None else (),
            cost=self.cost,
            settings=self._orders.settings_digest,
            at=self.now(),
            incarnation=self._incarnation,
            version=tramfl.__version__,
        )


def _doing(state: State) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(state.phase).__name__).lower()

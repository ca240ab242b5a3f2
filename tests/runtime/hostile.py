"""A whole hostile member against honest sites: real sites in this process, over TLS, with one register file.

Sites a, b and c are honest: `run_site`, a real port, a real register and a real training, in this process.
Site e has its own certificate and its place in the register, answers calls with lies, and does what a `Random` draws.
What must hold: no honest site ends, no committed round is lost or changed, memory, disk and logs stay bounded, and
rounds go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import resource
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import grpc
import msgspec
from msgspec.structs import replace

from tests.runtime.fuzzing import mutated_message, strange
from tests.runtime.sites import Log
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Assignment, Offer
from tramfl.config import Budget, Evaluation, Partition, Scenario
from tramfl.notation import BadInput, Candidate, Decision, Digest, Loads, NodeId
from tramfl.runtime.journal import Journal
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.operating import Operator, operator_from, site_credentials
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.registers import Standing
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.registers.records import record_from, stored
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import RegisterSettings, SiteEntry, read_site
from tramfl.runtime.site import process, run_site
from tramfl.runtime.training.bench import _Bench
from tramfl.runtime.training.workshop import Build, Built, Failed, Job, JobResult, WorkFailed, Workshop
from tramfl.runtime.transport import Peers, Refusal, Server, Unreachable, links
from tramfl.runtime.transport.links import encode
from tramfl.runtime.weights import Manifest, WeightStore
from tramfl.runtime.wire import (
    Accepted,
    AskLoad,
    AskModel,
    AskRows,
    Consignment,
    Load,
    Order,
    OrderResult,
    Refused,
    Rows,
    SiteReport,
)

HONEST, LIAR = ("a", "b", "c"), "e"
LEASE_SECONDS = 1.0
ROUND_SECONDS = 0.05
"""What a training takes at least: rounds take the time of a slow machine, and leave this one free."""
STALLS = 0.5
"""How often site e takes a model in and then says nothing."""
AT_ONCE = 128
"""Actions of site e at one moment."""
MOST_STREAMS = 600
MOST_DISK = 30 << 20
MOST_LOG = 1 << 20
"""Bytes a site's log may grow by in 10,000 actions."""
MOST_MEMORY = 300 << 20
T = TypeVar("T")
SCENARIO = Scenario(
    name="hostile",
    dataset="digits",
    policy="load-aware",
    variance_limit=500.0,
    partition=Partition(layout="iid", nodes=4),
    evaluation=Evaluation(every=50),
    budget=Budget(rounds=1_000_000_000),
)


class BenchInThread(Workshop):
    """A workshop whose bench is a thread of this process: PyTorch is loaded once for all sites."""

    def __init__(self, build: Build, log: Any = None) -> None:
        super().__init__(build, log)
        self._bench = _Bench()
        self._open = False

    @property
    def ready(self) -> bool:
        return self._open

    @property
    def pid(self) -> int | None:
        return None

    async def _ask(self, request: Job, kind: type[Any]) -> Any:
        async with self._turn:
            result: JobResult = await asyncio.to_thread(self._done, request)
        if isinstance(result, Failed):
            raise (BadInput if result.expected else WorkFailed)(result.reason)
        return result

    def _done(self, request: Job) -> JobResult:
        began = time.monotonic()
        result = self._bench.do(request)
        if not isinstance(request, Build):
            time.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - began)))
        return result

    async def open(self) -> Built:
        built: Built = await self._ask(self._build, Built)
        self._open = True
        return built

    async def close(self) -> None:
        self._open = False


class Lies:
    """What site e answers when it is called: it promises much, and keeps nothing."""

    def __init__(self, rng: Random, folder: Path, manifest: Manifest) -> None:
        self._rng, self.manifest = rng, manifest
        self.store = WeightStore(folder)
        self.standing: Standing | None = None
        self.over = asyncio.Event()
        """Set when the siege ends."""

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        rng = self._rng
        if rng.random() < 0.2:
            held = tuple(rng.choice((0, 5, 1 << 60)) for _ in range(10))
            return Load(strange_number(rng), strange_number(rng), held)
        return Load(1e15, 1e12, (1000,) * 10)

    def receiving(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        return None if self._rng.random() < 0.7 else "\x1b[2J" + "x" * 100_000

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float, since: float
    ) -> Accepted | Refused:
        if self._rng.random() < STALLS:
            await self.over.wait()
        # It says that the model is on its disk, and will hold it and do nothing.
        return Accepted() if self._rng.random() < 0.3 else Refused("x" * 10_000)

    async def order(self, who: str, order: Order) -> OrderResult:
        record = msgspec.msgpack.encode(self.standing) if self.standing is not None else b""
        return OrderResult(True, "\x1b]0;mine\x07", SiteReport(site="a", doing="halted"), record=record)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        return Rows((b"{}", b"\xff" * 1000))

    def model_path(self, digest: Digest) -> Path | None:
        return None


def strange_number(rng: Random) -> float:
    return rng.choice((0.0, -1.0, 1.0, 1e308, float("nan"), float("inf"), 1e-300))


class Siege:
    """Three honest sites, one hostile one, and the operator."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self.folder, self.rng = folder, rng
        self.done: Counter[str] = Counter()
        names = (*HONEST, LIAR)
        entries = tuple(
            SiteEntry(name=name, address=f"127.0.0.1:{port}") for name, port in zip(names, free_ports(4), strict=True)
        )
        plan = founding.NewFederation(
            name="siege", site=entries, register=RegisterSettings(), run=founding.run_for(SCENARIO, 4)
        )
        founding.found(plan, folder / "f")
        for file in (folder / "f").rglob("federation.toml"):
            text = re.sub(r"(?m)^lease_seconds = .*$", f"lease_seconds = {LEASE_SECONDS}", file.read_text())
            file.write_text(text)
        self.sites = {
            name: read_site(founding.site_folder(folder / "f", name) / founding.SITE_FILE) for name in names
        }
        self.logs = {name: io.BytesIO() for name in HONEST}
        self._stops: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._streams: list[Any] = []
        self._rows: dict[int, bytes] = {}
        self._safe = 0
        self.hand: Operator
        self._memory = 0
        self.usual = 0.0
        """Rounds per second before site e came."""

    @contextlib.asynccontextmanager
    async def begun(self, usual_seconds: float) -> AsyncIterator[Siege]:
        """Start the honest sites and a run, see how fast it is for a while, and let the hostile site in."""
        setattr(process, "Workshop", BenchInThread)  # noqa: B010 - the site's own import of it
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(setattr, process, "Workshop", Workshop)
            self.hand = operator_from(self.folder / "f" / "federation.toml", False)
            stack.push_async_callback(self.hand.close)
            stack.push_async_callback(self._end)
            for name in HONEST:
                self._start(name)
            await self._until(lambda: all(b'"started"' in log.getvalue() for log in self.logs.values()))
            site = self.sites[LIAR]
            credentials = site_credentials(site, False)
            self.peers = Peers(Roster(site.federation), LIAR, credentials)
            stack.push_async_callback(self.peers.close)
            initial = founding.site_folder(self.folder / "f", "a") / "state" / "initial.safetensors"
            self.model = self.folder / "own.safetensors"
            shutil.copyfile(initial, self.model)
            self.lies = Lies(self.rng, self.folder / "e", Manifest.of(initial))
            await self.hand.order(Order("start", "run-1"))
            await self._until(lambda: self.record().round >= 5)
            self.usual = await self._rate(usual_seconds)
            server = Server(site.listen, credentials, Roster(site.federation), self.lies, Log())
            await server.start()
            stack.push_async_callback(server.stop, 0)
            stack.callback(self.lies.over.set)
            self.register = open_register(site.federation, site.file.site)
            stack.push_async_callback(self.register.close)
            self._memory = _resident()
            yield self

    def _start(self, name: str) -> None:
        stop = self._stops[name] = asyncio.Event()
        site = self.sites[name]
        register = open_register(site.federation, site.file.site)
        log = Journal(name, self.logs[name])
        work = run_site(site, register, site_credentials(site, False), log, stop)
        self.tasks[name] = asyncio.create_task(work)

    async def _end(self) -> None:
        for stop in self._stops.values():
            stop.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _until(self, fact: Callable[[], bool], seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while not fact():
                self._check_alive()
                await asyncio.sleep(0.05)

    # What site e does.

    async def act(self) -> None:
        """One action, drawn."""
        kinds: list[tuple[Callable[[], Any], int]] = [
            (self.asks_load, 20),
            (self.orders, 20),
            (self.offers, 20),
            (self.asks_rows, 10),
            (self.asks_model, 5),
            (self.says_anything, 15),
            (self.opens_stream, 8),
            (self.writes_note, 3),
            (self.takes_lease, 1),
        ]
        (kind,) = self.rng.choices([k for k, _ in kinds], [w for _, w in kinds])
        self.done[kind.__name__] += 1
        with contextlib.suppress(Refusal, Unreachable, grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(1.0):  # a sender that is refused for a while would try again for seconds
                await kind()

    def _somebody(self) -> NodeId:
        return self.rng.randrange(3)

    async def asks_load(self) -> None:
        await self.peers.load(self._somebody(), AskLoad(self.rng.choice(("run-1", "x")), self.rng.randrange(99)), 2.0)

    async def orders(self) -> None:
        # Every member may pause, resume and stop a run: that would end the trial, and is no attack.
        what: Any = self.rng.choice(("status", "look", "prepare", "start", "repair", "drain", "undrain"))
        run = self.rng.choice(("run-1", "run-2", "../x", "\x1b[2J", "x" * 4000, f"r{self.rng.randrange(1 << 30)}"))
        await self.peers.order(self._somebody(), Order(what, run, True), 5.0)

    async def offers(self) -> None:
        """Weights, with or without an assignment, for any round: of the present record, of the next, of no record."""
        rng, to, record = self.rng, self._somebody(), self.record()
        digest = rng.choice((record.weights.digest, record.safe.digest, "0" * 64, "f" * 64))
        round_ = rng.choice((record.round, record.round + 1, record.safe.round, 1 << 52, 0))
        epoch = rng.choice((record.epoch, record.epoch + 1, 1 << 52))
        candidates = (Candidate(to, 10, 1.0, strange_number(rng), 3.0, 0.0, 5.0, True),)
        decision = Decision("mine", to, (1,) * 10, 1.0, 2.0, 0.0, "x" * 900, candidates)
        loads = Loads((1e9,) * 4, (1e8,) * 4)
        lost = rng.choice((0.0, 5e6, strange_number(rng)))
        assignment = Assignment(3, decision, loads, lost) if rng.random() < 0.6 else None
        offer = Offer(epoch, round_, digest, rng.randrange(1 << 62), assignment)
        await self.peers.send(to, Consignment("run-1", offer, self.model.stat().st_size), self.model, lambda _: None)

    async def asks_rows(self) -> None:
        first = self.rng.choice((0, 1, -5, 1 << 62))
        await self.peers.rows(self._somebody(), AskRows("run-1", first, self.rng.choice((5, 400, 1 << 40))), 5.0)

    async def asks_model(self) -> None:
        """A fetch that is not read."""
        ask = encode(AskModel(self.record().weights.digest, self.rng.choice((0, 5, 1 << 60))))
        self._keep(self.peers._channel(self._somebody()).unary_stream(links.method("Model"))(ask))

    async def says_anything(self) -> None:
        name = self.rng.choice(("Load", "Order", "Rows", "Model", "Nothing"))
        right = encode(Order("status")) if self.rng.random() < 0.5 else msgspec.msgpack.encode(strange(self.rng))
        call = self.peers._channel(self._somebody()).unary_stream(links.method(name))
        async for _ in call(mutated_message(self.rng, right)):
            pass

    async def opens_stream(self) -> None:
        name = self.rng.choice(("Carry", "Probe"))
        self._keep(self.peers._channel(self._somebody()).stream_stream(links.method(name))())

    def _keep(self, call: Any) -> None:
        self._streams.append(call)
        while len(self._streams) > MOST_STREAMS:
            self._streams.pop(0).cancel()

    async def writes_note(self) -> None:
        """Scores of rounds, in the register: nonsense."""
        await self.register.note("run-1", self.record().round + 1, b"\xff" * self.rng.choice((3, 1000)))

    async def takes_lease(self) -> None:
        await (self.register.join() if self.rng.random() < 0.5 else self.register.leave())

    async def writes_bad_record(self) -> None:
        """A record that cannot be right, in place of the present one; the operator has it repaired."""
        record = self.record()
        bad: Any = self.rng.choice(
            (
                msgspec.msgpack.encode({**msgspec.msgpack.decode(stored(record)), "holder": "nobody"}),
                stored(replace(record, ledger=replace(record.ledger, seconds=float("nan")))),
                stored(replace(record, epoch=0)),
                # These look right, and no honest site signed them.
                stored(replace(record, status="stopped")),
                stored(replace(record, epoch=record.epoch + 1, holder=3)),
                b"\x91" * 4000,
            )
        )
        with sqlite3.connect(self._register_file, timeout=30) as db:
            before, revision = db.execute("SELECT content, revision FROM record").fetchone()
            db.execute("UPDATE record SET revision = revision + 1, content = ?", (bad,))
        good = record_from(before, "the register", revision)
        await self._until(lambda: any(b"record-ignored" in log.getvalue()[-20_000:] for log in self.logs.values()))
        await self.hand.repair()
        after = self.record()
        assert (after.run, after.epoch) == (good.run, good.epoch)
        assert after.round >= good.round, (after, good)
        self.done["writes_bad_record"] += 1

    # What must hold.

    @property
    def _register_file(self) -> Path:
        return self.folder / "f" / "register.sqlite"

    def record(self) -> Record:
        """The record as it is in the register."""
        with sqlite3.connect(self._register_file, timeout=30) as db:
            content, revision = db.execute("SELECT content, revision FROM record").fetchone()
        return record_from(content, "the register", revision)

    def _check_alive(self) -> None:
        for name, task in self.tasks.items():
            if task.done():
                raise AssertionError(f"site {name} ended: {task.exception()!r}")

    def _safe_rows(self) -> dict[int, bytes]:
        """The rows of all rounds that were safe at the last check."""
        with sqlite3.connect(self._register_file, timeout=30) as db:
            query = "SELECT round, content FROM row WHERE run = 'run-1' AND round BETWEEN 1 AND ?"
            return dict(db.execute(query, (self._safe,)).fetchall())

    async def check(self, actions: int) -> None:
        """Everything that must hold after so many actions."""
        self._check_alive()
        record = self.record()
        assert record.safe.round >= self._safe, f"the safe round fell from {self._safe} to {record.safe.round}"
        self._safe = record.safe.round
        # A site writes a round's row after it has committed the round.
        await self._until(lambda: len(self._safe_rows()) == self._safe)
        rows = self._safe_rows()
        assert sorted(rows) == list(range(1, self._safe + 1)), "a safe round has no row"
        for round_, row in self._rows.items():
            assert rows[round_] == row, f"the row of round {round_} was changed"
        self._rows = rows
        for name in HONEST:
            state = founding.site_folder(self.folder / "f", name) / "state"
            used = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
            assert used < MOST_DISK, f"site {name} has {used} bytes on its disk"
            assert len(self.logs[name].getvalue()) < MOST_LOG * (1 + actions / 10_000), f"site {name} logs too much"
        assert _resident() - self._memory < MOST_MEMORY, f"memory grew by {_resident() - self._memory} bytes"

    async def _rate(self, seconds: float) -> float:
        """Rounds per second."""
        began, first = time.monotonic(), self.record().round
        await asyncio.sleep(seconds)
        return (self.record().round - first) / (time.monotonic() - began)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def besieged(folder: Path, rng: Random, actions: int, usual_seconds: float = 20.0) -> tuple[Siege, float]:
    """Play so many actions; the siege, and the rounds per second meanwhile."""
    siege = Siege(folder, rng)
    async with siege.begun(usual_seconds):
        began, first = time.monotonic(), siege.record().round
        for done in range(0, actions, AT_ONCE):
            await asyncio.gather(*(siege.act() for _ in range(AT_ONCE)))
            if done % 1000 < AT_ONCE:
                await siege.check(done)
            if done % 10_000 < AT_ONCE:
                await siege.writes_bad_record()
        rate = (siege.record().round - first) / (time.monotonic() - began)
        await siege.check(actions)
    return siege, rate

"""A whole hostile member against honest sites: real sites in this process, over TLS, with one register file.

Sites a, b and c are honest: `run_site`, a real port, a real register and a real training, in this process.
Site e is the attacker (`attacker.py`), in another.
What must hold: no honest site ends, no committed round is lost or changed, memory, disk and logs stay bounded, and
rounds go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import resource
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tests.runtime.attacker import NAME, record_in
from tests.system_parts import TIED
from tramfl.circulation.custody import Record
from tramfl.config import Budget, Evaluation, Partition, Scenario
from tramfl.notation import BadInput
from tramfl.runtime.journal import Journal
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.operating import Operator, operator_from, site_credentials
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.registers.records import record_from, stored
from tramfl.runtime.settings import RegisterSettings, SiteEntry, read_site
from tramfl.runtime.site import process, run_site
from tramfl.runtime.training.bench import _Bench
from tramfl.runtime.training.workshop import Build, Built, Failed, Job, JobResult, WorkFailed, Workshop
from tramfl.runtime.wire import Order

HONEST = ("a", "b", "c")
LEASE_SECONDS = 1.0
ROUND_SECONDS = 0.05
"""What a training takes at least: rounds take the time of a slow machine, and leave this one free."""
STALLS = 0.5
"""How often site e takes a model in and then says nothing."""
BETWEEN_CHECKS, BETWEEN_BAD_RECORDS = 1000, 10_000
"""Actions."""
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


class Siege:
    """Three honest sites, one hostile one, and the operator."""

    def __init__(self, folder: Path, seed: int, stalls: float = STALLS) -> None:
        self.folder, self._seed, self._stalls = folder, seed, stalls
        self.rng = Random(f"{seed} records")
        self.done: Counter[str] = Counter()
        self._attacker: asyncio.subprocess.Process | None = None
        names = (*HONEST, NAME)
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
        self._rows: dict[int, bytes] = {}
        self._safe = 0
        self.hand: Operator
        self._memory = 0
        self.usual = 0.0
        """Rounds per second without site e: before it came, and after it went."""

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
            await self.hand.order(Order("start", "run-1"))
            await self._until(lambda: self.record().round >= 5)
            self.usual = await self.rate(usual_seconds)
            self._memory = _resident()
            await self._admit()
            stack.push_async_callback(self.expel)
            yield self

    async def _admit(self) -> None:
        """Let the hostile site in."""
        words = [*TIED, sys.executable, "-m", "tests.runtime.attacker", str(self.folder / "f")]
        pipe = asyncio.subprocess.PIPE
        self._attacker = await asyncio.create_subprocess_exec(
            *words, str(self._seed), str(self._stalls), stdin=pipe, stdout=pipe
        )
        await self._attacked()

    async def attack(self, actions: int) -> None:
        """Have the hostile site do this many things."""
        assert self._attacker is not None
        assert self._attacker.stdin is not None
        self._attacker.stdin.write(b"%d\n" % actions)
        await self._attacked()

    async def _attacked(self) -> None:
        assert self._attacker is not None
        assert self._attacker.stdout is not None
        line = await self._attacker.stdout.readline()
        assert line, "the attacker ended"
        self.done |= Counter(json.loads(line))  # of each kind, the larger count

    async def expel(self) -> None:
        """End the hostile site's process."""
        if self._attacker is not None:
            assert self._attacker.stdin is not None
            self._attacker.stdin.close()
            await self._attacker.wait()
            self._attacker = None

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
        return record_in(self._register_file)

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
        """Everything that must hold after this many actions."""
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

    async def rate(self, seconds: float) -> float:
        """Rounds per second."""
        began, first = time.monotonic(), self.record().round
        await asyncio.sleep(seconds)
        return (self.record().round - first) / (time.monotonic() - began)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def besieged(
    folder: Path, seed: int, actions: int, usual_seconds: float = 20.0, stalls: float = STALLS
) -> tuple[Siege, float]:
    """Play this many actions; the siege, and the rounds per second meanwhile."""
    siege = Siege(folder, seed, stalls)
    async with siege.begun(usual_seconds):
        began, first = time.monotonic(), siege.record().round
        for done in range(0, actions, BETWEEN_CHECKS):
            await siege.attack(min(BETWEEN_CHECKS, actions - done))
            await siege.check(done)
            if done % BETWEEN_BAD_RECORDS == 0:
                await siege.writes_bad_record()
        rate = (siege.record().round - first) / (time.monotonic() - began)
        await siege.check(actions)
        await siege.expel()
        # The machine may have become busier, or less busy, in the meantime.
        siege.usual = (siege.usual + await siege.rate(usual_seconds)) / 2
    return siege, rate

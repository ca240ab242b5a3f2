"""A whole hostile member: site e, with its own certificate and its place in the register, in a process of its own.

    python -m tests.runtime.attacker FOLDER SEED STALLS

FOLDER has the federation, STALLS is how often site e takes a model in and then says nothing. Each line on its input
is a number of actions to draw and do; it answers with how many of each kind it has done so far, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import msgspec

from tests.runtime.fuzzing import mutated_message, strange
from tests.runtime.sites import Log
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Assignment, Offer
from tramfl.notation import Candidate, Decision, Digest, Loads, NodeId
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.registers.records import record_from
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import read_site
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

NAME = "e"
AT_ONCE = 128
"""Actions of site e at one moment."""
MOST_STREAMS = 600


class Lies:
    """What site e answers when it is called: it promises much, and keeps nothing."""

    def __init__(self, rng: Random, folder: Path, manifest: Manifest, stalls: float) -> None:
        self._rng, self.manifest, self._stalls = rng, manifest, stalls
        self.store = WeightStore(folder)
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
        if self._rng.random() < self._stalls:
            await self.over.wait()
        # It says that the model is on its disk, and will hold it and do nothing.
        return Accepted() if self._rng.random() < 0.3 else Refused("x" * 10_000)

    async def order(self, who: str, order: Order) -> OrderResult:
        return OrderResult(True, "\x1b]0;mine\x07", SiteReport(site="a", doing="halted"), record=b"\xff" * 100)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        return Rows((b"{}", b"\xff" * 1000))

    def model_path(self, digest: Digest) -> Path | None:
        return None


def strange_number(rng: Random) -> float:
    return rng.choice((0.0, -1.0, 1.0, 1e308, float("nan"), float("inf"), 1e-300))


class Attacker:
    """Does what a `Random` draws."""

    def __init__(self, folder: Path, rng: Random, stalls: float) -> None:
        self._folder, self.rng = folder, rng
        self.done: Counter[str] = Counter()
        self._streams: list[Any] = []
        site = read_site(founding.site_folder(folder, NAME) / founding.SITE_FILE)
        credentials = site_credentials(site, False)
        self.peers = Peers(Roster(site.federation), NAME, credentials)
        self.register = open_register(site.federation, NAME)
        initial = founding.site_folder(folder, "a") / "state" / "initial.safetensors"
        self.model = folder / "own.safetensors"
        shutil.copyfile(initial, self.model)
        self.lies = Lies(rng, folder / "e", Manifest.of(initial), stalls)
        self.server = Server(site.listen, credentials, Roster(site.federation), self.lies, Log())

    @property
    def _register_file(self) -> Path:
        return self._folder / "register.sqlite"

    async def play(self, actions: int) -> None:
        """This many actions, some at once."""
        for done in range(0, actions, AT_ONCE):
            await asyncio.gather(*(self.act() for _ in range(min(AT_ONCE, actions - done))))

    async def close(self) -> None:
        """End."""
        self.lies.over.set()
        await self.server.stop(0)
        await self.peers.close()
        await self.register.close()

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
        what: Any = self.rng.choice(("status", "look", "prepare", "start", "repair", "drain", "undrain"))
        run = self.rng.choice(("run-1", "run-2", "../x", "\x1b[2J", "x" * 4000, f"r{self.rng.randrange(1 << 30)}"))
        await self.peers.order(self._somebody(), Order(what, run, True), 5.0)

    async def offers(self) -> None:
        """Weights, with or without an assignment, for any round: of the present record, of the next, of no record."""
        rng, to, record = self.rng, self._somebody(), record_in(self._register_file)
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
        ask = encode(AskModel(record_in(self._register_file).weights.digest, self.rng.choice((0, 5, 1 << 60))))
        self._keep(self.peers._channel(self._somebody()).unary_stream(links.method("Model"))(ask))

    async def says_anything(self) -> None:
        name = self.rng.choice(("Load", "Order", "Rows", "Model", "Nothing"))
        right = encode(Order("status")) if self.rng.random() < 0.5 else msgspec.msgpack.encode(strange(self.rng))
        call = self.peers._channel(self._somebody()).unary_stream(links.method(name))
        message = mutated_message(self.rng, right)
        if not is_order_of_a_member(message):
            async for _ in call(message):
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
        round_ = record_in(self._register_file).round + 1
        await self.register.note("run-1", round_, b"\xff" * self.rng.choice((3, 1000)))

    async def takes_lease(self) -> None:
        await (self.register.join() if self.rng.random() < 0.5 else self.register.leave())


def is_order_of_a_member(message: bytes) -> bool:
    """Whether it pauses, resumes or stops a run. Every member may: it would end the trial, and is no attack."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.msgpack.decode(message, type=Order).what in ("pause", "resume", "stop")
    return False


def record_in(register: Path) -> Record:
    """The record as it is in the register."""
    with contextlib.closing(sqlite3.connect(register, timeout=30)) as db:
        content, revision = db.execute("SELECT content, revision FROM record").fetchone()
    return record_from(content, "the register", revision)


async def main() -> None:
    """Be site e until the input ends."""
    folder, seed, stalls = sys.argv[1:]
    attacker = Attacker(Path(folder), Random(seed), float(stalls))
    await attacker.server.start()
    try:
        print(json.dumps(attacker.done), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await attacker.play(int(line))
            print(json.dumps(attacker.done), flush=True)
    finally:
        await attacker.close()


if __name__ == "__main__":
    asyncio.run(main())

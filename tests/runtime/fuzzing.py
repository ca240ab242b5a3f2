"""Wrong messages, chunk sequences, headers and folders, made from right ones, and what must hold after each.

Every choice is drawn from a `Random` that someone passed in: `make fuzz` seeds one, hypothesis shrinks one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import msgspec

from tests.runtime.sites import Log, PlainHost, assignment, federation, frame, header_of, write_model
from tramfl.circulation.phases import Copy, Offer
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Server, links
from tramfl.runtime.transport.handshakes import reason_in
from tramfl.runtime.transport.links import SITE_KEY, Refusal, encode
from tramfl.runtime.weights.manifest import Manifest, WrongModel
from tramfl.runtime.weights.store import WEIGHTS, WeightStore, file_digest
from tramfl.runtime.wire import (
    Accepted,
    AskLoad,
    AskModel,
    AskRows,
    Consignment,
    Load,
    Order,
    OrderResult,
    Proceed,
    Refused,
    Reply,
    Rows,
)

DATA_BYTES = 4000
SECONDS = 120
"""An input that takes longer hangs."""
NUMBERS = (-1, 0, 1, 7, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
TEXTS = (
    "",
    "../../etc/passwd",
    "\0",
    "é",
    "status",
    "stop",
    "a" * 64,
    "A" * 64,
    "x" * 5000,
    "__metadata__",
    "I8",
    "F32",
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    1e308,
    b"",
    b"\xff" * 9,
    [],
    {},
    [[[[]]]],
    {"": {}},
)


def mutated_bytes(rng: Random, content: bytes) -> bytes:
    """The same with bytes changed, left out, doubled or added, a few times."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randint(0, len(found)), rng.choice((1, 2, 8, 50))
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = found[at : at + length]
        elif kind == 3:
            found[at:at] = bytes(rng.randrange(256) for _ in range(length))
        elif kind == 4:
            del found[at:]
        else:
            found[at : at + length] = rng.choice((b"\xff", b"\0", b"\xc1", b"\x7f")) * length
    return bytes(found)


def mutated_tree(rng: Random, tree: Any) -> Any:
    """The same table or list with one place in it changed."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        return _mutated_table(rng, tree)
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        return _mutated_list(rng, tree)
    return strange(rng)


def _mutated_table(rng: Random, table: dict[Any, Any]) -> dict[Any, Any]:
    key = rng.choice(list(table))
    kind = rng.randrange(8)
    if kind == 0:
        return {k: v for k, v in table.items() if k != key}
    if kind == 1:
        return {**table, rng.choice((*TEXTS, *NUMBERS)): strange(rng)}
    return {**table, key: mutated_tree(rng, table[key])}


def _mutated_list(rng: Random, items: list[Any]) -> list[Any]:
    at = rng.randrange(len(items))
    kind = rng.randrange(4)
    if kind == 0:
        return items[:at] + items[at + 1 :]
    if kind == 1:
        return items[:at] + [items[at]] * rng.choice((2, 100)) + items[at + 1 :]
    return [*items[:at], mutated_tree(rng, items[at]), *items[at + 1 :]]


def strange(rng: Random) -> Any:
    """A value that may be where it does not belong."""
    return rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS)))


def mutated_message(rng: Random, message: bytes) -> bytes:
    """A message that is wrong in its bytes or, more often, in what it says."""
    if rng.random() < 0.35:
        return mutated_bytes(rng, message)
    tree = msgspec.msgpack.decode(message)
    for _ in range(rng.randint(1, 2)):
        tree = mutated_tree(rng, tree)
    with contextlib.suppress(TypeError, OverflowError, ValueError):
        return msgspec.msgpack.encode(tree)
    return mutated_bytes(rng, message)


def mutated_frames(rng: Random, frames: list[bytes]) -> list[bytes]:
    """Chunks out of order, twice, missing, changed, cut, or with something in between."""
    frames = list(frames)
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(frames) + 1)
        kind = rng.randrange(7)
        if kind == 0:
            rng.shuffle(frames)
        elif kind == 1:
            del frames[at:]
        elif kind == 2:
            del frames[at : at + 1]
        elif kind == 3:
            frames[at:at] = frames[at : at + 1]
        elif kind == 4:
            frames.insert(at, mutated_bytes(rng, rng.choice(frames) if frames else b"12345678x"))
        elif kind == 5 and at < len(frames):
            frames[at] = mutated_bytes(rng, frames[at])
        elif at < len(frames):
            frames[at] = rng.choice(NUMBERS[1:8]).to_bytes(8, "big") + frames[at][8:]
    return frames


def split(rng: Random, content: bytes) -> list[bytes]:
    """Right chunks of any size."""
    frames, at = [], 0
    while at < len(content):
        size = rng.choice((1, 7, 100, 1500, 10_000))
        frames.append(frame(at, content[at : at + size]))
        at += size
    return frames


class Call:
    """A call without gRPC: what the server's code sees of one."""

    def __init__(self, name: str, messages: list[bytes], breaks: bool) -> None:
        self._name = name
        self._messages = list(messages)
        self._breaks = breaks
        self.replies: list[bytes] = []

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((SITE_KEY, self._name),)

    def peer(self) -> str:
        return "fuzz"

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if self._messages:
            return self._messages.pop(0)
        if self._breaks:
            raise asyncio.CancelledError
        return grpc.aio.EOF

    async def write(self, content: bytes) -> None:
        self.replies.append(content)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert code is not grpc.StatusCode.INTERNAL, details
        raise grpc.aio.AbortError


class Bench:
    """A site to be fed with wrong inputs, and a count of what they were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        model = folder / "model.safetensors"
        self.digest = write_model(model, Random(0).randbytes(DATA_BYTES), header_of(DATA_BYTES, round="1"))
        self.content = model.read_bytes()
        self.header = self.content[8:-DATA_BYTES]
        self.manifest = Manifest.of(model)
        self.host = PlainHost(WeightStore(folder / "store"), self.manifest)
        self.log = Log()
        self.server = Server(f"127.0.0.1:{free_ports(1)[0]}", None, Roster(federation()), self.host, self.log)
        self.consignment = encode(Consignment("trial", Offer(2, 3, self.digest, 1, assignment(0)), len(self.content)))
        digest = self.digest
        self.messages = {
            "Load": encode(AskLoad("trial", 3)),
            "Order": encode(Order("start", "trial")),
            "Rows": encode(AskRows("trial", 1, 2)),
            "Model": encode(AskModel(digest, 5)),
        }
        self.kinds: tuple[tuple[Callable[[Random], Any], int], ...] = (
            (self.small_message, 30),
            (self.consigned, 20),
            (self.chunked, 22),
            (self.wired, 8),
            (self.headed, 14),
            (self.replied, 3),
            (self.opened, 2),
            (self.handshaken, 1),
        )

    async def one(self, rng: Random) -> None:
        """One input, and the check that it did no harm."""
        (kind,) = rng.choices([k for k, _ in self.kinds], [w for _, w in self.kinds])
        self.counts[kind.__name__] += 1
        await asyncio.wait_for(kind(rng), SECONDS)
        self.log.lines.clear()
        self.host.asked.clear()

    # Entry points.

    async def small_message(self, rng: Random) -> None:
        """Load, Order, Rows and Model, and frames of a probe, as any of several callers."""
        name = rng.choice([*self.messages, "Probe"])
        if name == "Probe":
            await self._answered(rng, name, None, [bytes(rng.randrange(1 << rng.randrange(20))) for _ in range(9)])
            return
        message = mutated_message(rng, self.messages[name])
        if rng.random() < 0.02:
            name, message = rng.choice(TEXTS), b""
        await self._answered(rng, name, message, [])

    async def consigned(self, rng: Random) -> None:
        """A wrong consignment, and then chunks that would be right."""
        first = mutated_message(rng, self.consignment)
        await self._carried(rng, [first, *split(rng, self.content)])

    async def chunked(self, rng: Random) -> None:
        """A right consignment, and then wrong chunks of a right or a wrong file."""
        content = self.content if rng.random() < 0.7 else mutated_bytes(rng, self.content)
        size, digest = len(self.content), self.digest
        if rng.random() < 0.5:
            # A file that is what it says, and may be no model of this run.
            size, digest = len(content), hashlib.sha256(content).hexdigest()
        first = encode(Consignment("trial", Offer(2, 3, digest, 1, None), size))
        await self._carried(rng, [first, *mutated_frames(rng, split(rng, content))])

    async def headed(self, rng: Random) -> None:
        """A header: refused, or it describes this run's model."""
        header = mutated_bytes(rng, self.header)
        if rng.random() < 0.6:
            with contextlib.suppress(TypeError, ValueError):
                header = json.dumps(mutated_tree(rng, json.loads(self.header)), default=repr).encode()
        try:
            self.manifest.check(header, rng.choice((8 + len(header) + DATA_BYTES, len(self.content), 1 << 40)))
        except WrongModel:
            self.outcomes["header refused"] += 1
        else:
            self.outcomes["header fits"] += 1
            (entry,) = (v for k, v in json.loads(header).items() if k != "__metadata__")
            assert entry == {"dtype": "U8", "shape": [DATA_BYTES], "data_offsets": [0, DATA_BYTES]}

    async def replied(self, rng: Random) -> None:
        """What a peer answers: decoded to its kind, or refused."""
        right: Any = rng.choice(
            (
                (Load(1.0, None, (1,)), Load),
                (OrderResult(True, "Done."), OrderResult),
                (Rows((b"{}",)), Rows),
                (Proceed(7), Reply),
                (Accepted(), Reply),
                (Refused("no"), Reply),
            )
        )
        with contextlib.suppress(Refusal):
            links.decode(mutated_message(rng, encode(right[0])), right[1])

    async def handshaken(self, rng: Random) -> None:
        """A line of the core's log."""
        reason_in(
            mutated_bytes(rng, b"Handshake failed with error SSL_ERROR_SSL: HTTP_REQUEST").decode("utf-8", "replace")
        )

    async def opened(self, rng: Random) -> None:
        """A folder of a store with anything in it: opened, and only what is whole is in it."""
        folder = self.folder / "opened"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "incoming").mkdir(parents=True)
        for _ in range(rng.randint(0, 6)):
            content = rng.randbytes(rng.randrange(9))
            digest = hashlib.sha256(content).hexdigest()
            name = f"{rng.choice((0, 1, 2))}-{rng.choice((0, 3, '03'))}-{digest}.safetensors"
            if rng.random() < 0.4:
                name = f"incoming/{digest}-{rng.choice(('ash', 'elm', '..'))}{rng.choice(('.part', '', '.new'))}"
            if rng.random() < 0.3:
                name = name[: -rng.randint(1, 9)] + rng.choice(("", ".part", ".damaged", "\n", "x"))
            _strew(rng, folder / name, content if rng.random() < 0.7 else content + b"x")
        store = WeightStore(folder)
        for copy in store.copies():
            path = store.path(copy.digest)
            assert path is not None
            assert file_digest(path) == copy.digest
            assert WEIGHTS.fullmatch(path.name)
        store.part("ash", self.digest, 10).close(drop=True)
        assert WeightStore(folder).copies() == store.copies()
        assert (self.folder / "model.safetensors").read_bytes() == self.content

    async def wired(self, rng: Random) -> None:
        """The same over a real connection."""
        if not self.server.port:
            await self.server.start()
            self._channel = self._connect()
        name = rng.choice([*self.messages, "Carry", "Carry"])
        method = f"/{links.SERVICE}/{name}"
        who = ((SITE_KEY, rng.choice(("ash", "ash", "ash", "operator", "elm"))),)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if name != "Carry":
                message = mutated_message(rng, self.messages[name])
                async for _ in self._channel.unary_stream(method)(message, metadata=who):
                    pass
            else:
                # gRPC's client leaves a stream open whose write failed with answers unread, and 64 of those fill a
                # connection: each of these has its own. (A site's own sender reads while it writes.)
                async with self._connect(("grpc.use_local_subchannel_pool", 1)) as channel:
                    await self._carried_over_a_wire(rng, channel.stream_stream(method)(metadata=who))
        self._check()

    def _connect(self, *more: tuple[str, int]) -> Any:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}", links.options(*more))

    async def close(self) -> None:
        """End the connection of `wired`."""
        if self.server.port:
            await self._channel.close()
        await self.server.stop(0)

    async def _carried_over_a_wire(self, rng: Random, call: Any) -> None:
        # All is drawn before anything is sent: when the site answers must not change what comes next.
        first = self.consignment if rng.random() < 0.6 else mutated_message(rng, self.consignment)
        messages = [first, *mutated_frames(rng, split(rng, self.content))]
        hangs_up = rng.random() < 0.1
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for message in messages:
                    await call.write(message)
                if hangs_up:
                    return
                await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        finally:
            call.cancel()

    # What must hold.

    async def _carried(self, rng: Random, messages: list[bytes]) -> None:
        replies = await self._answered(rng, "Carry", None, messages)
        union: Any = Reply
        found: list[Any] = [type(links.decode(reply, union)) for reply in replies]
        kinds = [kind for kind, _ in itertools.groupby(found)]  # Proceed is repeated as bytes arrive
        assert kinds in ([], [Refused], [Proceed], [Proceed, Refused], [Proceed, Accepted]), kinds

    async def _answered(self, rng: Random, name: str, request: bytes | None, messages: list[bytes]) -> list[bytes]:
        who = rng.choice(("ash", "ash", "ash", "ash", "birch", "operator", "elm", ""))
        call = Call(who, messages, breaks=rng.random() < 0.1)
        try:
            answer = await self.server.answer(name, request, call)
        except grpc.aio.AbortError:
            self.outcomes["refused with a status"] += 1
        except asyncio.CancelledError:
            assert messages
            self.outcomes["broken off"] += 1
        else:
            self.outcomes["answered"] += answer is not None
        assert not any(line["event"] == "failed" for line in self.log.lines), self.log.lines
        self._check()
        return call.replies

    def _check(self) -> None:
        """Nothing is in the store but what was sent whole and right; that is taken out again."""
        store = self.host.store
        assert store is not None
        copies = store.copies()
        assert len(copies) <= len(self.host.arrivals)
        for copy in copies:
            path = store.path(copy.digest)
            assert path is not None
            assert file_digest(path) == copy.digest
            assert path.name == f"{copy.epoch}-{copy.round}-{copy.digest}.safetensors"
            assert Manifest.of(path).tensors == self.manifest.tensors
            self.outcomes["stored, being right"] += 1
        store.discard([Copy(c.digest, 0, 0).digest for c in copies])
        self.host.arrivals.clear()
        assert [p.name for p in store.folder.iterdir()] == ["incoming"]
        assert len(list(store.incoming.iterdir())) <= 8


def _strew(rng: Random, path: Path, content: bytes) -> None:
    """A file, or now and then something else, where a store may find it."""
    with contextlib.suppress(FileExistsError, IsADirectoryError):
        kind = rng.random()
        if kind < 0.1:
            path.mkdir()
        elif kind < 0.2:
            path.symlink_to(path.parent.parent / "model.safetensors")
        else:
            path.write_bytes(content)

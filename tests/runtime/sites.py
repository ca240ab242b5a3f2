"""Sites as tests of the transport need them: certificates, a federation on loopback, small models, a plain host."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tramfl.circulation.phases import Assignment, Copy, Offer
from tramfl.notation import Candidate, Decision, Digest, Loads, NodeId
from tramfl.runtime.log_events import wrong_with
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import Federation, FederationFile, SiteEntry
from tramfl.runtime.transport import Credentials, Peers, Server, links
from tramfl.runtime.weights.manifest import Manifest
from tramfl.runtime.weights.store import WeightStore
from tramfl.runtime.wire import (
    CHUNK_BYTES,
    Accepted,
    AskLoad,
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

NAMES = ("ash", "birch", "cedar")
DAY = datetime.timedelta(days=1)
ASK = AskLoad("trial", 1)
SECONDS = 60.0
"""Within which an answer comes, however busy the machine."""


def frame(offset: int, data: bytes) -> bytes:
    """A chunk as it travels."""
    return offset.to_bytes(8, "big") + data


class Authority:
    """A private authority and the certificates it issues."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _certificate(self._name, self._name, self._key.public_key(), 9 * DAY)
        self._own = builder.add_extension(x509.BasicConstraints(True, 0), True).sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        return self._own.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str,
        lasts: datetime.timedelta = 8 * DAY,
        trusting: Authority | None = None,
        common: tuple[str, ...] | None = None,
        also: tuple[str, ...] = (),
    ) -> Credentials:
        """Of a site; `common` in place of its one common name, `also` beside its alternative name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name) if common is None else _name(*common)
        builder = _certificate(subject, self._name, key.public_key(), lasts)
        names = x509.SubjectAlternativeName([x509.DNSName(each) for each in (name, *also) if each])
        certificate = builder.add_extension(names, False).sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Credentials((trusting or self).pem, certificate.public_bytes(serialization.Encoding.PEM), private)


def _name(*names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lasts: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 8 * DAY)
        .not_valid_after(now + lasts)
    )


def federation(names: tuple[str, ...] = NAMES, ports: dict[str, int] | None = None) -> Federation:
    """A federation on loopback; each site has a free port unless given."""
    given = ports or {}
    entries = tuple(SiteEntry(name=n, address=f"127.0.0.1:{given.get(n) or free_ports(1)[0]}") for n in names)
    return Federation(FederationFile(name="test", site=entries), Path("federation.toml").absolute())


def header_of(size: int, name: str = "weight", **about: str) -> bytes:
    """The header of a model with one tensor of `size` bytes."""
    table: dict[str, object] = {"__metadata__": about} if about else {}
    table[name] = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    return json.dumps(table).encode()


def write_model(path: Path, data: bytes, header: bytes | None = None) -> Digest:
    """A safetensors file with one tensor; its digest."""
    header = header_of(len(data)) if header is None else header
    content = len(header).to_bytes(8, "little") + header + data
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def assignment(holder: NodeId, sites: int = len(NAMES), node: NodeId = 1) -> Assignment:
    candidates = tuple(Candidate(n, 10, 1.0, 2.0, 3.0, 0.0, 5.0, True) for n in range(sites))
    decision = Decision("load-aware", node, (5, 5), 1.0, 2.0, 0.0, "because", candidates, ())
    return Assignment(holder, decision, Loads((1e9,) * sites, (1e8,) * (sites - 1) + (float("nan"),)), 0.0)


def consignment(
    path: Path, digest: Digest, holder: NodeId = 0, ticket: int = 1, round_: int = 3, size: int | None = None
) -> Consignment:
    offer = Offer(2, round_, digest, ticket, assignment(holder))
    return Consignment("trial", offer, path.stat().st_size if size is None else size)


@dataclass
class PlainHost:
    """A node that stores what arrives and remembers what it was asked."""

    store: WeightStore | None = None
    manifest: Manifest | None = None
    objection: str | None = None
    arrivals: list[tuple[NodeId, Consignment, float]] = field(default_factory=list)
    asked: list[object] = field(default_factory=list)
    hold: asyncio.Event | None = None
    lines: tuple[bytes, ...] = ()
    says: str = "Done."

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        self.asked.append((peer, ask))
        return Load(1e9, 1e8, (5, 5))

    def receiving(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        return self.objection

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float, since: float
    ) -> Accepted | Refused:
        assert self.store is not None
        self.arrivals.append((peer, consignment, seconds))
        if self.hold is not None:
            await self.hold.wait()
        offer = consignment.offer
        await asyncio.to_thread(self.store.put, staged, Copy(offer.digest, offer.round, offer.epoch))
        return Accepted()

    async def order(self, who: str, order: Order) -> OrderResult:
        self.asked.append((who, order))
        return OrderResult(True, self.says)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        self.asked.append((who, ask))
        return Rows(self.lines)

    def model_path(self, digest: Digest) -> Path | None:
        return self.store.path(digest) if self.store else None


class Log:
    """What was logged."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: object) -> None:
        assert wrong_with(event, fields) is None, wrong_with(event, fields)
        self.lines.append({"event": event, **fields})

    def refusals(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "refused"]


class Trial:
    """Ash sends, birch receives."""

    def __init__(self, folder: Path, secure: bool = True, data: bytes = b"", receiver_port: int = 0) -> None:
        self.folder = folder
        self.authority = Authority() if secure else None
        port = receiver_port or free_ports(1)[0]
        self.federation = federation(ports={"birch": port})
        self.port = port
        self.model = folder / "model.safetensors"
        self.data = data or os.urandom(3_000_000)
        self.digest = write_model(self.model, self.data)
        self.log = Log()
        self.host = PlainHost(WeightStore(folder / "birch"), Manifest.of(self.model))
        self.server = self.new_server()

    def new_server(self) -> Server:
        return Server(f"127.0.0.1:{self.port}", self.issue("birch"), Roster(self.federation), self.host, self.log)

    def issue(self, name: str) -> Credentials | None:
        return self.authority.issue(name) if self.authority else None

    def peers(self, name: str = "ash", port: int | None = None) -> Peers:
        places = self.federation if port is None else federation(ports={"birch": port})
        return Peers(Roster(places), name, self.issue(name))

    def consignment(self, **changes: Any) -> Consignment:
        return consignment(self.model, self.digest, **changes)

    def unchanged(self) -> bool:
        """Whether nothing has got into the store or to the host."""
        assert self.host.store is not None
        on_disk = [p.name for p in self.host.store.folder.iterdir()]
        return not self.host.arrivals and not self.host.store.copies() and on_disk == ["incoming"]

    def parts(self) -> list[str]:
        assert self.host.store is not None
        return [p.name for p in self.host.store.incoming.iterdir()]

    async def __aenter__(self) -> Trial:
        await self.server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.stop(0)


def played(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test, which may take long on a busy machine."""

    @wraps(scenario)
    def test(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(scenario(*arguments, **named), 300))

    return test


def ignore(sent: int) -> None:
    pass


async def said(peers: Peers, messages: list[bytes], end: bool = True) -> list[Reply]:
    """What birch answers to raw messages of a transfer; they are written whether or not it wants them.

    Where birch says Proceed again as bytes arrive, only the first is returned.
    """
    call = peers._channel(1).stream_stream(links.method("Carry"))(metadata=peers._metadata)
    replies: list[Reply] = []
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        if end:
            await call.done_writing()
    try:
        while (content := await call.read()) is not grpc.aio.EOF:
            reply: Reply = links.decode(content, Reply)  # type: ignore[arg-type]
            if not replies or not isinstance(reply, Proceed):
                replies.append(reply)
    finally:
        call.cancel()
    return replies


def frames(content: bytes, size: int = CHUNK_BYTES) -> list[bytes]:
    return [frame(at, content[at : at + size]) for at in range(0, len(content), size)]


class Proxy:
    """Stands between ash and birch, counts what ash sends, and cuts the wire after a number of bytes."""

    def __init__(self, to: int) -> None:
        self._to = to
        self.port = free_ports(1)[0]
        self.cut_after: list[int] = []
        self.passed = 0
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        limit = self.cut_after.pop(0) if self.cut_after else None
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, back]
        await asyncio.gather(self._pass(reader, back, limit), self._pass(there, writer, None, counted=False))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None, counted: bool = True
    ) -> None:
        total = 0
        with contextlib.suppress(OSError):
            while block := await reader.read(1 << 16):
                total += len(block)
                self.passed += len(block) if counted else 0
                if limit is not None and total > limit:
                    self.cut()
                    return
                writer.write(block)
                await writer.drain()
        writer.close()

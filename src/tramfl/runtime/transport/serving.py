"""A site's port: who may call, what they may ask, and what is refused, with a line in the log for each refusal.

Who speaks is what the certificate says, never what a message says.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any

import grpc

from tramfl.hosts import is_loopback
from tramfl.notation import BadInput
from tramfl.runtime.journal import Log
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import OPERATOR
from tramfl.runtime.transport.certificates import KNOWN_CERTIFICATES, Caller, caller_in
from tramfl.runtime.transport.credentials import Credentials, Papers
from tramfl.runtime.transport.docking import CallStream, Dock, SentAgain
from tramfl.runtime.transport.guarding import Guard
from tramfl.runtime.transport.host import Host, Peer
from tramfl.runtime.transport.links import (
    SERVICE,
    SITE_KEY,
    Refusal,
    decode,
    encode,
    options,
    other_protocol,
)
from tramfl.runtime.transport.probing import BUSY, FRAME_BYTES, MOST_BYTES, Turn
from tramfl.runtime.weights import DIGEST, Spoilt, Unfit
from tramfl.runtime.wire import (
    CHUNK_BYTES,
    Accepted,
    AskLoad,
    AskModel,
    AskRows,
    Order,
    Refused,
    Rows,
)

MOST_CALLS = 512
"""Most calls at once, of all peers together."""
STREAMS_PER_CONNECTION = 64
HANDSHAKE_SECONDS = 10
"""A connection that has not proved who it is after this long is closed."""
FIRST_SECONDS = 10.0
"""Within this time a peer that opened a stream must send the next message of it."""
STALL_SECONDS = 60.0
"""Within this time a peer must take what it asked for."""
HANG_UP_SECONDS = 5.0
"""Within this time after a failed write gRPC says that the peer has hung up; else the failure is this site's own."""
ROWS_BYTES = 1 << 20
MOST_ROWS = 500
"""Of one call."""
MOST_ROUND = 1 << 53


class Server:
    """Answers peers on one port until it is stopped."""

    def __init__(self, listen: str, credentials: Credentials | None, roster: Roster, host: Host, log: Log) -> None:
        self._listen = listen
        self._credentials = credentials
        self._roster = roster
        self._host = host
        self._log = log
        self._server: Any = None
        self._dock = Dock(host)
        # Every call shows its connection's certificate; each is read once per list of members.
        self._caller_in = lru_cache(KNOWN_CERTIFICATES)(caller_in)
        self._probing = Turn()
        self._guard = Guard()
        self.port = 0
        self._methods: dict[str, tuple[bool, Callable[[Peer, Any, Any], Awaitable[bytes | None]]]] = {
            "Load": (False, self._load),
            "Probe": (False, self._probe),
            "Carry": (False, self._carry),
            "Order": (True, self._order),
            "Rows": (True, self._rows),
            "Model": (True, self._model),
        }
        """For each method: whether the operator may call it, and the function that answers."""

    async def start(self) -> None:
        """Open the port. Raises BadInput where it cannot be opened."""
        host = self._listen.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if self._credentials is None and not is_loopback(host):
            raise BadInput(f"without certificates a site may listen on loopback only, and {self._listen} is not.")
        # Without so_reuseport = 0 a second process could share the port and get half of the calls.
        server = grpc.aio.server(
            options=options(
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ),
            maximum_concurrent_rpcs=MOST_CALLS,
        )
        server.add_generic_rpc_handlers((_Handlers(self),))
        try:
            self.port = self._bind(server)
        except RuntimeError:
            raise BadInput(f"cannot listen on {self._listen}; is the port taken, or the address not ours?") from None
        await server.start()
        self._server = server

    async def stop(self, grace: float | None = None) -> None:
        """Close the port; calls under way have `grace` seconds to end."""
        if self._server is not None:
            await self._server.stop(grace)
        await self._dock.close()

    def _bind(self, server: Any) -> int:
        if self._credentials is None:
            return int(server.add_insecure_port(self._listen))
        shown = self._credentials.now
        secure = grpc.dynamic_ssl_server_credentials(
            _configuration(shown), _Renewal(self._credentials, shown), require_client_authentication=True
        )
        return int(server.add_secure_port(self._listen, secure))

    async def answer(self, name: str, request: Any, context: Any) -> bytes | None:
        """Answer a call, if the peer may make it; every refusal is logged."""
        who = "?"
        try:
            caller = self._identify(context)
            who = caller.name
            peer = Peer(who, None if who == OPERATOR else self._roster.number_of(who))
            if name not in self._methods:
                reason = other_protocol(name) or f"there is no method {name[:80]!r}"
                raise Refusal(reason, grpc.StatusCode.UNIMPLEMENTED)
            open_to_operator, do = self._methods[name]
            if peer.number is None and not open_to_operator:
                raise Refusal(f"the operator may not call {name}", grpc.StatusCode.PERMISSION_DENIED)
            with self._guard.call(who, name):
                return await do(peer, request, _Watched(context, self._roster, caller))
        except Refusal as refusal:
            self._log("refused", peer=who, address=context.peer(), what=name, reason=str(refusal))
            await context.abort(refusal.code, str(refusal))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if isinstance(error, grpc.aio.InternalError):
                # A write fails where the peer has hung up; gRPC then cancels this call too, here.
                await asyncio.sleep(HANG_UP_SECONDS)
            reason = f"{type(error).__name__}: {error}"
            self._log("failed", peer=who, address=context.peer(), what=name, reason=reason)
            await context.abort(grpc.StatusCode.INTERNAL, "this site failed to answer; its log says why")
        return None

    def _identify(self, context: Any) -> Caller:
        if self._credentials is None:
            found = [value for key, value in context.invocation_metadata() or () if key == SITE_KEY]
            name = found[0] if len(found) == 1 and isinstance(found[0], str) else ""
            if name not in self._roster.callers:
                raise Refusal(f"{name[:80]!r} is no site of this federation", grpc.StatusCode.PERMISSION_DENIED)
            return Caller(name, math.inf)
        (pem,) = context.auth_context()["x509_pem_cert"]
        try:
            # A connection may be older than the file of authorities.
            caller = self._caller_in(pem, self._roster.callers, self._credentials.now.authorities)
        except BadInput as error:
            raise Refusal(str(error).rstrip("."), grpc.StatusCode.PERMISSION_DENIED) from None
        _refuse_revoked(self._roster, caller)
        self._roster.show(*caller)
        return caller

    async def _load(self, peer: Peer, request: bytes, context: Any) -> bytes:
        return encode(await self._host.load(peer.site, decode(request, AskLoad)))

    async def _probe(self, peer: Peer, request: Any, context: Any) -> None:
        """Echo an empty message for each frame of a trial of the link."""
        received = 0
        with self._host.receiving():
            while (frame := await _next(context)) is not grpc.aio.EOF:
                received += len(frame)
                if received > MOST_BYTES or len(frame) > FRAME_BYTES:
                    raise Refusal(f"a probe of {received} bytes is too large", grpc.StatusCode.INVALID_ARGUMENT)
                if self._dock.receives_from_others(peer.name) or self._probing.taken(peer.name):
                    await context.write(BUSY)
                    return
                await context.write(b"")

    async def _order(self, peer: Peer, request: bytes, context: Any) -> bytes:
        return encode(await self._host.order(peer.name, decode(request, Order)))

    async def _rows(self, peer: Peer, request: bytes, context: Any) -> None:
        """All rows, in as many messages as needed."""
        ask = decode(request, AskRows)
        if not (0 <= ask.first <= MOST_ROUND and ask.last < min(MOST_ROUND, ask.first + MOST_ROWS)):
            reason = f"rounds {ask.first} to {ask.last} are not {MOST_ROWS} rounds or fewer"
            raise Refusal(reason, grpc.StatusCode.OUT_OF_RANGE)
        rows = await self._host.rows(peer.name, ask)
        lines: list[bytes] = []
        notes: dict[int, bytes] = {}
        size = 0
        for round_, content in (*((None, line) for line in rows.lines), *rows.notes.items()):
            size += len(content)
            if size > len(content) and size > ROWS_BYTES:
                await _write(context, encode(Rows(tuple(lines), notes)))
                lines, notes, size = [], {}, len(content)
            if round_ is None:
                lines.append(content)
            else:
                notes[round_] = content
        await _write(context, encode(Rows(tuple(lines), notes)))

    async def _model(self, peer: Peer, request: bytes, context: Any) -> None:
        """The file's size, and its bytes from an offset on."""
        ask = decode(request, AskModel)
        path = self._host.model_path(ask.digest) if DIGEST.fullmatch(ask.digest) else None
        try:
            file = await asyncio.to_thread(os.open, path or "", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise Refusal(f"weights {ask.digest[:64]!r} are not here", grpc.StatusCode.NOT_FOUND) from None
        try:
            size = os.fstat(file).st_size
            if not 0 <= ask.offset <= size:
                raise Refusal(f"byte {ask.offset} is not in a file of {size}", grpc.StatusCode.OUT_OF_RANGE)
            await context.write(size.to_bytes(8, "big"))
            offset = ask.offset
            while chunk := await asyncio.to_thread(os.pread, file, CHUNK_BYTES, offset):
                await _write(context, chunk)
                offset += len(chunk)
        finally:
            os.close(file)

    async def _carry(self, peer: Peer, request: Any, context: Any) -> None:
        """Receive a model; anything wrong with it is answered with Refused."""
        first = await _next(context)
        if first is grpc.aio.EOF:
            raise Refusal("a transfer begins with a consignment", grpc.StatusCode.INVALID_ARGUMENT)
        stream = CallStream(context)
        reply: Accepted | Refused
        try:
            reply = await self._dock.receive(peer, first, stream)
        except (Refusal, Unfit) as error:
            reply = Refused(str(error))
        except SentAgain:
            raise Refusal("the same weights are being sent anew", grpc.StatusCode.ABORTED) from None
        except Spoilt as error:
            raise Refusal(f"{error}; send it again", grpc.StatusCode.DATA_LOSS) from None
        except OSError as error:
            reply = Refused(f"it cannot be stored: {error.strerror or error}")
        if isinstance(reply, Refused):
            self._log("refused", peer=peer.name, address=context.peer(), what="Carry", reason=reply.reason)
        await stream.write(encode(reply))


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes every call, known or not, to the server's `answer`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        """The handler of a method; an unknown method gets one too, so that its refusal is logged."""
        name = details.method.removeprefix(f"/{SERVICE}/")
        answer = partial(self._server.answer, name)
        if name in {"Load", "Order"}:
            return grpc.unary_unary_rpc_method_handler(answer)
        if name in {"Rows", "Model"}:
            return grpc.unary_stream_rpc_method_handler(answer)
        return grpc.stream_stream_rpc_method_handler(answer)


class _Watched:
    """A call whose every message is refused once the caller's certificate is revoked."""

    def __init__(self, context: Any, roster: Roster, caller: Caller) -> None:
        self._context, self._roster, self._caller = context, roster, caller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """The next message."""
        message = await self._context.read()
        _refuse_revoked(self._roster, self._caller)
        return message

    async def write(self, message: bytes) -> None:
        """Send a message."""
        _refuse_revoked(self._roster, self._caller)
        await self._context.write(message)


def _refuse_revoked(roster: Roster, caller: Caller) -> None:
    if roster.is_revoked(*caller):
        raise Refusal(f"the certificate of {caller.name} is revoked", grpc.StatusCode.PERMISSION_DENIED)


async def _next(context: Any) -> Any:
    """The next message of a stream; Refusal where none comes."""
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            return await context.read()
    except TimeoutError:
        raise Refusal(f"no message came for {FIRST_SECONDS:g} s", grpc.StatusCode.DEADLINE_EXCEEDED) from None


async def _write(context: Any, content: bytes) -> None:
    """Send a message; Refusal where the peer does not take it."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await context.write(content)
    except TimeoutError:
        raise Refusal(f"nothing was taken for {STALL_SECONDS:g} s", grpc.StatusCode.DEADLINE_EXCEEDED) from None


class _Renewal:
    """gRPC calls this at each handshake, in a thread of its own; None keeps what is shown at present."""

    def __init__(self, credentials: Credentials, shown: Papers) -> None:
        self._credentials, self._shown = credentials, shown

    def __call__(self) -> Any:
        self._credentials.look_again()  # the caller's certificate may be of an authority that was just added
        now = self._credentials.now
        if now == self._shown:
            return None
        self._shown = now
        return _configuration(now)


def _configuration(papers: Papers) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(papers.key, papers.certificate)], root_certificates=papers.authorities
    )

"""A site's port: who may call, what they may ask, and what is refused, with a line in the log for each refusal.

Who speaks is what the certificate says, never what a message says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from tramfl.config import is_loopback
from tramfl.notation import BadInput
from tramfl.runtime.journal import Log
from tramfl.runtime.settings import OPERATOR, Federation
from tramfl.runtime.transport.docking import Dock, SentAgain
from tramfl.runtime.transport.host import Host, Peer
from tramfl.runtime.transport.links import (
    SERVICE,
    SITE_KEY,
    Credentials,
    Refusal,
    decode,
    encode,
    options,
    other_protocol,
)
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
ROWS_BYTES = 1 << 20


class Server:
    """Answers peers on one port until it is stopped."""

    def __init__(
        self, listen: str, credentials: Credentials | None, federation: Federation, host: Host, log: Log
    ) -> None:
        self._listen = listen
        self._credentials = credentials
        self._federation = federation
        self._host = host
        self._log = log
        self._server: Any = None
        self._dock = Dock(federation, host)
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
        secure = grpc.dynamic_ssl_server_credentials(
            _configuration(self._credentials), self._renewed, require_client_authentication=True
        )
        return int(server.add_secure_port(self._listen, secure))

    def _renewed(self) -> Any:
        """gRPC calls this at each handshake; None keeps the present certificate."""
        assert self._credentials is not None
        now = self._credentials.renewed()
        if now == self._credentials:
            return None
        self._credentials = now
        return _configuration(now)

    async def answer(self, name: str, request: Any, context: Any) -> bytes | None:
        """Answer a call, if the peer may make it; every refusal is logged."""
        who = "?"
        try:
            peer = self._identify(context)
            who = peer.name
            if name not in self._methods:
                reason = other_protocol(name) or f"there is no method {name[:80]!r}"
                raise Refusal(reason, grpc.StatusCode.UNIMPLEMENTED)
            open_to_operator, do = self._methods[name]
            if peer.number is None and not open_to_operator:
                raise Refusal(f"the operator may not call {name}", grpc.StatusCode.PERMISSION_DENIED)
            return await do(peer, request, context)
        except Refusal as refusal:
            self._log("refused", peer=who, address=context.peer(), what=name, reason=str(refusal))
            await context.abort(refusal.code, str(refusal))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._log("failed", peer=who, address=context.peer(), what=name, reason=reason)
            await context.abort(grpc.StatusCode.INTERNAL, "this site failed to answer; its log says why")
        return None

    def _identify(self, context: Any) -> Peer:
        if self._credentials is None:
            found = [value for key, value in context.invocation_metadata() or () if key == SITE_KEY]
            names = [value if isinstance(value, str) else "?" for value in found]
        else:
            found = context.auth_context().get("x509_common_name", ())
            names = [value.decode("utf-8", "replace") for value in found]
        name = names[0] if len(names) == 1 else ""
        if name == OPERATOR:
            return Peer(name, None)
        if name in self._federation.names:
            return Peer(name, self._federation.number_of(name))
        raise Refusal(f"{name[:80]!r} is no site of this federation", grpc.StatusCode.PERMISSION_DENIED)

    async def _load(self, peer: Peer, request: bytes, context: Any) -> bytes:
        return encode(await self._host.load(peer.site, decode(request, AskLoad)))

    async def _probe(self, peer: Peer, request: bytes, context: Any) -> bytes:
        if len(request) > CHUNK_BYTES:
            raise Refusal(f"a probe of {len(request)} bytes is too large", grpc.StatusCode.INVALID_ARGUMENT)
        return b""

    async def _order(self, peer: Peer, request: bytes, context: Any) -> bytes:
        return encode(await self._host.order(peer.name, decode(request, Order)))

    async def _rows(self, peer: Peer, request: bytes, context: Any) -> None:
        """All rows, in as many messages as needed."""
        rows = await self._host.rows(peer.name, decode(request, AskRows))
        lines: list[bytes] = []
        for line in rows.lines:
            if lines and sum(map(len, lines)) + len(line) > ROWS_BYTES:
                await context.write(encode(Rows(tuple(lines))))
                lines = []
            lines.append(line)
        await context.write(encode(Rows(tuple(lines))))

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
                await context.write(chunk)
                offset += len(chunk)
        finally:
            os.close(file)

    async def _carry(self, peer: Peer, request: Any, context: Any) -> None:
        """Receive a model; anything wrong with it is answered with Refused."""
        first = await context.read()
        if first is grpc.aio.EOF:
            raise Refusal("a transfer begins with a consignment", grpc.StatusCode.INVALID_ARGUMENT)
        reply: Accepted | Refused
        try:
            reply = await self._dock.receive(peer, first, context)
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
        await context.write(encode(reply))


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes every call, known or not, to the server's `answer`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        """The handler of a method; an unknown method gets one too, so that its refusal is logged."""
        name = details.method.removeprefix(f"/{SERVICE}/")
        answer = partial(self._server.answer, name)
        if name in {"Load", "Probe", "Order"}:
            return grpc.unary_unary_rpc_method_handler(answer)
        if name in {"Rows", "Model"}:
            return grpc.unary_stream_rpc_method_handler(answer)
        return grpc.stream_stream_rpc_method_handler(answer)


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.certificate)], root_certificates=credentials.authorities
    )

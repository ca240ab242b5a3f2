"""A site's port: who may call, what they may ask, and what is refused, with a line in the log for each refusal.

Who speaks is what the certificate says, never what a message says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc

from tramfl.config import is_loopback
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.runtime.journal import Log
from tramfl.runtime.settings import OPERATOR, Federation
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
from tramfl.runtime.weights import DIGEST, Arrival, Manifest, Spoilt, Truncated, Unfit, WeightStore, check_consignment
from tramfl.runtime.wire import (
    CHUNK_BYTES,
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
    Rows,
)

STALL_SECONDS = 300.0
"""A transfer whose sender is connected but sends no chunk for this long is ended."""
MOST_CALLS = 512
"""Most calls at once, of all peers together."""
TRANSFERS_PER_SITE = 2
"""Most transfers at once from one site: a model to train, and a background copy."""
CHUNKS_AHEAD = 3
"""Chunks of a transfer in memory that wait to be written."""
ROWS_BYTES = 1 << 20


class Host(Protocol):
    """What a site does for its peers."""

    @property
    def manifest(self) -> Manifest | None:
        """What weights must look like; nothing is received while it is None."""
        ...

    @property
    def store(self) -> WeightStore | None:
        """Where weights go; None before a run has begun, and nothing is received then."""
        ...

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        """What this site can spare. Raises Refusal."""
        ...

    def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Why this model is rejected, or None; asked before a byte of it is sent."""
        ...

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float
    ) -> Accepted | Refused:
        """A model is in `store.incoming`, verified; returns once it is stored or finally rejected.

        `seconds` is what sending all of it takes, even if some was sent before; 0 where all of it was here already.
        It comes twice if its sender did not hear the first answer. What is left of `staged` is removed afterwards.
        """
        ...

    async def order(self, who: str, order: Order) -> OrderResult:
        """Carry out an order of the operator or of a site. Raises Refusal."""
        ...

    async def rows(self, who: str, ask: AskRows) -> Rows:
        """Rows of committed rounds. Raises Refusal."""
        ...

    def model_path(self, digest: Digest) -> Path | None:
        """Where these weights are, or None."""
        ...


class Peer(NamedTuple):
    """Who calls."""

    name: str
    number: NodeId | None
    """None for the operator."""

    @property
    def site(self) -> NodeId:
        """The calling site's number; only for methods that the operator may not call."""
        assert self.number is not None
        return self.number


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
        except Superseded:
            raise Refusal("the same weights are being sent anew", grpc.StatusCode.ABORTED) from None
        except Spoilt as error:
            raise Refusal(f"{error}; send it again", grpc.StatusCode.DATA_LOSS) from None
        except OSError as error:
            reply = Refused(f"it cannot be stored: {error.strerror or error}")
        if isinstance(reply, Refused):
            self._log("refused", peer=peer.name, address=context.peer(), what="Carry", reason=reply.reason)
        await context.write(encode(reply))


class Transfer:
    """A model on its way in."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        """The consignment message, undecoded."""
        self.receiving: asyncio.Task[float] | None = None
        self.landing: asyncio.Task[Accepted | Refused] | None = None
        self.superseded = False
        self.over = asyncio.Event()


class Superseded(Exception):
    """The same site started to send the same weights again."""


class Dock:
    """Where models arrive: one transfer of the same weights from the same site at a time."""

    def __init__(self, federation: Federation, host: Host) -> None:
        self._sites = len(federation.names)
        self._host = host
        self._busy: dict[tuple[str, Digest], Transfer] = {}

    async def receive(self, peer: Peer, content: bytes, context: Any) -> Accepted | Refused:
        """Receive one model. Raises Unfit, Refusal, Spoilt, Superseded or OSError."""
        consignment = decode(content, Consignment)
        check_consignment(consignment, peer.site, self._sites)
        key = peer.name, consignment.offer.digest
        while (other := self._busy.get(key)) is not None:
            if other.landing is not None and other.content == content:
                # The sender lost the connection before it got the answer.
                await context.write(encode(Proceed(consignment.size)))
                return await asyncio.shield(other.landing)
            await _supersede(other)
        arrival = self._admit(peer, consignment)
        transfer = self._busy[key] = Transfer(content)
        try:
            transfer.receiving = asyncio.create_task(self._take_in(arrival, context))
            seconds = await transfer.receiving
            transfer.landing = asyncio.create_task(self._land(key, peer, consignment, arrival, seconds))
        except asyncio.CancelledError:
            if transfer.superseded:
                raise Superseded from None
            raise
        finally:
            if transfer.landing is None:
                # Also where everything is verified and the sender disconnected at that moment.
                arrival.close(keep=True)
                self._end(key)
        # The weights are stored even if the sender disconnects now.
        return await asyncio.shield(transfer.landing)

    async def close(self) -> None:
        """Wait until every model that is being stored is stored."""
        if landings := [t.landing for t in self._busy.values() if t.landing is not None]:
            await asyncio.wait(landings)

    def _admit(self, peer: Peer, consignment: Consignment) -> Arrival:
        store, manifest = self._host.store, self._host.manifest
        if store is None or manifest is None:
            raise Refusal("no run has begun at this site")
        if sum(name == peer.name for name, _ in self._busy) >= TRANSFERS_PER_SITE:
            raise Refusal(f"{peer.name} is sending {TRANSFERS_PER_SITE} models already")
        if reason := self._host.admission(peer.site, consignment):
            raise Refusal(reason)
        return Arrival(store, manifest, peer.name, consignment)

    async def _take_in(self, arrival: Arrival, context: Any) -> float:
        """Receive until the sender is done, and verify; returns the seconds."""
        keep = True  # unless the content is wrong: if the connection breaks, the sender may resume
        thread = ThreadPoolExecutor(1, "arrival")  # one thread, so all work on the file is done in order
        try:
            await _in_thread(thread, arrival.open)
            await context.write(encode(Proceed(arrival.offset)))
            began = time.monotonic()
            await self._take_chunks(arrival, context, thread)
            await _in_thread(thread, arrival.finish)
            return arrival.seconds_for_all(time.monotonic() - began)
        except (Unfit, Spoilt, OSError) as error:
            keep = isinstance(error, Truncated)
            raise
        finally:
            thread.shutdown(wait=False)
            if not arrival.verified:
                arrival.close(keep)

    async def _take_chunks(self, arrival: Arrival, context: Any, thread: ThreadPoolExecutor) -> None:
        """Chunks are hashed and written in the thread while the next few are read."""
        loop = asyncio.get_running_loop()
        taking: deque[Future[None]] = deque()
        try:
            async with asyncio.timeout(STALL_SECONDS) as patience:
                while (chunk := await context.read()) is not grpc.aio.EOF:
                    patience.reschedule(loop.time() + STALL_SECONDS)
                    while taking and (taking[0].done() or len(taking) == CHUNKS_AHEAD):
                        await _see_oldest_done(taking)
                    taking.append(thread.submit(arrival.take, chunk))
                    taking[-1].add_done_callback(partial(_end_if_failed, loop, patience))
            while taking:
                await _see_oldest_done(taking)
        except TimeoutError:
            if not patience.expired():
                raise
            for future in taking:
                if future.done() and not future.cancelled():
                    future.result()
            raise Truncated(f"no chunk came for {STALL_SECONDS:.0f} s") from None
        finally:
            await _until_done(asyncio.gather(*map(asyncio.wrap_future, taking), return_exceptions=True))

    async def _land(
        self, key: tuple[str, Digest], peer: Peer, consignment: Consignment, arrival: Arrival, seconds: float
    ) -> Accepted | Refused:
        try:
            return await self._host.arrived(peer.site, consignment, arrival.path, seconds)
        finally:
            arrival.close(keep=False)
            self._end(key)

    def _end(self, key: tuple[str, Digest]) -> None:
        self._busy.pop(key).over.set()


async def _in_thread(thread: ThreadPoolExecutor, do: Callable[[], object]) -> None:
    """Run a function on the file in the thread; a cancelled caller still waits until it has ended."""
    future = asyncio.get_running_loop().run_in_executor(thread, do)
    await _until_done(future)
    future.result()


async def _see_oldest_done(taking: deque[Future[None]]) -> None:
    """Wait for the oldest write; it is removed from the queue only after it has succeeded."""
    oldest = taking[0]
    if not oldest.done():  # a finished write needs no turn of the event loop
        await asyncio.wrap_future(oldest)
    oldest.result()
    taking.popleft()


def _end_if_failed(loop: asyncio.AbstractEventLoop, patience: asyncio.Timeout, taken: Future[None]) -> None:
    """End the reading at once where a write failed, not at the next chunk. Called in the thread."""

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # the reading has ended already
            patience.reschedule(0.0)

    if not taken.cancelled() and taken.exception() is not None:
        loop.call_soon_threadsafe(end)


async def _until_done(future: asyncio.Future[Any]) -> None:
    """Wait for a thread even if cancelled again: the file must not be closed while the thread uses it."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    future.exception()  # marks the error as seen; a caller that needs it reads the future
    if cancelled is not None:
        raise cancelled


async def _supersede(transfer: Transfer) -> None:
    """End a transfer that is still receiving; wait for one that is being stored."""
    if transfer.landing is None and transfer.receiving is not None:
        transfer.superseded = True
        transfer.receiving.cancel()
    await transfer.over.wait()


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

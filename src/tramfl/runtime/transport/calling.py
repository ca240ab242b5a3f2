"""Calling other sites: loads, models, probes, orders and rows.

A call ends at once when its task is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import grpc
from msgspec import Struct

from tramfl.circulation.custody import Entry
from tramfl.hosts import is_loopback
from tramfl.notation import Digest, NodeId
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport.credentials import Credentials
from tramfl.runtime.transport.links import (
    MESSAGE_BYTES,
    SAME_VERSION,
    SITE_KEY,
    Refusal,
    decode,
    encode,
    method,
    not_understood,
    options,
)
from tramfl.runtime.transport.pouring import Download, Meter, Progress, TransferRefused, Turn, pour, read_reply
from tramfl.runtime.transport.probing import try_link
from tramfl.runtime.weights.store import DIGEST
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
    Rows,
    plain,
)

PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds before each retry of a transfer; a try that moved bytes starts again with the first pause."""
MOST_TRIES = 100
CONNECT_SECONDS = 5
"""How long connecting to a site, handshake included, may take."""
OLD_CALLS_SECONDS = 60.0
"""How long a call may go on over a connection with a certificate that was renewed meanwhile."""
REFUSALS = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)

DISTRUST = {
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet, or the clock here is wrong",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of another authority than those in the ca.crt here",
    "Hostname Verification Check failed": "its certificate is another site's",
}
"""What gRPC says where TLS fails at this end, and what that means."""
CLOSED = "it ended the connection at once; if it refuses the certificate shown here, its log says so"

T = TypeVar("T", bound=Struct)


class Unreachable(Exception):
    """The site does not answer, or the connection broke."""


class Distrusted(Unreachable):
    """The certificate of the site that answers does not show that it is the one that was called."""


class NotAccepted(TransferRefused):
    """The receiver checked the weights, and rejected them for what they are."""


class Peers:
    """Calls the other sites, for one site or for the operator."""

    def __init__(self, roster: Roster, me: str, credentials: Credentials | None) -> None:
        self._roster = roster
        self._me = me
        self._credentials = credentials
        self._shown = credentials.now if credentials is not None else None
        self._channels: dict[Entry, Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def load(self, node: NodeId, ask: AskLoad, seconds: float) -> Load:
        """What a site can spare. Raises Refusal or Unreachable."""
        load = await self._ask(node, "Load", ask, Load, seconds)
        numbers = (load.flops, load.bandwidth or 0.0, *load.held)
        if not all(isfinite(number) and number >= 0 for number in numbers):
            raise Refusal(f"{self._name(node)} reported a load that makes no sense")
        return load

    async def order(self, node: NodeId, order: Order, seconds: float) -> OrderResult:
        """Ask a site to do something. Raises Refusal or Unreachable."""
        return plain(await self._ask(node, "Order", order, OrderResult, seconds))

    async def rows(self, node: NodeId, ask: AskRows, seconds: float) -> Rows:
        """Rows of committed rounds. Raises Refusal or Unreachable."""
        lines: list[bytes] = []
        notes: dict[int, bytes] = {}
        async with self._errors(node):
            call = self._channel(node).unary_stream(method("Rows"))(
                encode(ask), timeout=seconds, metadata=self._metadata
            )
            async for content in call:
                part = decode(content, Rows, MESSAGE_BYTES)
                lines += part.lines
                notes |= part.notes
        return Rows(tuple(lines), notes)

    async def probe(self, node: NodeId, seconds: float) -> tuple[float, float]:
        """bit/s to a site, and the seconds of an empty exchange. Raises Busy, Refusal or Unreachable."""
        try:
            async with asyncio.timeout(seconds), self._errors(node):
                call = self._channel(node).stream_stream(method("Probe"))(metadata=self._metadata)
                try:
                    return await try_link(call)
                finally:
                    call.cancel()
        except TimeoutError:
            raise Unreachable(f"{self._name(node)} did not answer a probe in {seconds:.3g} s") from None

    async def send(
        self,
        node: NodeId,
        consignment: Consignment,
        path: Path,
        progress: Progress,
        turn: Turn | None = None,
    ) -> None:
        """Send a model; done once the receiver has it on its disk. Raises TransferRefused or Unreachable.

        After a break the transfer resumes where the receiver says, until a few tries in a row moved nothing.
        """
        idle = 0
        with path.open("rb", buffering=0) as file:
            for _ in range(MOST_TRIES):
                meter = Meter(progress)
                try:
                    return await self._carry(node, consignment, file.fileno(), meter, turn)
                except Unreachable:
                    idle = 0 if meter.moved else idle + 1
                    if idle >= len(PAUSES):
                        raise
                await asyncio.sleep(PAUSES[idle])
        raise Unreachable(f"the connection to {self._name(node)} broke {MOST_TRIES} times")

    async def fetch(
        self, node: NodeId, digest: Digest, to: Path, progress: Progress, most: int | None = None
    ) -> None:
        """Fetch weights of at most `most` bytes into a file that appears whole, verified and durable, or not at all.

        Raises Refusal, Unreachable or OSError; what had come by then is resumed the next time.
        """
        if not DIGEST.fullmatch(digest):
            raise Refusal(f"{digest[:80]!r} are no weights")
        part = to.with_name(f"{to.name}.{digest[:12]}.part")
        idle = 0
        with Download(part, most) as download:
            for _ in range(MOST_TRIES):
                meter = Meter(progress)
                try:
                    await self._fetch(node, digest, download, meter)
                    if await asyncio.to_thread(download.finished, digest, to):
                        return
                    idle += 1
                except Unreachable:
                    idle = 0 if meter.moved else idle + 1
                    if idle >= len(PAUSES):
                        raise
                if idle >= len(PAUSES):
                    break
                await asyncio.sleep(PAUSES[idle])
        raise Refusal(f"{self._name(node)} sent other bytes than those of {digest}")

    async def close(self) -> None:
        """End all connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()
        for closing in list(self._closing):
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _ask(self, node: NodeId, name: str, question: Struct, kind: type[T], seconds: float) -> T:
        return decode(await self._unary(node, name, encode(question), seconds), kind)

    async def _unary(self, node: NodeId, name: str, content: bytes, seconds: float) -> bytes:
        async with self._errors(node):
            call = self._channel(node).unary_unary(method(name))
            answer: bytes = await call(content, timeout=max(seconds, 0.001), metadata=self._metadata)
            return answer

    async def _carry(
        self, node: NodeId, consignment: Consignment, file: int, progress: Progress, turn: Turn | None
    ) -> None:
        """One try."""
        async with self._errors(node, TransferRefused):
            call = self._channel(node).stream_stream(method("Carry"))(metadata=self._metadata)
            try:
                await call.write(encode(consignment))
                reply = await read_reply(call)
                if isinstance(reply, Proceed):
                    reply = await pour(call, file, reply.offset, consignment.size, progress, turn)
            finally:
                call.cancel()
        if isinstance(reply, Refused):
            refusal = NotAccepted if reply.not_accepted else TransferRefused
            raise refusal(plain(reply.reason)[:400])
        if not isinstance(reply, Accepted):
            raise TransferRefused(f"{self._name(node)} did not say whether it took the model")

    async def _fetch(self, node: NodeId, digest: Digest, download: Download, progress: Progress) -> None:
        """One try."""
        async with self._errors(node):
            ask = encode(AskModel(digest, download.offset))
            call = self._channel(node).unary_stream(method("Model"))(ask, metadata=self._metadata)
            try:
                first = await call.read()
                download.expect(int.from_bytes(first, "big") if first is not grpc.aio.EOF else 0)
                progress(download.offset)
                while (chunk := await call.read()) is not grpc.aio.EOF:
                    await asyncio.to_thread(download.append, chunk)
                    progress(download.offset)
            finally:
                call.cancel()

    def _name(self, node: NodeId) -> str:
        return self._roster.names[node]

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return ((SITE_KEY, self._me),) if self._credentials is None else ()

    def _channel(self, node: NodeId) -> Any:
        """The connection to a site, kept open; TLS checks that the peer is that site."""
        site = self._roster.entries[node]
        if site.address is None:
            raise Unreachable(f"{site.name} was removed from the federation")
        self._renew()
        if site not in self._channels:
            settings = options(
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", CONNECT_SECONDS * 1000),
                ("grpc.max_reconnect_backoff_ms", 2000),
            )
            if self._shown is None:
                if not is_loopback(site.address.rpartition(":")[0].strip("[]")):
                    raise Unreachable(f"without certificates {site.name} may be on loopback only")
                channel = grpc.aio.insecure_channel(site.address, settings)
            else:
                own = self._shown
                secure = grpc.ssl_channel_credentials(own.authorities, own.key, own.certificate)
                settings.append(("grpc.ssl_target_name_override", site.name))
                channel = grpc.aio.secure_channel(site.address, secure, settings)
            self._channels[site] = channel
        return self._channels[site]

    @contextlib.asynccontextmanager
    async def _errors(self, node: NodeId, refusal: type[Refusal] = Refusal) -> AsyncIterator[None]:
        """A gRPC error as Refusal or Unreachable."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            details = plain(error.details() or error.code().name)[:400]
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and SAME_VERSION not in details:
                details = not_understood(self._name(node))
            if self._credentials is not None:
                self._credentials.look_again()  # a renewed certificate may be the remedy
            if error.code() in REFUSALS:
                raise refusal(details, error.code()) from None
            for sign, reason in DISTRUST.items():
                if sign in details:
                    raise Distrusted(f"{self._name(node)} is not believed: {reason}") from None
            raise Unreachable(f"{self._name(node)} does not answer: {_cause(details)}") from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:  # closed here, or ended there meanwhile
            raise Unreachable(f"{self._name(node)} cannot be called any more: {error}") from None

    def _renew(self) -> None:
        """Where the files were renewed, connect anew; calls under way finish over the old connections."""
        if self._credentials is None or (now := self._credentials.now) == self._shown:
            return
        self._shown = now
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            closing = asyncio.ensure_future(channel.close(OLD_CALLS_SECONDS))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _cause(details: str) -> str:
    """Why a call failed, without gRPC's words about how it tried."""
    if not details.startswith("failed to connect"):
        return details
    cause = details.rpartition(": ")[2]
    return CLOSED if cause == "Socket closed" else cause

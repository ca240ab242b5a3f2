"""Models on their way in: admitted, received chunk by chunk, verified, and handed to the site.

Chunks are hashed and written in a thread of the transfer while the next ones arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

from tramfl.notation import Digest
from tramfl.runtime.transport.host import Host, Peer
from tramfl.runtime.transport.links import Refusal, decode, encode
from tramfl.runtime.weights import Arrival, Spoilt, Truncated, Unfit, check_consignment
from tramfl.runtime.weights.arrival import OFFSET_BYTES
from tramfl.runtime.wire import Accepted, Consignment, Proceed, Refused

STALL_SECONDS = 300.0
"""A transfer whose sender is connected but sends no chunk for this long is ended."""
TRANSFERS_PER_SITE = 2
"""Most transfers at once from one site: a model to train, and a background copy."""
CHUNKS_AHEAD = 3
"""Chunks of a transfer in memory that wait to be written."""


class CallStream:
    """The messages of one call. Each write waits until the one before has ended, also one whose caller was cancelled.

    gRPC fails a write that begins while another is under way, and cannot take one back.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._writing: asyncio.Task[None] | None = None

    async def read(self) -> Any:
        """The peer's next message, or grpc.aio.EOF."""
        return await self._context.read()

    async def write(self, content: bytes) -> None:
        """Send a message. Raises Refusal where the peer does not take it."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                if self._writing is not None:
                    await asyncio.wait({self._writing})
                self._writing = asyncio.ensure_future(self._context.write(content))
                self._writing.add_done_callback(_seen)
                await asyncio.shield(self._writing)
        except TimeoutError:
            raise Refusal(f"nothing was taken for {STALL_SECONDS:.0f} s", grpc.StatusCode.DEADLINE_EXCEEDED) from None


class Transfer:
    """A model on its way in."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        """The consignment message, undecoded."""
        self.receiving: asyncio.Task[float] | None = None
        self.landing: asyncio.Task[Accepted | Refused] | None = None
        self.superseded = False
        self.over = asyncio.Event()


class SentAgain(Exception):
    """The same site started to send the same weights again."""


class Dock:
    """Where models arrive: one transfer of the same weights from the same site at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._busy: dict[tuple[str, Digest], Transfer] = {}

    async def receive(self, peer: Peer, content: bytes, stream: CallStream) -> Accepted | Refused:
        """Receive one model. Raises Unfit, Refusal, Spoilt, SentAgain or OSError."""
        since = time.monotonic()
        consignment = decode(content, Consignment)
        check_consignment(consignment, peer.site)
        if reason := await self._host.admission(peer.site, consignment):
            raise Refusal(reason)
        key = peer.name, consignment.offer.digest
        while (other := self._busy.get(key)) is not None:
            if other.landing is not None and other.content == content:
                # The sender lost the connection before it got the answer.
                await stream.write(encode(Proceed(consignment.size)))
                return await asyncio.shield(other.landing)
            await _supersede(other)
        arrival = self._admit(peer, consignment)
        transfer = self._busy[key] = Transfer(content)
        try:
            with self._host.receiving():
                transfer.receiving = asyncio.create_task(self._take_in(arrival, stream))
                seconds = await transfer.receiving
            transfer.landing = asyncio.create_task(self._land(key, peer, consignment, arrival, seconds, since))
        except asyncio.CancelledError:
            if transfer.superseded:
                raise SentAgain from None
            raise
        finally:
            if transfer.landing is None:
                # Also where everything is verified and the sender disconnected at that moment.
                arrival.close(keep=True)
                self._end(key)
        # The weights are stored even if the sender disconnects now.
        return await asyncio.shield(transfer.landing)

    def receives_from_others(self, peer: str) -> bool:
        """Whether a model of another site than this one is on its way in."""
        return any(name != peer for name, _ in self._busy)

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
        return Arrival(store, manifest, peer.name, consignment)

    async def _take_in(self, arrival: Arrival, stream: CallStream) -> float:
        """Receive until the sender is done, and verify; returns the seconds."""
        keep = True  # unless the content is wrong: if the connection breaks, the sender may resume
        thread = ThreadPoolExecutor(1, "arrival")  # one thread, so all work on the file is done in order
        try:
            await _in_thread(thread, arrival.open)
            await stream.write(encode(Proceed(arrival.offset)))
            began = time.monotonic()
            await self._take_chunks(arrival, stream, thread)
            await _in_thread(thread, arrival.finish)
            return arrival.seconds_for_all(time.monotonic() - began)
        except (Unfit, Spoilt, OSError) as error:
            keep = isinstance(error, Truncated)
            raise
        finally:
            thread.shutdown(wait=False)
            if not arrival.verified:
                arrival.close(keep)

    async def _take_chunks(self, arrival: Arrival, stream: CallStream, thread: ThreadPoolExecutor) -> None:
        """Chunks are hashed and written in the thread while the next few are read."""
        loop = asyncio.get_running_loop()
        taking: deque[Future[None]] = deque()
        try:
            async with asyncio.timeout(STALL_SECONDS) as patience:
                received = arrival.offset
                while (chunk := await stream.read()) is not grpc.aio.EOF:
                    patience.reschedule(loop.time() + STALL_SECONDS)
                    received += max(0, len(chunk) - OFFSET_BYTES)
                    # Only so does the sender know how fast bytes arrive: what it has written may lie in buffers.
                    await stream.write(encode(Proceed(received)))
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
        self,
        key: tuple[str, Digest],
        peer: Peer,
        consignment: Consignment,
        arrival: Arrival,
        seconds: float,
        since: float,
    ) -> Accepted | Refused:
        try:
            return await self._host.arrived(peer.site, consignment, arrival.path, seconds, since)
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


def _seen(written: asyncio.Task[None]) -> None:
    """Mark a write's error as seen: the caller that needs it awaits the write itself."""
    if not written.cancelled():
        written.exception()


async def _supersede(transfer: Transfer) -> None:
    """End a transfer that is still receiving; wait for one that is being stored."""
    if transfer.landing is None and transfer.receiving is not None:
        transfer.superseded = True
        transfer.receiving.cancel()
    await transfer.over.wait()

"""The bytes of a model on their way: a file sent frame by frame, and one that is written as it comes.

`calling.py` makes the calls, and tries again where a connection breaks.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from tramfl.notation import Digest
from tramfl.runtime.transport.links import Refusal, decode
from tramfl.runtime.weights.arrival import OFFSET_BYTES
from tramfl.runtime.weights.store import BLOCK_BYTES, StoreFull, sync
from tramfl.runtime.wire import CHUNK_BYTES, Proceed, Reply

Progress = Callable[[int], None]
"""Called with the bytes that the receiver has: where the transfer starts or resumes, then as more arrive."""
Turn = Callable[[], Awaitable[object]]
"""Awaited before each chunk: a transfer that is in no hurry lets others pass."""


class TransferRefused(Refusal):
    """The receiver rejected the model."""


class Download:
    """A file on its way here."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        self._path, self._most = path, most
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._size = 0
        self.offset = 0
        while block := os.pread(self._file, BLOCK_BYTES, self.offset):
            self._hash.update(block)
            self.offset += len(block)

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def expect(self, size: int) -> None:
        """The file will have `size` bytes. Raises Refusal if that is too many, StoreFull if there is no room."""
        if self._most is not None and size > self._most:
            raise Refusal(f"{size} bytes are more than this run's model can have")
        room = os.statvfs(self._path.parent)
        if (free := room.f_bavail * room.f_frsize) < size - self.offset:
            raise StoreFull(
                errno.ENOSPC, f"{size - self.offset} bytes are to come and {free} are free", str(self._path)
            )
        self._size = size

    def append(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if self.offset + len(chunk) > self._size:
            raise Refusal(f"more than the announced {self._size} bytes came")
        self._hash.update(chunk)
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._file, view, self.offset)
            self.offset += written
            view = view[written:]

    def finished(self, digest: Digest, to: Path) -> bool:
        """Move the file into place if it is complete and has the right digest; start over if the digest is wrong."""
        if self.offset < self._size:
            return False
        if self._hash.hexdigest() != digest:
            os.ftruncate(self._file, 0)
            self._hash, self.offset = hashlib.sha256(), 0
            return False
        os.fsync(self._file)
        os.replace(self._path, to)
        sync(to.parent)
        return True


class Meter:
    """Passes progress on, and remembers whether there was any."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._start: int | None = None
        self.moved = False

    def __call__(self, offset: int) -> None:
        """This many bytes have arrived."""
        if self._start is None:
            self._start = offset
        self.moved = offset > self._start
        self._progress(offset)


class _Frames:
    """Chunks of a file as frames, each built in the same buffer."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory = bytearray(OFFSET_BYTES + CHUNK_BYTES)

    async def read(self, offset: int) -> bytes:
        """The frame at an offset; at the file's end, one without data."""
        view = memoryview(self._memory)
        view[:OFFSET_BYTES] = offset.to_bytes(OFFSET_BYTES, "big")
        data = [view[OFFSET_BYTES:]]
        try:
            # Pages in memory, such as those of weights just stored, are read without a thread.
            count = os.preadv(self._file, data, offset, os.RWF_NOWAIT)
        except OSError:  # not in memory, or a file system without RWF_NOWAIT
            count = await asyncio.to_thread(os.preadv, self._file, data, offset)
        return bytes(view[: OFFSET_BYTES + count])


async def read_reply(call: Any) -> Reply | None:
    """The receiver's next reply; None where the call has ended."""
    content = await call.read()
    return None if content is grpc.aio.EOF else decode(content, Reply)  # type: ignore[arg-type]


async def pour(call: Any, file: int, offset: int, size: int, progress: Progress, turn: Turn | None) -> Reply | None:
    """Send the file from an offset on until all is sent or the receiver has answered; returns the answer."""
    progress(offset)
    frames = _Frames(file)
    answer = asyncio.create_task(_answer(call, offset, size, progress))
    try:
        while offset < size and not answer.done():
            if turn is not None:
                await turn()
            frame = await frames.read(offset)
            if len(frame) == OFFSET_BYTES:
                raise TransferRefused(f"the file ends at byte {offset} of {size}")
            await call.write(frame)
            offset += len(frame) - OFFSET_BYTES
        if not answer.done():
            await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the receiver ended the call: its answer says why
    except BaseException:
        answer.cancel()
        raise
    return await answer


async def _answer(call: Any, offset: int, size: int, progress: Progress) -> Reply | None:
    """The receiver's final reply; before it, the receiver repeats Proceed as bytes arrive."""
    while isinstance(reply := await read_reply(call), Proceed):
        if offset < reply.offset <= size:
            offset = reply.offset
            progress(offset)
    return reply

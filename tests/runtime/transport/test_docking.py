"""The stream of one transfer: its writes never overlap, since gRPC would fail the second."""

import asyncio

import grpc
import pytest

from tests.runtime.sites import played
from tramfl.runtime.transport import docking
from tramfl.runtime.transport.docking import CallStream
from tramfl.runtime.transport.links import Refusal


class OneAtATime:
    """A call that takes one message at a time, when it is released, as gRPC does."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.taken: list[bytes] = []
        self._writing = False

    async def read(self) -> object:
        return grpc.aio.EOF

    async def write(self, content: bytes) -> None:
        if self._writing:
            raise grpc.aio.InternalError("too many operations")
        self._writing = True
        await self.released.wait()
        self._writing = False
        self.taken.append(content)


@played
async def test_a_write_waits_for_one_whose_caller_was_cancelled() -> None:
    call = OneAtATime()
    stream = CallStream(call)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await stream.write(b"proceed")
    second = asyncio.create_task(stream.write(b"refused"))
    await asyncio.sleep(0)
    call.released.set()
    await second
    assert call.taken == [b"proceed", b"refused"]


@played
async def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docking, "STALL_SECONDS", 0.01)
    stream = CallStream(OneAtATime())
    for _ in range(2):
        with pytest.raises(Refusal, match="nothing was taken for"):
            await stream.write(b"proceed")

"""A short trial of a link: how many bit/s get through once a connection is up to speed.

The caller streams frames, and the site echoes an empty message for each frame that has arrived. So the times of the
echoes are those of the receiver, one way back later. The first part of a trial is left out: there TCP still finds out
how fast it may send.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import grpc

FRAME_BYTES = 128 << 10
MOST_BYTES = 8 << 20
"""Of one trial."""
TRIAL_SECONDS = 0.8
"""Long enough for TCP to reach 200 Mbit/s over 80 ms there and back."""
SETTLED = 2 / 3
"""The part of a trial's time that is left out."""
BUSY = b"busy"
"""The echo of a site that is receiving something else: the trial would measure half a link."""
TURN_SECONDS = 0.5
"""A site that echoed one caller answers others for this long that it is busy."""


class Busy(Exception):
    """The site is receiving something else."""


def sustained(arrivals: Sequence[tuple[float, int]]) -> float:
    """bit/s, from (second, bytes arrived by then), the first at the beginning with 0 bytes.

    Where everything arrived at nearly one moment, it is the rate of the whole.
    """
    (began, _), (ended, total) = arrivals[0], arrivals[-1]
    threshold = began + SETTLED * (ended - began)
    start, before = next((second, count) for second, count in arrivals if second >= threshold)
    if total - before < 2 * FRAME_BYTES or ended - start <= 0:
        start, before = began, 0
    return 8 * (total - before) / max(ended - start, 1e-6)


async def try_link(call: Any) -> tuple[float, float]:
    """Play a trial over a call of `Probe`; bit/s, and the seconds of an empty exchange. Raises Busy."""
    there_and_back = min([await _exchange(call) for _ in range(2)])
    began = time.monotonic()
    arrivals = [(began, 0)]
    sent = 0
    arrived = asyncio.Event()

    async def listen() -> None:
        while (echo := await call.read()) is not grpc.aio.EOF:
            if echo == BUSY:
                raise Busy
            arrivals.append((time.monotonic(), arrivals[-1][1] + FRAME_BYTES))
            arrived.set()

    listening = asyncio.create_task(listen())
    listening.add_done_callback(lambda _: arrived.set())
    try:
        frame = bytes(FRAME_BYTES)  # zeros will do, since nothing on the way compresses
        deadline = began + TRIAL_SECONDS + there_and_back
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                while arrivals[-1][1] < MOST_BYTES and not listening.done():
                    # What is under way is at most as much as has arrived: it grows as TCP's own window does.
                    if sent < MOST_BYTES and sent - arrivals[-1][1] <= arrivals[-1][1] + FRAME_BYTES:
                        await call.write(frame)
                        sent += FRAME_BYTES
                    else:
                        arrived.clear()
                        await arrived.wait()
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    if listening.done() and not listening.cancelled() and (error := listening.exception()) is not None:
        raise error
    if len(arrivals) == 1:
        # Not one frame arrived in the time: it is slower than this.
        return 8 * FRAME_BYTES / (time.monotonic() - began), there_and_back
    return sustained(arrivals), there_and_back


async def _exchange(call: Any) -> float:
    began = time.monotonic()
    await call.write(b"")
    if await call.read() == BUSY:
        raise Busy
    return time.monotonic() - began


class Turn:
    """Which caller may probe this site now: two at once would each find half of its link."""

    def __init__(self) -> None:
        self._caller, self._until = "", 0.0

    def taken(self, caller: str) -> bool:
        """Whether another caller has the turn; otherwise the caller has it now."""
        now = time.monotonic()
        if caller != self._caller and now < self._until:
            return True
        self._caller, self._until = caller, now + TURN_SECONDS
        return False

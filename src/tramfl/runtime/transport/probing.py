"""A short trial of a link: how many bit/s get through once a connection is up to speed.

The caller streams frames, and the site echoes an empty message for each frame that has arrived. So the times of the
echoes are those of the receiver, one way back later. The first part of a trial is left out: there TCP still finds out
how fast it may send. A trial ends when all that it has sent has arrived: as much may be under way as it has measured,
and the next trial would share the line with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc

FRAME_BYTES = 128 << 10
MOST_BYTES = 8 << 20
"""Of one trial."""
TRIAL_SECONDS = 0.8
"""Long enough for TCP to reach 200 Mbit/s over 80 ms there and back."""
DRAIN_SECONDS = 1.0
"""A trial waits no longer for what is still under way; it is at most as much as has arrived."""
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

    async def pump() -> None:
        nonlocal sent
        frame = bytes(FRAME_BYTES)  # zeros will do, since nothing on the way compresses
        deadline = began + TRIAL_SECONDS + there_and_back
        while time.monotonic() < deadline and arrivals[-1][1] < MOST_BYTES:
            # What is under way is at most as much as has arrived: it grows as TCP's own window does.
            if sent < MOST_BYTES and sent - arrivals[-1][1] <= arrivals[-1][1] + FRAME_BYTES:
                await call.write(frame)
                sent += FRAME_BYTES
            else:
                await next_arrival()
        while arrivals[-1][1] < sent:
            await next_arrival()

    async def next_arrival() -> None:
        arrived.clear()
        await arrived.wait()

    tasks = listening, pumping = asyncio.create_task(listen()), asyncio.create_task(pump())
    limit = TRIAL_SECONDS + DRAIN_SECONDS + there_and_back
    try:
        await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if pumping.done() and pumping.exception() is not None:
            # The site has ended the call; its last echo says why.
            await asyncio.wait((listening,), timeout=DRAIN_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for error in results:
        if isinstance(error, Exception):
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

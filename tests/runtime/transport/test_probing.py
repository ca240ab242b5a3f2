from __future__ import annotations

import asyncio
from itertools import accumulate
from pathlib import Path

import pytest

from tests.runtime.sites import SECONDS, Trial, played
from tramfl.runtime.transport import Busy, Peers, Refusal, links, probing
from tramfl.runtime.transport.probing import FRAME_BYTES, sustained


def test_the_slow_start_of_a_connection_is_left_out() -> None:
    """Frames of a link of 50 Mbit/s, 80 ms there and back, whose window doubles until it is full."""
    gaps = [0.08] + [max(0.08 / 2**n, 8 * FRAME_BYTES / 50e6) for n in range(40)]
    arrivals = [(0.0, 0), *((at, (n + 1) * FRAME_BYTES) for n, at in enumerate(accumulate(gaps)))]
    assert sustained(arrivals) == pytest.approx(50e6, rel=0.01)


def test_frames_that_came_at_one_moment_have_the_rate_of_the_whole() -> None:
    arrivals = [(0.0, 0), (0.01, FRAME_BYTES), (0.01, 2 * FRAME_BYTES)]
    assert sustained(arrivals) == pytest.approx(8 * 2 * FRAME_BYTES / 0.01)


async def is_busy(peers: Peers) -> bool:
    try:
        await peers.probe(1, SECONDS)
    except Busy:
        return True
    return False


@played
async def test_two_sites_do_not_probe_a_third_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Trial(tmp_path) as trial:
        monkeypatch.setattr(probing, "TURN_SECONDS", 3600.0)
        bandwidth, latency = await trial.peers().probe(1, SECONDS)
        assert bandwidth > 0
        assert latency > 0
        with pytest.raises(Busy):
            await trial.peers("cedar").probe(1, SECONDS)
        monkeypatch.setattr(probing, "TURN_SECONDS", 0.1)
        await trial.peers().probe(1, SECONDS)  # which gives its turn up in a moment
        while await is_busy(trial.peers("cedar")):
            await asyncio.sleep(0.01)
        assert trial.log.lines == []


@played
async def test_a_probe_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        async with peers._errors(1):
            call = peers._channel(1).stream_stream(links.method("Probe"))(metadata=peers._metadata)
            await call.write(bytes(2 * FRAME_BYTES))
            with pytest.raises(Refusal, match="too large"):
                async with peers._errors(1):
                    await call.read()
        assert len(trial.log.refusals()) == 1


class SlowLink:
    """A call whose frames lie in a buffer and arrive one after the other."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._line: asyncio.Queue[bytes] = asyncio.Queue()
        self._echoes: asyncio.Queue[bytes] = asyncio.Queue()
        self.under_way = 0
        self._carrier = asyncio.create_task(self._carry())

    async def write(self, frame: bytes) -> None:
        self.under_way += len(frame)
        self._line.put_nowait(frame)

    async def read(self) -> bytes:
        return await self._echoes.get()

    async def _carry(self) -> None:
        while True:
            frame = await self._line.get()
            await asyncio.sleep(self._seconds if frame else 0)
            self.under_way -= len(frame)
            self._echoes.put_nowait(b"")


@played
async def test_a_trial_leaves_nothing_on_the_line_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "TRIAL_SECONDS", 0.2)
    monkeypatch.setattr(probing, "DRAIN_SECONDS", SECONDS)
    link = SlowLink(0.01)
    bandwidth, _ = await probing.try_link(link)
    assert link.under_way == 0
    assert bandwidth > 0


@played
async def test_a_trial_ends_where_nothing_arrives_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "TRIAL_SECONDS", 0.1)
    monkeypatch.setattr(probing, "DRAIN_SECONDS", 0.1)
    bandwidth, _ = await probing.try_link(SlowLink(3600.0))
    assert 0 < bandwidth <= 8 * FRAME_BYTES / 0.2

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

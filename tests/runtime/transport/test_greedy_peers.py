"""One peer asks for more than its share: real servers on loopback, and the others notice nothing."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.runtime.sites import ASK, SECONDS, Trial, ignore, played
from tramfl.runtime.transport import Refusal, Unreachable, guarding, links, serving
from tramfl.runtime.transport.guarding import Guard
from tramfl.runtime.transport.links import encode
from tramfl.runtime.wire import AskRows


async def refused(trial: Trial, count: int) -> list[str]:
    """The reasons of all refusals, once there are `count`."""
    while len(trial.log.refusals()) < count:
        await asyncio.sleep(0.01)
    return [line["reason"] for line in trial.log.refusals()]


@played
async def test_idle_streams_of_one_peer_take_no_place_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FIRST_SECONDS", SECONDS)
    most = guarding.STREAMS_AT_ONCE["Carry"]
    async with Trial(tmp_path, data=b"small") as trial:
        greedy = [trial.peers("cedar") for _ in range(12)]
        calls: list[Any] = []
        for peers in greedy:  # a connection each: gRPC allows each of them some streams
            calls += [peers._channel(1).stream_stream(links.method("Carry"))() for _ in range(50)]
        reading = [asyncio.create_task(call.read()) for call in calls]
        assert (await trial.peers("ash").load(1, ASK, SECONDS)).held == (5, 5)
        await trial.peers("ash").send(1, trial.consignment(), trial.model, ignore)
        while sum(not task.done() for task in reading) > most:
            await asyncio.sleep(0.01)
        errors = [task.exception() for task in reading if task.done()]
        codes = [error.code() for error in errors if isinstance(error, grpc.aio.AioRpcError)]
        assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * (len(calls) - most)
        for call in calls:
            call.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for peers in greedy:
            await peers.close()


@played
async def test_a_stream_that_stays_idle_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FIRST_SECONDS", 0.1)
    async with Trial(tmp_path, data=b"small") as trial:
        call = trial.peers("cedar")._channel(1).stream_stream(links.method("Carry"))()
        with pytest.raises(grpc.aio.AioRpcError) as left:
            await call.read()
        assert left.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@played
async def test_a_peer_that_asks_for_all_rows_at_once_or_does_not_take_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STALL_SECONDS", SECONDS)
    most = guarding.STREAMS_AT_ONCE["Rows"]
    async with Trial(tmp_path, data=b"small") as trial:
        peers = trial.peers("cedar")
        for first, last in ((1, 1 << 40), (-1, 5), (1 << 60, 1 << 60), (0, serving.MOST_ROWS)):
            with pytest.raises(Refusal, match="rounds or fewer"):
                await peers.rows(1, AskRows("trial", first, last), SECONDS)
        trial.host.lines = (b"x" * 900_000,) * 400
        ask = encode(AskRows("trial", 1, 400))
        before = len(trial.log.refusals())
        unread = [peers._channel(1).unary_stream(links.method("Rows"))(ask) for _ in range(40)]
        reasons = (await refused(trial, before + len(unread) - most))[before:]
        assert all("calls open" in reason for reason in reasons)
        for call in unread:
            call.cancel()

        monkeypatch.setattr(serving, "STALL_SECONDS", 0.1)
        before = len(trial.log.refusals())
        another = trial.peers("ash")._channel(1).unary_stream(links.method("Rows"))(ask)
        assert "nothing was taken" in (await refused(trial, before + 1))[-1]
        another.cancel()


def test_a_peer_has_its_burst_and_then_its_rate_and_another_peer_has_its_own() -> None:
    now = [0.0]
    guard = Guard(lambda: now[0])

    def allowed(peer: str) -> int:
        count = 0
        try:
            while count < 10_000:
                with guard.call(peer, "Order"):
                    count += 1
        except Refusal:
            pass
        return count

    assert allowed("cedar") == guarding.BURST
    assert allowed("cedar") == 0
    assert allowed("ash") == guarding.BURST
    now[0] += 1.0
    assert allowed("cedar") == guarding.CALLS_PER_SECOND


@played
async def test_a_stranger_that_never_speaks_tls_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_SECONDS", 0.5)
    async with Trial(tmp_path, data=b"small") as trial:
        idle = [socket.create_connection(("127.0.0.1", trial.port), timeout=60) for _ in range(50)]
        assert (await trial.peers("ash").load(1, ASK, SECONDS)).held == (5, 5)
        for each in idle:
            assert await asyncio.to_thread(_ended, each)


def _ended(connection: socket.socket) -> bool:
    """Wait until the other end has closed the connection."""
    with connection:
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


@played
async def test_a_peer_past_its_limits_is_refused_in_words_and_may_come_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(guarding, "BURST", 5.0)
    monkeypatch.setattr(guarding, "CALLS_PER_SECOND", 1e-6)
    async with Trial(tmp_path, data=b"small") as trial:
        peers = trial.peers("cedar")
        for _ in range(5):
            await peers.load(1, ASK, SECONDS)
        with pytest.raises(Unreachable, match="calls a second"):
            await peers.load(1, ASK, SECONDS)
        assert (await trial.peers("ash").load(1, ASK, SECONDS)).held == (5, 5)

"""Transfers whose connection breaks, whose sender stalls and whose receiver restarts: they are taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from pathlib import Path
from random import Random

import grpc
import pytest

from benchmarks.transfer import certify, credentials, process, receive
from benchmarks.transfer import federation as pair
from benchmarks.transfer import write_model as write_noise
from tests.runtime.sites import ASK, SECONDS, Proxy, Trial, frames, ignore, played, said
from tramfl.circulation.phases import Offer
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Peers, Unreachable, calling, docking, links
from tramfl.runtime.transport.links import encode
from tramfl.runtime.weights.store import WeightStore
from tramfl.runtime.wire import (
    CHUNK_BYTES,
    Consignment,
    Order,
    Proceed,
    Refused,
)


@played
async def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(30_000_000)) as trial, Proxy(trial.port) as proxy:
        proxy.cut_after = [12_000_000, 9_000_000]
        progress: list[int] = []
        await trial.peers(port=proxy.port).send(1, trial.consignment(), trial.model, progress.append)
        assert proxy.connections == 3
        assert proxy.passed < 1.5 * len(trial.data)
        assert progress[-1] == trial.model.stat().st_size
        assert len(trial.host.arrivals) == 1
        assert trial.parts() == []


@played
async def test_a_connection_that_breaks_before_the_answer_is_heard_is_no_second_arrival(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial, Proxy(trial.port) as proxy:
        trial.host.hold = asyncio.Event()
        progress: list[int] = []
        send = trial.peers(port=proxy.port).send
        sending = asyncio.create_task(send(1, trial.consignment(), trial.model, progress.append))
        while not trial.host.arrivals:
            await asyncio.sleep(0.01)
        proxy.cut()
        # Asked again, the receiver says at once that it has every byte.
        while progress.count(trial.model.stat().st_size) < 2:
            await asyncio.sleep(0.01)
        trial.host.hold.set()
        await sending
        assert len(trial.host.arrivals) == 1
        assert trial.host.store is not None
        assert trial.host.store.path(trial.digest) is not None


@played
async def test_a_receiver_that_restarts_half_way_goes_on_from_its_disk(tmp_path: Path) -> None:
    trial = Trial(tmp_path, data=os.urandom(30_000_000))
    await trial.server.start()
    progress: list[int] = []
    sending = asyncio.create_task(trial.peers().send(1, trial.consignment(), trial.model, progress.append))
    while not progress or progress[-1] < 15_000_000:
        await asyncio.sleep(0.001)
    await trial.server.stop(0)
    assert not sending.done()
    assert trial.unchanged()
    before = len(progress)
    trial.host.store = WeightStore(tmp_path / "birch")
    trial.server = trial.new_server()
    await trial.server.start()
    await sending
    assert progress[before] > 5_000_000
    assert len(trial.host.arrivals) == 1
    await trial.server.stop(0)


@played
async def test_a_site_that_is_not_there_is_unreachable_after_a_few_tries(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as hurry:
        hurry.setattr(calling, "PAUSES", (0.01, 0.01))
        trial = Trial(tmp_path)
        with pytest.raises(Unreachable, match="birch does not answer"):
            await trial.peers().send(1, trial.consignment(), trial.model, ignore)
    with pytest.raises(Unreachable, match="birch does not answer"):
        await trial.peers().load(1, ASK, SECONDS)


@played
async def test_a_cancelled_send_ends_at_once_and_a_later_one_resumes(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(60_000_000)) as trial:
        progress: list[int] = []
        peers = trial.peers()
        sending = asyncio.create_task(peers.send(1, trial.consignment(), trial.model, progress.append))
        while not progress or progress[-1] < 10_000_000:
            await asyncio.sleep(0.001)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert progress[-1] < len(trial.data)
        assert trial.unchanged()
        again: list[int] = []
        await peers.send(1, trial.consignment(ticket=2), trial.model, again.append)
        assert 0 < again[0] < len(trial.data)
        assert len(trial.host.arrivals) == 1


@played
async def test_the_same_weights_sent_anew_end_the_transfer_before(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        content = trial.model.read_bytes()
        hanging = peers._channel(1).stream_stream(links.method("Carry"))()
        await hanging.write(encode(trial.consignment()))
        await hanging.read()
        await hanging.write(frames(content)[0])
        while trial.parts() == [] or not (tmp_path / "birch/incoming" / trial.parts()[0]).stat().st_size:
            await asyncio.sleep(0.01)
        progress: list[int] = []
        await peers.send(1, trial.consignment(ticket=2), trial.model, progress.append)
        assert progress[0] == CHUNK_BYTES
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await hanging.read() is not grpc.aio.EOF:  # what had arrived by then
                pass
        assert await hanging.code() is grpc.StatusCode.ABORTED
        assert [c.offer.ticket for _, c, _ in trial.host.arrivals] == [2]


@played
async def test_a_sender_that_hangs_up_at_any_moment_may_come_back(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(5000)) as trial:
        peers, rng = trial.peers(), Random(1)
        call = peers._channel(1).stream_stream(links.method("Carry"))
        for _ in range(300):
            hanging = call()
            await hanging.write(encode(trial.consignment()))
            for chunk in frames(trial.model.read_bytes(), 2500):
                await hanging.write(chunk)
            await asyncio.sleep(rng.random() * 0.004)
            hanging.cancel()
        await peers.send(1, trial.consignment(ticket=2), trial.model, ignore)
        assert [line for line in trial.log.lines if line["event"] == "failed"] == []
        assert trial.parts() == []


@played
async def test_a_sender_that_stalls_is_given_up(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as hurry:
        hurry.setattr(docking, "STALL_SECONDS", 0.3)
        async with Trial(tmp_path) as trial:
            first, *_ = frames(trial.model.read_bytes())
            replies = await said(trial.peers(), [encode(trial.consignment()), first], end=False)
            assert replies[0] == Proceed(0)
            assert isinstance(replies[1], Refused)
            assert "no chunk came" in replies[1].reason
            assert trial.unchanged()


async def reached(peers: Peers) -> None:
    """Until there is a connection; a process that gets no time for a second is taken for a stopped one."""
    while True:
        with contextlib.suppress(Unreachable):
            await peers.order(1, Order("status"), SECONDS)
            return


@played
async def test_a_stopped_process_is_noticed(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    certify(tmp_path)
    digest = write_noise(tmp_path / "model", 8_000_000)
    with patch.context() as hurry, process(receive, tmp_path, tmp_path / "model") as site:
        hurry.setattr(links, "KEEPALIVE_SECONDS", 1)
        hurry.setattr(links, "KEEPALIVE_GRACE_SECONDS", 1)
        peers = Peers(Roster(pair(site.recv())), "from", credentials(tmp_path, "from"))
        await reached(peers)
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, signal.SIGSTOP)
        try:
            consignment = Consignment("benchmark", Offer(1, 1, digest, 1, None), 8_000_000)
            with (tmp_path / "model").open("rb") as file, pytest.raises(Unreachable):
                await peers._carry(1, consignment, file.fileno(), ignore, None)
        finally:
            os.kill(child.pid or 0, signal.SIGCONT)
        site.send("end")

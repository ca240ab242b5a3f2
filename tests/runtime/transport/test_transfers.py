"""Models that travel, over real connections: one arrives whole, or it is refused and changes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from benchmarks.transfer import certify, large
from tests.runtime.sites import (
    ASK,
    SECONDS,
    Proxy,
    Trial,
    assignment,
    frame,
    frames,
    header_of,
    ignore,
    played,
    said,
    write_model,
)
from tramfl.circulation.phases import Offer
from tramfl.notation import Decision
from tramfl.runtime.transport import Refusal, TransferRefused, calling, links
from tramfl.runtime.transport.links import encode
from tramfl.runtime.weights.arrival import Arrival
from tramfl.runtime.weights.store import Part
from tramfl.runtime.wire import (
    CHUNK_BYTES,
    AskModel,
    Consignment,
    Proceed,
    Refused,
)

# What arrives.


@played
async def test_a_model_arrives_whole_and_is_stored_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        progress: list[int] = []
        await trial.peers().send(1, trial.consignment(), trial.model, progress.append)
        assert trial.host.store is not None
        path = trial.host.store.path(trial.digest)
        assert path is not None
        assert path.read_bytes() == trial.model.read_bytes()
        ((sender, consignment, seconds),) = trial.host.arrivals
        assert sender == 0
        assert encode(consignment) == encode(trial.consignment())
        assert seconds > 0
        assert progress == [0, CHUNK_BYTES, 2 * CHUNK_BYTES, trial.model.stat().st_size]
        assert trial.parts() == []


@played
async def test_weights_that_are_there_already_do_not_travel_again(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        await peers.send(1, trial.consignment(), trial.model, ignore)
        progress: list[int] = []
        await peers.send(1, trial.consignment(ticket=2, round_=4), trial.model, progress.append)
        assert progress == [trial.model.stat().st_size]
        assert [(c.offer.ticket, s > 0) for _, c, s in trial.host.arrivals] == [(1, True), (2, False)]
        assert trial.host.store is not None
        assert [copy.round for copy in trial.host.store.copies()] == [4]


@played
async def test_weights_that_were_damaged_on_the_receivers_disk_travel_again(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers, store = trial.peers(), trial.host.store
        assert store is not None
        await peers.send(1, trial.consignment(), trial.model, ignore)
        path = store.path(trial.digest)
        assert path is not None
        with path.open("r+b") as file:
            file.seek(2_000_000)
            file.write(b"rotten")
        await peers.send(1, trial.consignment(ticket=2), trial.model, ignore)
        path = store.path(trial.digest)
        assert path is not None
        assert path.read_bytes() == trial.model.read_bytes()
        assert len(list(store.folder.glob("*.damaged"))) == 1


# What is wrong with a transfer.


@played
async def test_nothing_is_received_before_a_run_has_begun(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        trial.host.store = None
        with pytest.raises(TransferRefused, match="no run has begun"):
            await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        assert trial.host.arrivals == []


@played
async def test_what_the_host_does_not_want_is_refused_before_a_byte_is_sent(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        trial.host.objection = "this run is over"
        progress: list[int] = []
        with pytest.raises(TransferRefused, match="this run is over"):
            await trial.peers().send(1, trial.consignment(), trial.model, progress.append)
        assert progress == []
        assert trial.unchanged()
        assert trial.log.refusals()[0]["reason"] == "this run is over"


def with_score(decision: Decision, score: float) -> Decision:
    return replace(decision, candidates=(replace(decision.candidates[0], score=score),))


def forged(consignment: Consignment) -> list[tuple[Consignment, str]]:
    offer = consignment.offer
    given = assignment(0)

    def with_offer(**changes: Any) -> Consignment:
        return replace(consignment, offer=replace(offer, **changes))

    def with_assignment(**changes: Any) -> Consignment:
        return with_offer(assignment=replace(given, **changes))

    return [
        (with_offer(digest="../../etc/passwd"), "64 small hexadecimal"),
        (with_offer(digest=offer.digest.upper()), "64 small hexadecimal"),
        (with_offer(epoch=-1), "whole numbers from 0"),
        (with_offer(round=1 << 60), "whole numbers from 0"),
        (with_offer(ticket=-5), "whole numbers from 0"),
        (replace(consignment, size=0), "no size"),
        (replace(consignment, size=-1), "no size"),
        (replace(consignment, size=1 << 40), "not the size of this run's model"),
        (replace(consignment, size=100), "not the size of this run's model"),
        (with_assignment(holder=1), "brought an assignment"),
        (with_assignment(holder=77), "brought an assignment"),
        (with_assignment(decision=replace(given.decision, node=3)), "beyond the 3"),
        (with_assignment(decision=replace(given.decision, node=-1)), "beyond the 3"),
        (with_assignment(decision=replace(given.decision, samples=(1, -1))), "no counts"),
        (with_assignment(loads=replace(given.loads, flops=(1.0,))), "beyond the 1"),
        (with_assignment(lost_seconds=float("nan")), "times that are out of range"),
        (with_assignment(lost_seconds=-1.0), "times that are out of range"),
        (with_assignment(lost_seconds=1e12), "times that are out of range"),
        (with_assignment(decision=replace(given.decision, compute_seconds=float("nan"))), "times that are out"),
        (with_assignment(decision=replace(given.decision, idle_seconds=float("inf"))), "times that are out"),
        (with_assignment(decision=replace(given.decision, reason="x" * 5000)), "too long"),
        (with_assignment(decision=replace(given.decision, candidates=given.decision.candidates * 9)), "too long"),
        (with_assignment(decision=with_score(given.decision, float("nan"))), "figures that are out of range"),
        (with_assignment(decision=with_score(given.decision, float("inf"))), "figures that are out of range"),
        (with_assignment(loads=replace(given.loads, flops=(-1.0, 1.0, 1.0))), "loads that are out of range"),
    ]


@played
async def test_a_forged_consignment_is_refused(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        cases = forged(trial.consignment())
        for consignment, why in cases:
            with pytest.raises(TransferRefused, match=why):
                await peers.send(1, consignment, trial.model, ignore)
        assert trial.unchanged()
        assert trial.parts() == []
        assert len(trial.log.refusals()) == len(cases)


@played
async def test_what_is_no_consignment_is_refused(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        right = encode(trial.consignment())
        for first in (b"", b"\xc1", b"{}", right[:-1], right + b"x", encode(ASK), bytes(links.SMALL_BYTES + 1)):
            (reply,) = await said(peers, [first, *frames(b"x" * 100)])
            assert isinstance(reply, Refused), first[:20]
        with pytest.raises(grpc.aio.AioRpcError, match="begins with a consignment"):
            await said(peers, [])
        assert len(trial.log.refusals()) == 8
        assert trial.unchanged()
        assert trial.parts() == []


@played
async def test_a_message_beyond_grpcs_own_limit_changes_nothing(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        assert trial.authority is not None
        own = trial.authority.issue("ash")
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{trial.port}",
            grpc.ssl_channel_credentials(own.now.authorities, own.now.key, own.now.certificate),
            (("grpc.ssl_target_name_override", "birch"), ("grpc.max_send_message_length", -1)),
        )
        peers._channels[peers._roster.entries[1]] = channel
        for name in ("Load", "Order"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(links.method(name))(bytes(5 << 20))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError):
            await said(peers, [encode(trial.consignment()), bytes(5 << 20)])
        assert trial.unchanged()
        assert trial.host.asked == []
        assert (await peers.load(1, ASK, SECONDS)).held == (5, 5)


def reordered(content: bytes) -> list[bytes]:
    first, second, *rest = frames(content)
    return [second, first, *rest]


def duplicated(content: bytes) -> list[bytes]:
    first, *rest = frames(content)
    return [first, first, *rest]


def left_out(content: bytes) -> list[bytes]:
    first, _, *rest = frames(content)
    return [first, *rest]


def overlapping(content: bytes) -> list[bytes]:
    return [frame(0, content[:1000]), frame(999, content[999:2000])]


def too_long(content: bytes) -> list[bytes]:
    return [*frames(content), frame(len(content), b"x")]


def longer_than_announced(content: bytes) -> list[bytes]:
    *most, last = frames(content)
    return [*most, last + b"x"]


def empty_chunk(content: bytes) -> list[bytes]:
    return [frame(0, b""), *frames(content)]


def large_chunk(content: bytes) -> list[bytes]:
    return [frame(0, content[: CHUNK_BYTES + 1])]


def no_frame(content: bytes) -> list[bytes]:
    return [b"", b"1234567"]


def other_bytes(content: bytes) -> list[bytes]:
    return frames(content[:-1] + bytes([content[-1] ^ 1]))


def a_second_consignment(content: bytes) -> list[bytes]:
    offer = Offer(2, 3, "0" * 64, 9, None)
    return [frames(content)[0], encode(Consignment("trial", offer, len(content))), *frames(content)[1:]]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (reordered, "came where those from 0 on were due"),
        (duplicated, "came where those from 1048576 on were due"),
        (left_out, "came where those from 1048576 on were due"),
        (overlapping, "came where those from 1000 on were due"),
        (too_long, "more than the announced"),
        (longer_than_announced, "more than the announced"),
        (empty_chunk, "1 to 1048576 bytes"),
        (large_chunk, "1 to 1048576 bytes"),
        (no_frame, "1 to 1048576 bytes"),
        (other_bytes, "the bytes are those of"),
        (a_second_consignment, "came where those from 1048576 on were due"),
    ],
)
@played
async def test_wrong_chunks_are_refused_and_nothing_is_left_of_them(
    tmp_path: Path, wrong: Callable[[bytes], list[bytes]], why: str
) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        content = trial.model.read_bytes()
        proceed, refused = await said(peers, [encode(trial.consignment()), *wrong(content)])
        assert proceed == Proceed(0)
        assert isinstance(refused, Refused)
        assert why in refused.reason
        assert trial.unchanged()
        assert trial.parts() == []
        assert why in trial.log.refusals()[0]["reason"]
        await peers.send(1, trial.consignment(ticket=2), trial.model, ignore)
        assert len(trial.host.arrivals) == 1


@played
async def test_what_is_wrong_with_a_chunk_is_said_where_the_disk_lags_behind_too(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    async with Trial(tmp_path, data=os.urandom(6 << 20)) as trial:
        take = Arrival.take

        def slowly(self: Arrival, chunk: bytes) -> None:
            time.sleep(0.3)  # meanwhile as many chunks come as may wait
            take(self, chunk)

        with patch.context() as slow:
            slow.setattr(Arrival, "take", slowly)
            content = trial.model.read_bytes()
            _, refused = await said(trial.peers(), [encode(trial.consignment()), *empty_chunk(content)])
        assert isinstance(refused, Refused)
        assert "1 to 1048576 bytes" in refused.reason
        assert trial.parts() == []


@played
async def test_a_truncated_transfer_is_refused_and_may_be_resumed(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        content = trial.model.read_bytes()
        replies = await said(peers, [encode(trial.consignment()), *frames(content)[:2]])
        assert replies == [Proceed(0), Refused(f"{2 * CHUNK_BYTES} of {len(content)} bytes came")]
        assert trial.unchanged()
        progress: list[int] = []
        await peers.send(1, trial.consignment(), trial.model, progress.append)
        assert progress == [2 * CHUNK_BYTES, len(content)]


@played
async def test_bytes_that_one_site_left_do_not_spoil_the_transfer_of_another(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        content = trial.model.read_bytes()
        spoilt = content[: CHUNK_BYTES // 2] + bytes(CHUNK_BYTES)
        await said(trial.peers("cedar"), [encode(trial.consignment(holder=2)), *frames(spoilt[:CHUNK_BYTES])])
        assert trial.parts() == [f"{trial.digest}-cedar.part"]
        await trial.peers("ash").send(1, trial.consignment(), trial.model, ignore)
        # And a site that left wrong bytes itself starts over by itself.
        assert trial.host.store is not None
        trial.host.store.discard([trial.digest])
        progress: list[int] = []
        await trial.peers("cedar").send(1, trial.consignment(holder=2), trial.model, progress.append)
        assert (progress[0], progress.count(0), progress[-1]) == (CHUNK_BYTES, 1, len(content))
        assert trial.host.store.path(trial.digest) is not None
        assert trial.parts() == []


@played
async def test_weights_of_another_model_are_refused_as_soon_as_their_header_is_in(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        for header in (
            header_of(len(trial.data), name="other"),
            header_of(len(trial.data)).replace(b"U8", b"I8"),
            b"\x80\x04pickle" + bytes(60),
        ):
            digest = write_model(trial.model, trial.data, header)
            first, *_ = frames(trial.model.read_bytes(), 4096)
            consignment = replace(trial.consignment(), offer=replace(trial.consignment().offer, digest=digest))
            # The stream stays open: the answer does not wait for the rest.
            proceed, refused = await said(peers, [encode(consignment), first], end=False)
            assert proceed == Proceed(0)
            assert isinstance(refused, Refused)
            assert "these are not weights of this run" in refused.reason
            with pytest.raises(TransferRefused, match="not weights of this run"):
                await peers.send(1, consignment, trial.model, ignore)
        assert trial.unchanged()
        assert trial.parts() == []


@played
async def test_metadata_may_differ_from_file_to_file(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        digest = write_model(trial.model, trial.data, header_of(len(trial.data), round="7"))
        await trial.peers().send(
            1, replace(trial.consignment(), offer=Offer(2, 7, digest, 1, None)), trial.model, ignore
        )
        assert len(trial.host.arrivals) == 1


@played
async def test_a_site_sends_no_more_than_two_models_at_once(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        trial.host.hold = asyncio.Event()
        peers = trial.peers()
        sends = []
        for ticket in range(3):
            path = tmp_path / f"{ticket}.safetensors"
            digest = write_model(path, os.urandom(len(trial.data)))
            consignment = Consignment("trial", Offer(2, 3, digest, ticket, None), path.stat().st_size)
            sends.append(asyncio.create_task(peers.send(1, consignment, path, ignore)))
            while len(trial.host.arrivals) < min(ticket + 1, 2):
                await asyncio.sleep(0.01)
        with pytest.raises(TransferRefused, match="sending 2 models already"):
            await sends[2]
        trial.host.hold.set()
        await asyncio.gather(*sends[:2])
        assert trial.host.store is not None
        assert len(trial.host.store.copies()) == 2


# Disks.


@played
async def test_a_full_disk_is_a_clear_refusal_and_leaves_no_debris(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    async with Trial(tmp_path) as trial:
        real = os.write

        def fills_up(file: int, data: memoryview) -> int:
            name = os.readlink(f"/proc/self/fd/{file}")
            if name.endswith(".part") and os.lseek(file, 0, os.SEEK_CUR) >= CHUNK_BYTES:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, data)

        with patch.context() as full:
            full.setattr(os, "write", fills_up)
            with pytest.raises(TransferRefused, match="cannot be stored: the disk is full"):
                await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        assert trial.unchanged()
        assert trial.parts() == []
        assert "the disk is full" in trial.log.refusals()[0]["reason"]
        with patch.context() as crowded:
            crowded.setattr(os, "statvfs", lambda path: os.statvfs_result((1, 1, 1, 1, 1, 1, 1, 1, 1, 1)))
            progress: list[int] = []
            with pytest.raises(TransferRefused, match="are free"):
                await trial.peers().send(1, trial.consignment(), trial.model, progress.append)
            assert progress == []
        await trial.peers().send(1, trial.consignment(), trial.model, ignore)


@played
async def test_a_file_that_the_system_does_not_have_in_memory_is_read_all_the_same(tmp_path: Path) -> None:
    read = os.preadv
    asked: list[int] = []

    def not_in_memory(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        asked.append(flags)
        if flags:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return read(file, buffers, offset)

    patch = pytest.MonkeyPatch()
    async with Trial(tmp_path, data=os.urandom(3 << 20)) as trial:
        with patch.context() as forgetful:
            forgetful.setattr(os, "preadv", not_in_memory)
            await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        assert len(trial.host.arrivals) == 1
        assert asked == [os.RWF_NOWAIT, 0] * 4  # a header, and three whole chunks


@played
async def test_a_slow_disk_holds_the_sender_back(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    async with Trial(tmp_path, data=os.urandom(40 << 20)) as trial:
        written = 0
        append = Part.append

        def slowly(self: Part, data: memoryview) -> None:
            nonlocal written
            time.sleep(0.02)
            append(self, data)
            written = self.offset

        lead: list[int] = []
        with patch.context() as slow:
            slow.setattr(Part, "append", slowly)
            await trial.peers().send(1, trial.consignment(), trial.model, lambda sent: lead.append(sent - written))
        assert max(lead) < 24 << 20
        assert len(trial.host.arrivals) == 1


# Fetching.


@played
async def test_fetched_weights_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(30_000_000)) as trial, Proxy(trial.port) as proxy:
        await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        operator = trial.peers("operator", port=proxy.port)
        got = tmp_path / "got.safetensors"
        progress: list[int] = []

        def cut_half_way(done: int) -> None:
            assert not got.exists()
            if proxy.connections == 1 and done > 10_000_000:
                proxy.cut()
            progress.append(done)

        await operator.fetch(1, trial.digest, got, cut_half_way)
        assert got.read_bytes() == trial.model.read_bytes()
        assert proxy.connections == 2
        assert progress == sorted(progress)
        assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


@played
async def test_weights_that_are_not_there_or_not_what_they_should_be_are_not_fetched(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        with pytest.raises(Refusal, match="are no weights"):
            await peers.fetch(1, "../../etc/passwd", tmp_path / "got", ignore)
        with pytest.raises(Refusal, match="are not here"):
            await peers.fetch(1, "0" * 64, tmp_path / "got", ignore)
        call = peers._channel(1).unary_stream(links.method("Model"))
        with pytest.raises(grpc.aio.AioRpcError, match="are not here"):
            await call(encode(AskModel("../../etc/passwd"))).read()
        trial.host.model_path = lambda digest: trial.model  # type: ignore[method-assign]
        with patch.context() as hurry:
            hurry.setattr(calling, "PAUSES", (0.01, 0.01))
            with pytest.raises(Refusal, match="sent other bytes"):
                await peers.fetch(1, "0" * 64, tmp_path / "got", ignore)
        assert not (tmp_path / "got").exists()
        assert len(trial.log.refusals()) == 2


# Memory.


def test_a_large_model_moves_in_little_memory(tmp_path: Path) -> None:
    certify(tmp_path)
    sending, receiving = large(tmp_path, 200_000_000)
    assert sending < 150_000_000
    assert receiving < 150_000_000

"""Real servers on loopback with real certificates; whatever is refused is logged and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from benchmarks.transfer import certify, credentials, large, process, receive
from benchmarks.transfer import federation as pair
from benchmarks.transfer import write_model as write_noise
from tests.runtime.sites import (
    DAY,
    Authority,
    Trial,
    assignment,
    federation,
    frame,
    free_port,
    header_of,
    write_model,
)
from tramfl.circulation.phases import Offer
from tramfl.notation import BadInput
from tramfl.runtime import calling, links, serving
from tramfl.runtime.links import encode
from tramfl.runtime.store import Part, Store
from tramfl.runtime.transport import Credentials, Peers, Refusal, Server, TransferRefused, Unreachable
from tramfl.runtime.wire import (
    CHUNK_BYTES,
    AskLoad,
    AskModel,
    AskRows,
    Consignment,
    Load,
    Order,
    Proceed,
    Refused,
    Reply,
)

ASK = AskLoad("trial", 1)


def played(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test; it has a minute."""

    @wraps(scenario)
    def test(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(scenario(*arguments, **named), 60))

    return test


def ignore(sent: int) -> None:
    pass


async def said(peers: Peers, messages: list[bytes], end: bool = True) -> list[Reply]:
    """What birch answers to raw messages of a transfer; they are written whether or not it wants them."""
    call = peers._channel(1).stream_stream(links.method("Carry"))(metadata=peers._metadata)
    replies: list[Reply] = []
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        if end:
            await call.done_writing()
    try:
        while (content := await call.read()) is not grpc.aio.EOF:
            replies.append(links.decode(content, Reply))  # type: ignore[arg-type]
    finally:
        call.cancel()
    return replies


def frames(content: bytes, size: int = CHUNK_BYTES) -> list[bytes]:
    return [frame(at, content[at : at + size]) for at in range(0, len(content), size)]


class Proxy:
    """Stands between ash and birch, counts what ash sends, and cuts the wire after so many bytes."""

    def __init__(self, to: int) -> None:
        self._to = to
        self.port = free_port()
        self.cut_after: list[int] = []
        self.passed = 0
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        limit = self.cut_after.pop(0) if self.cut_after else None
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, back]
        await asyncio.gather(self._pass(reader, back, limit), self._pass(there, writer, None, counted=False))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None, counted: bool = True
    ) -> None:
        total = 0
        with contextlib.suppress(OSError):
            while block := await reader.read(1 << 16):
                total += len(block)
                self.passed += len(block) if counted else 0
                if limit is not None and total > limit:
                    self.cut()
                    return
                writer.write(block)
                await writer.drain()
        writer.close()


# What sites may ask of each other.


@played
async def test_a_site_is_who_its_certificate_says(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        trial.host.lines = (b"one", b"two" * 400_000, b"three" * 100_000)
        peers = trial.peers("cedar")
        assert (await peers.load(1, ASK, 5)).held == (5, 5)
        assert (await peers.order(1, Order("status"), 5)).done
        assert (await peers.rows(1, AskRows("trial", 1, 3), 5)).lines == trial.host.lines
        assert trial.host.asked == [(2, ASK), ("cedar", Order("status")), ("cedar", AskRows("trial", 1, 3))]
        assert await peers.probe(1, 5) > 1e6
        assert trial.log.lines == []


@played
async def test_a_model_arrives_whole_and_is_stored_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        told: list[int] = []
        await trial.peers().send(1, trial.consignment(), trial.model, told.append)
        assert trial.host.store is not None
        path = trial.host.store.path(trial.digest)
        assert path is not None
        assert path.read_bytes() == trial.model.read_bytes()
        ((sender, consignment, seconds),) = trial.host.arrivals
        assert sender == 0
        assert encode(consignment) == encode(trial.consignment())
        assert seconds > 0
        assert told == [0, CHUNK_BYTES, 2 * CHUNK_BYTES, trial.model.stat().st_size]
        assert trial.parts() == []


@played
async def test_weights_that_are_there_already_do_not_travel_again(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        await peers.send(1, trial.consignment(), trial.model, ignore)
        told: list[int] = []
        await peers.send(1, trial.consignment(ticket=2, round_=4), trial.model, told.append)
        assert told == [trial.model.stat().st_size]
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


# Who is not let in.


@played
async def test_a_site_that_is_not_listed_is_refused_whatever_it_calls(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers("elm")
        with pytest.raises(Refusal, match="'elm' is no site of this federation"):
            await peers.load(1, ASK, 5)
        with pytest.raises(TransferRefused, match="no site"):
            await peers.send(1, trial.consignment(), trial.model, ignore)
        with pytest.raises(Refusal, match="no site"):
            await peers.order(1, Order("stop"), 5)
        with pytest.raises(Refusal, match="no site"):
            await peers.rows(1, AskRows("trial", 1, 1), 5)
        with pytest.raises(Refusal, match="no site"):
            await peers.fetch(1, trial.digest, tmp_path / "got", ignore)
        assert trial.unchanged()
        assert trial.host.asked == []
        assert len(trial.log.refusals()) == 5
        assert all("'elm'" in line["why"] and line["address"] for line in trial.log.refusals())


@played
async def test_a_site_that_speaks_for_another_is_refused(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        with pytest.raises(TransferRefused, match="site number 2 brought an assignment of site number 0"):
            await trial.peers("cedar").send(1, trial.consignment(holder=0), trial.model, ignore)
        assert trial.unchanged()
        (line,) = trial.log.refusals()
        assert line["who"] == "cedar"


@played
async def test_a_name_in_the_metadata_counts_for_nothing_where_there_are_certificates(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        call = trial.peers("cedar")._channel(1).unary_unary(links.method("Load"))
        await call(encode(ASK), metadata=((links.SITE_KEY, "ash"),))
        assert trial.host.asked == [(2, ASK)]


@played
async def test_the_operator_may_act_on_a_run_but_is_no_site(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        operator = trial.peers("operator")
        assert (await operator.order(1, Order("pause"), 5)).done
        await operator.rows(1, AskRows("trial", 1, 1), 5)
        await operator.fetch(1, trial.digest, tmp_path / "got", ignore)
        assert trial.log.lines == []
        with pytest.raises(Refusal, match="may not call Load"):
            await operator.load(1, ASK, 5)
        with pytest.raises(Refusal, match="may not call Probe"):
            await operator.probe(1, 5)
        with pytest.raises(TransferRefused, match="may not call Carry"):
            await operator.send(1, trial.consignment(ticket=2), trial.model, ignore)
        assert len(trial.host.arrivals) == 1
        assert [line["who"] for line in trial.log.refusals()] == ["operator"] * 3


@played
async def test_a_site_at_the_address_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    assert trial.authority is not None
    impostor = Server(
        f"127.0.0.1:{trial.port}", trial.authority.issue("cedar"), trial.federation, trial.host, trial.log
    )
    await impostor.start()
    with pytest.raises(Unreachable, match="birch"):
        await trial.peers().load(1, ASK, 5)
    assert trial.host.asked == []
    await impostor.stop(0)


@played
async def test_a_method_that_does_not_exist_is_refused_and_logged(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        for name in ("/tramfl.Site/Nothing", "/other.Service/Load", "/tramfl.Site/"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await trial.peers()._channel(1).unary_unary(name)(b"")
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert len(trial.log.refusals()) == 3
        assert trial.host.asked == []


@played
async def test_an_error_of_this_site_tells_the_peer_nothing_and_the_log_all(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:

        async def broken(peer: int, ask: AskLoad) -> Any:
            raise ZeroDivisionError("a secret")

        trial.host.load = broken  # type: ignore[method-assign]
        with pytest.raises(Unreachable, match="its log says why"):
            await trial.peers().load(1, ASK, 5)
        assert [(line["event"], line["why"]) for line in trial.log.lines] == [
            ("failed", "ZeroDivisionError: a secret")
        ]


@played
async def test_a_load_that_makes_no_sense_is_not_believed(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        for flops, bandwidth, held in ((float("nan"), 1.0, (1,)), (1.0, float("inf"), (1,)), (1.0, 1.0, (-1,))):

            async def lying(peer: int, ask: AskLoad, load: Any = (flops, bandwidth, held)) -> Any:
                return Load(*load)

            trial.host.load = lying  # type: ignore[method-assign]
            with pytest.raises(Refusal, match="makes no sense"):
                await trial.peers().load(1, ASK, 5)


WATCHED = """
import asyncio, json, sys
from pathlib import Path
from tests.runtime.sites import Trial
from tramfl.runtime.handshakes import watch
from tramfl.runtime.links import Credentials
import msgspec

def log(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)

async def main():
    trial = Trial(Path(sys.argv[1]))
    trial.log = log
    given = msgspec.json.decode(sys.stdin.readline(), type=tuple[str, str, str])
    trial.issue = lambda name: Credentials(*(text.encode() for text in given))
    server = trial.new_server()
    await server.start()
    log("ready", port=trial.port)
    await asyncio.to_thread(sys.stdin.readline)
    assert trial.unchanged()
    await server.stop(0)
    print("stopped", file=sys.stderr)

end = watch(log)
asyncio.run(main())
end()
"""


class Watched:
    """A site in a process of its own, which logs handshakes."""

    def __init__(self, folder: Path, own: Credentials) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WATCHED, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        )
        texts = [pem.decode() for pem in (own.authorities, own.certificate, own.key)]
        self._write(json.dumps(texts))
        self.port = int(self.line()["port"])
        self.peers = federation(ports={"birch": self.port})

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        _, errors = self.process.communicate("\n", timeout=20)
        assert self.process.returncode == 0, errors
        assert errors == "stopped\n"


@played
async def test_handshakes_that_fail_are_refused_and_logged_with_the_reason(tmp_path: Path) -> None:
    authority = Authority()
    strangers = [Authority(name).issue("ash", trusting=authority) for name in ("authority", "another")]
    site = Watched(tmp_path, authority.issue("birch"))
    try:
        for own, why in (
            (strangers[0], "the certificate is not of this federation's authority"),
            (strangers[1], "the certificate is not of this federation's authority"),
            (authority.issue("ash", lasts=-DAY), "the certificate has expired"),
            (None, "this was not TLS"),
        ):
            peers = Peers(site.peers, "ash", own)
            with pytest.raises(Unreachable, match="birch does not answer"):
                await peers.load(1, ASK, 5)
            await peers.close()
            line = await asyncio.to_thread(site.line)
            assert line == {"event": "refused", "who": "?", "what": "connection", "why": why}
        nobody = grpc.aio.secure_channel(
            f"127.0.0.1:{site.port}",
            grpc.ssl_channel_credentials(authority.pem),
            (("grpc.ssl_target_name_override", "birch"),),
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await nobody.unary_unary(links.method("Load"))(encode(ASK), timeout=5)
        await nobody.close()
        assert (await asyncio.to_thread(site.line))["why"] == "no certificate was shown"
        with socket.create_connection(("127.0.0.1", site.port)) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert (await asyncio.to_thread(site.line))["why"] == "this was not TLS"
        assert (await Peers(site.peers, "ash", authority.issue("ash")).load(1, ASK, 5)).held == (5, 5)
        await asyncio.to_thread(site.end)
    finally:
        site.process.kill()


@played
async def test_a_certificate_that_expired_at_the_server_is_not_accepted_by_a_caller(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    assert trial.authority is not None
    expired = trial.authority.issue("birch", lasts=-DAY)
    server = Server(f"127.0.0.1:{trial.port}", expired, trial.federation, trial.host, trial.log)
    await server.start()
    with pytest.raises(Unreachable):
        await trial.peers().load(1, ASK, 5)
    await server.stop(0)


@played
async def test_renewed_certificates_count_without_a_restart(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    assert trial.authority is not None

    def write(name: str, issued: Credentials) -> Credentials:
        files = [tmp_path / f"{name}.{kind}" for kind in ("ca", "crt", "key")]
        for path, content in zip(files, (issued.authorities, issued.certificate, issued.key), strict=True):
            path.write_bytes(content)
        return Credentials.from_files(*files)

    mine = write("birch", trial.authority.issue("birch", lasts=-DAY))
    theirs = write("ash", trial.authority.issue("ash", lasts=-DAY))
    server = Server(f"127.0.0.1:{trial.port}", mine, trial.federation, trial.host, trial.log)
    await server.start()
    peers = Peers(trial.federation, "ash", theirs)
    with pytest.raises(Unreachable):
        await peers.load(1, ASK, 5)
    write("birch", trial.authority.issue("birch"))
    write("ash", trial.authority.issue("ash"))
    for _ in range(40):
        with contextlib.suppress(Unreachable):
            await peers.load(1, ASK, 5)
            break
        await asyncio.sleep(0.1)
    assert trial.host.asked == [(0, ASK)]
    await server.stop(0)


def test_credentials_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ca\.crt cannot be read: No such file or directory\."):
        Credentials.from_files(tmp_path / "ca.crt", tmp_path / "a.crt", tmp_path / "a.key")


@played
async def test_without_certificates_a_site_listens_on_loopback_only(tmp_path: Path) -> None:
    trial = Trial(tmp_path, secure=False)
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.7:7400", "example.org:7400"):
        with pytest.raises(BadInput, match="on loopback only"):
            await Server(address, None, trial.federation, trial.host, trial.log).start()
    async with trial:
        await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        with pytest.raises(Refusal, match="no site"):
            await trial.peers("elm").load(1, ASK, 5)
        assert len(trial.host.arrivals) == 1


@played
async def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        with pytest.raises(BadInput, match=rf"cannot listen on 127\.0\.0\.1:{trial.port}; is the port taken"):
            await trial.new_server().start()


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
        told: list[int] = []
        with pytest.raises(TransferRefused, match="this run is over"):
            await trial.peers().send(1, trial.consignment(), trial.model, told.append)
        assert told == []
        assert trial.unchanged()
        assert trial.log.refusals()[0]["why"] == "this run is over"


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
        (with_assignment(loads=replace(given.loads, flops=(1.0,))), "not those of 3 sites"),
        (with_assignment(lost_seconds=float("nan")), "no duration"),
        (with_assignment(lost_seconds=-1.0), "no duration"),
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
            grpc.ssl_channel_credentials(own.authorities, own.key, own.certificate),
            (("grpc.ssl_target_name_override", "birch"), ("grpc.max_send_message_length", -1)),
        )
        peers._channels[1] = channel
        for name in ("Load", "Probe", "Order"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(links.method(name))(bytes(5 << 20))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError):
            await said(peers, [encode(trial.consignment()), bytes(5 << 20)])
        assert trial.unchanged()
        assert trial.host.asked == []
        assert (await peers.load(1, ASK, 5)).held == (5, 5)


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
        assert why in trial.log.refusals()[0]["why"]
        await peers.send(1, trial.consignment(ticket=2), trial.model, ignore)
        assert len(trial.host.arrivals) == 1


@played
async def test_a_truncated_transfer_is_refused_and_may_be_resumed(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers()
        content = trial.model.read_bytes()
        replies = await said(peers, [encode(trial.consignment()), *frames(content)[:2]])
        assert replies == [Proceed(0), Refused(f"{2 * CHUNK_BYTES} of {len(content)} bytes came")]
        assert trial.unchanged()
        told: list[int] = []
        await peers.send(1, trial.consignment(), trial.model, told.append)
        assert told == [2 * CHUNK_BYTES, len(content)]


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
        told: list[int] = []
        await trial.peers("cedar").send(1, trial.consignment(holder=2), trial.model, told.append)
        assert (told[0], told.count(0), told[-1]) == (CHUNK_BYTES, 1, len(content))
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
        assert "the disk is full" in trial.log.refusals()[0]["why"]
        with patch.context() as crowded:
            crowded.setattr(os, "statvfs", lambda path: os.statvfs_result((1, 1, 1, 1, 1, 1, 1, 1, 1, 1)))
            told: list[int] = []
            with pytest.raises(TransferRefused, match="are free"):
                await trial.peers().send(1, trial.consignment(), trial.model, told.append)
            assert told == []
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


# Broken connections.


@played
async def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(30_000_000)) as trial, Proxy(trial.port) as proxy:
        proxy.cut_after = [12_000_000, 9_000_000]
        told: list[int] = []
        await trial.peers(port=proxy.port).send(1, trial.consignment(), trial.model, told.append)
        assert proxy.connections == 3
        assert proxy.passed < 1.5 * len(trial.data)
        assert told[-1] == trial.model.stat().st_size
        assert len(trial.host.arrivals) == 1
        assert trial.parts() == []


@played
async def test_a_connection_that_breaks_before_the_answer_is_heard_is_no_second_arrival(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial, Proxy(trial.port) as proxy:
        trial.host.hold = asyncio.Event()
        sending = asyncio.create_task(trial.peers(port=proxy.port).send(1, trial.consignment(), trial.model, ignore))
        while not trial.host.arrivals:
            await asyncio.sleep(0.01)
        proxy.cut()
        while proxy.connections < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        trial.host.hold.set()
        await sending
        assert len(trial.host.arrivals) == 1
        assert trial.host.store is not None
        assert trial.host.store.path(trial.digest) is not None


@played
async def test_a_receiver_that_restarts_half_way_goes_on_from_its_disk(tmp_path: Path) -> None:
    trial = Trial(tmp_path, data=os.urandom(30_000_000))
    await trial.server.start()
    told: list[int] = []
    sending = asyncio.create_task(trial.peers().send(1, trial.consignment(), trial.model, told.append))
    while not told or told[-1] < 15_000_000:
        await asyncio.sleep(0.001)
    await trial.server.stop(0)
    assert not sending.done()
    assert trial.unchanged()
    before = len(told)
    trial.host.store = Store(tmp_path / "birch")
    trial.server = trial.new_server()
    await trial.server.start()
    await sending
    assert told[before] > 5_000_000
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
        await trial.peers().load(1, ASK, 5)


@played
async def test_a_cancelled_send_ends_at_once_and_a_later_one_resumes(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(60_000_000)) as trial:
        told: list[int] = []
        peers = trial.peers()
        sending = asyncio.create_task(peers.send(1, trial.consignment(), trial.model, told.append))
        while not told or told[-1] < 10_000_000:
            await asyncio.sleep(0.001)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert told[-1] < len(trial.data)
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
        told: list[int] = []
        await peers.send(1, trial.consignment(ticket=2), trial.model, told.append)
        assert told[0] == CHUNK_BYTES
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
        hurry.setattr(serving, "STALL_SECONDS", 0.3)
        async with Trial(tmp_path) as trial:
            first, *_ = frames(trial.model.read_bytes())
            replies = await said(trial.peers(), [encode(trial.consignment()), first], end=False)
            assert replies[0] == Proceed(0)
            assert isinstance(replies[1], Refused)
            assert "no chunk came" in replies[1].reason
            assert trial.unchanged()


@played
async def test_a_stopped_process_is_noticed(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    certify(tmp_path)
    digest = write_noise(tmp_path / "model", 8_000_000)
    with patch.context() as hurry, process(receive, tmp_path, tmp_path / "model") as site:
        hurry.setattr(links, "KEEPALIVE_SECONDS", 1)
        hurry.setattr(links, "KEEPALIVE_GRACE_SECONDS", 1)
        peers = Peers(pair(site.recv()), "from", credentials(tmp_path, "from"))
        await peers.order(1, Order("status"), 5)
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, signal.SIGSTOP)
        try:
            consignment = Consignment("benchmark", Offer(1, 1, digest, 1, None), 8_000_000)
            with (tmp_path / "model").open("rb") as file, pytest.raises(Unreachable):
                await peers._carry(1, consignment, file.fileno(), ignore)
        finally:
            os.kill(child.pid or 0, signal.SIGCONT)
        site.send("end")


# Fetching.


@played
async def test_fetched_weights_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=os.urandom(30_000_000)) as trial, Proxy(trial.port) as proxy:
        await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        operator = trial.peers("operator", port=proxy.port)
        got = tmp_path / "got.safetensors"
        told: list[int] = []

        def cut_half_way(done: int) -> None:
            assert not got.exists()
            if proxy.connections == 1 and done > 10_000_000:
                proxy.cut()
            told.append(done)

        await operator.fetch(1, trial.digest, got, cut_half_way)
        assert got.read_bytes() == trial.model.read_bytes()
        assert proxy.connections == 2
        assert told == sorted(told)
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

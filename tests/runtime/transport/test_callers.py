"""Who may ask a site what: real servers on loopback with real certificates; every refusal is logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.runtime.sites import (
    ASK,
    DAY,
    SECONDS,
    Authority,
    Trial,
    federation,
    ignore,
    played,
)
from tests.system_parts import TIED
from tramfl.notation import BadInput
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import (
    Credentials,
    Distrusted,
    Peers,
    Refusal,
    Server,
    TransferRefused,
    Unreachable,
    links,
    serving,
)
from tramfl.runtime.transport.links import encode
from tramfl.runtime.wire import (
    AskLoad,
    AskRows,
    Load,
    Order,
)


@played
async def test_a_site_is_who_its_certificate_says(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        trial.host.lines = (b"one", b"two" * 400_000, b"three" * 100_000)
        peers = trial.peers("cedar")
        assert (await peers.load(1, ASK, SECONDS)).held == (5, 5)
        assert (await peers.order(1, Order("status"), SECONDS)).done
        assert (await peers.rows(1, AskRows("trial", 1, 3), SECONDS)).lines == trial.host.lines
        assert trial.host.asked == [(2, ASK), ("cedar", Order("status")), ("cedar", AskRows("trial", 1, 3))]
        bandwidth, latency = await peers.probe(1, 60)
        assert bandwidth > 0
        assert latency > 0
        assert trial.log.lines == []


@played
async def test_a_site_that_is_not_listed_is_refused_whatever_it_calls(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        peers = trial.peers("elm")
        with pytest.raises(Refusal, match="'elm' is no site of this federation"):
            await peers.load(1, ASK, SECONDS)
        with pytest.raises(TransferRefused, match="no site"):
            await peers.send(1, trial.consignment(), trial.model, ignore)
        with pytest.raises(Refusal, match="no site"):
            await peers.order(1, Order("stop"), SECONDS)
        with pytest.raises(Refusal, match="no site"):
            await peers.rows(1, AskRows("trial", 1, 1), SECONDS)
        with pytest.raises(Refusal, match="no site"):
            await peers.fetch(1, trial.digest, tmp_path / "got", ignore)
        assert trial.unchanged()
        assert trial.host.asked == []
        assert len(trial.log.refusals()) == 5
        assert all("'elm'" in line["reason"] and line["address"] for line in trial.log.refusals())


@played
async def test_a_site_that_speaks_for_another_is_refused(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        with pytest.raises(TransferRefused, match="site number 2 brought an assignment of site number 0"):
            await trial.peers("cedar").send(1, trial.consignment(holder=0), trial.model, ignore)
        assert trial.unchanged()
        (line,) = trial.log.refusals()
        assert line["peer"] == "cedar"


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
        assert (await operator.order(1, Order("pause"), SECONDS)).done
        await operator.rows(1, AskRows("trial", 1, 1), SECONDS)
        await operator.fetch(1, trial.digest, tmp_path / "got", ignore)
        assert trial.log.lines == []
        with pytest.raises(Refusal, match="may not call Load"):
            await operator.load(1, ASK, SECONDS)
        with pytest.raises(Refusal, match="may not call Probe"):
            await operator.probe(1, SECONDS)
        with pytest.raises(TransferRefused, match="may not call Carry"):
            await operator.send(1, trial.consignment(ticket=2), trial.model, ignore)
        assert len(trial.host.arrivals) == 1
        assert [line["peer"] for line in trial.log.refusals()] == ["operator"] * 3


@played
async def test_a_site_at_the_address_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    assert trial.authority is not None
    impostor = Server(
        f"127.0.0.1:{trial.port}", trial.authority.issue("cedar"), Roster(trial.federation), trial.host, trial.log
    )
    await impostor.start()
    with pytest.raises(Unreachable, match="birch"):
        await trial.peers().load(1, ASK, SECONDS)
    assert trial.host.asked == []
    await impostor.stop(0)


@played
async def test_a_method_that_does_not_exist_is_refused_and_logged(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        for name in (links.method("Nothing"), "/other.Service/Load", links.method("")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await trial.peers()._channel(1).unary_unary(name)(b"")
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert len(trial.log.refusals()) == 3
        assert trial.host.asked == []


@played
@pytest.mark.parametrize("service", ["tramfl.Site", "tramfl.v1.Site"])
async def test_a_site_of_another_protocol_is_answered_with_both_protocols_and_the_remedy(
    tmp_path: Path, service: str
) -> None:
    async with Trial(tmp_path) as trial:
        for name in ("Load", "Order", "Carry"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await trial.peers()._channel(1).unary_unary(f"/{service}/{name}")(b"")
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
            said = error.value.details() or ""
            assert said.startswith(f"the caller speaks {service}, and this site, with tramfl")
            assert said.endswith(f"{links.SERVICE}; {links.SAME_VERSION}")
        assert len(trial.log.refusals()) == 3
        assert trial.host.asked == []


@played
async def test_a_call_that_the_other_site_has_no_method_for_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Trial(tmp_path) as trial:
        # What sites answered before there were protocol numbers.
        monkeypatch.setattr(serving, "other_protocol", lambda path: None)
        monkeypatch.setattr(serving, "SERVICE", "tramfl.Site")
        with pytest.raises(Refusal, match=r"birch does not speak tramfl\.v3\.Site.*the same minor version of tramfl"):
            await trial.peers().order(1, Order("prepare", "run"), 5)


@played
async def test_an_error_of_this_site_is_in_the_log_and_not_in_the_answer(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:

        async def broken(peer: int, ask: AskLoad) -> Any:
            raise ZeroDivisionError("a secret")

        trial.host.load = broken  # type: ignore[method-assign]
        with pytest.raises(Unreachable, match="its log says why"):
            await trial.peers().load(1, ASK, SECONDS)
        assert [(line["event"], line["reason"]) for line in trial.log.lines] == [
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
                await trial.peers().load(1, ASK, SECONDS)


WATCHED = """
import asyncio, json, sys
from pathlib import Path
from tests.runtime.sites import Trial
from tramfl.runtime.transport.handshakes import watch
from tramfl.runtime.transport import Credentials
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
            [*TIED, sys.executable, "-c", WATCHED, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        )
        texts = [pem.decode() for pem in own.now]
        self._write(json.dumps(texts))
        self.port = int(self.line()["port"])
        self.peers = federation(ports={"birch": self.port})
        self._why: str | None = None

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    async def refused(self, why: str) -> dict[str, Any]:
        """The line that says so; a caller may have tried twice before it gave up, and then so did the line before."""
        while True:
            line = await asyncio.to_thread(self.line)
            before, self._why = self._why, line["reason"]
            if line["reason"] == why:
                return line
            assert line["reason"] == before, line

    def end(self) -> None:
        _, errors = self.process.communicate("\n", timeout=SECONDS)
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
            peers = Peers(Roster(site.peers), "ash", own)
            with pytest.raises(Unreachable, match="birch does not answer"):
                await peers.load(1, ASK, SECONDS)
            await peers.close()
            assert await site.refused(why) == {"event": "refused", "peer": "?", "what": "connection", "reason": why}
        nobody = grpc.aio.secure_channel(
            f"127.0.0.1:{site.port}",
            grpc.ssl_channel_credentials(authority.pem),
            (("grpc.ssl_target_name_override", "birch"),),
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await nobody.unary_unary(links.method("Load"))(encode(ASK), timeout=SECONDS)
        await nobody.close()
        await site.refused("no certificate was shown")
        with socket.create_connection(("127.0.0.1", site.port)) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            await site.refused("this was not TLS")
        assert (await Peers(Roster(site.peers), "ash", authority.issue("ash")).load(1, ASK, SECONDS)).held == (5, 5)
        await asyncio.to_thread(site.end)
    finally:
        site.process.kill()


def test_what_grpc_itself_reports_is_a_line_of_the_log_and_what_others_print_stays_as_it_is() -> None:
    code = (
        "import os, threading\n"
        "from tramfl.runtime.transport.handshakes import watch\n"
        "logged = threading.Event()\n"
        "def log(event, **fields):\n"
        "    print(event, fields)\n"
        "    logged.set()\n"
        "end = watch(log)\n"
        "os.write(2, b'what a library prints\\n')\n"
        "os.write(2, b'I1118 10:30:38.132027   21128 core.cc:1] nothing to worry about\\n')\n"
        "os.write(2, b'E1118 10:30:38.132027   21128 add_port.cc:83] Failed to add port to server: it is taken\\n')\n"
        "logged.wait()\n"
        "end()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "grpc {'reason': 'Failed to add port to server: it is taken'}\n"
    assert done.stderr == "what a library prints\n"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("expired", "its certificate has expired"),
        ("of another authority", r"its certificate is of another authority than those in the ca\.crt here"),
        ("another site's", "its certificate is another site's"),
    ],
)
@played
async def test_a_server_whose_certificate_will_not_do_is_not_believed_and_the_reason_is_named(
    tmp_path: Path, fault: str, reason: str
) -> None:
    trial = Trial(tmp_path)
    assert trial.authority is not None
    shown = {
        "expired": trial.authority.issue("birch", lasts=-DAY),
        "of another authority": Authority("another").issue("birch", trusting=trial.authority),
        "another site's": trial.authority.issue("cedar"),
    }[fault]
    server = Server(f"127.0.0.1:{trial.port}", shown, Roster(trial.federation), trial.host, trial.log)
    await server.start()
    with pytest.raises(Distrusted, match=f"^birch is not believed: {reason}$"):
        await trial.peers().load(1, ASK, SECONDS)
    await server.stop(0)


@played
async def test_a_site_that_is_not_there_is_named_without_the_words_of_grpc(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    with pytest.raises(Unreachable, match=r"^birch does not answer: Connection refused( \(111\))?$"):
        await trial.peers().load(1, ASK, SECONDS)


@played
async def test_renewed_certificates_count_without_a_restart(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    assert trial.authority is not None

    def write(name: str, issued: Credentials) -> Credentials:
        files = [tmp_path / f"{name}.{kind}" for kind in ("ca", "crt", "key")]
        for path, content in zip(files, issued.now, strict=True):
            path.write_bytes(content)
        return Credentials.from_files(*files)

    mine = write("birch", trial.authority.issue("birch", lasts=-DAY))
    theirs = write("ash", trial.authority.issue("ash", lasts=-DAY))
    server = Server(f"127.0.0.1:{trial.port}", mine, Roster(trial.federation), trial.host, trial.log)
    await server.start()
    peers = Peers(Roster(trial.federation), "ash", theirs)
    with pytest.raises(Unreachable):
        await peers.load(1, ASK, SECONDS)
    write("birch", trial.authority.issue("birch"))
    write("ash", trial.authority.issue("ash"))
    while not trial.host.asked:
        with contextlib.suppress(Unreachable):
            await peers.load(1, ASK, SECONDS)
        await asyncio.sleep(0.05)
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
            await Server(address, None, Roster(trial.federation), trial.host, trial.log).start()
    async with trial:
        await trial.peers().send(1, trial.consignment(), trial.model, ignore)
        with pytest.raises(Refusal, match="no site"):
            await trial.peers("elm").load(1, ASK, SECONDS)
        assert len(trial.host.arrivals) == 1


@played
async def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    async with Trial(tmp_path) as trial:
        with pytest.raises(BadInput, match=rf"cannot listen on 127\.0\.0\.1:{trial.port}; is the port taken"):
            await trial.new_server().start()


@played
@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({"name": "ash", "also": ("cedar",)}, "several sites: ash, cedar"),
        ({"name": "ash", "common": ("ash", "cedar")}, "several common names"),
        ({"name": "", "common": ("ash", "cedar"), "also": ("host.example.org",)}, "several common names"),
        ({"name": "ash", "common": ("ash\0.example.org",)}, "NUL"),
        ({"name": "elm", "common": ("ash",)}, "'elm' is no site of this federation"),
    ],
)
async def test_a_certificate_that_could_be_read_as_two_names_is_refused(
    tmp_path: Path, shown: dict[str, Any], why: str
) -> None:
    async with Trial(tmp_path, data=b"small") as trial:
        assert trial.authority is not None
        peers = Peers(Roster(trial.federation), "ash", trial.authority.issue(**shown))
        with pytest.raises((Refusal, Unreachable)) as caught:
            await peers.load(1, ASK, SECONDS)
        # BoringSSL itself may end the handshake of a certificate with such a name.
        assert why in str(caught.value) or isinstance(caught.value, Unreachable)
        assert trial.host.asked == []


@played
async def test_a_common_name_counts_only_in_a_certificate_without_other_names(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=b"small") as trial:
        assert trial.authority is not None
        own = trial.authority.issue("ash", common=("birch",))
        await Peers(Roster(trial.federation), "ash", own).load(1, ASK, SECONDS)
        assert trial.host.asked == [(0, ASK)]


@played
async def test_what_a_peer_answers_cannot_steer_a_terminal(tmp_path: Path) -> None:
    async with Trial(tmp_path, data=b"small") as trial:
        trial.host.says = "\x1b]0;owned\x07\x1b[2Jdone\u009b1m\u202egnp"
        answer = await trial.peers().order(1, Order("status"), SECONDS)
        assert answer.message == " ]0;owned [2Jdone 1m gnp"
        trial.host.objection = "no\x1b[2J"
        with pytest.raises(TransferRefused, match=r"no \[2J"):
            await trial.peers().send(1, trial.consignment(), trial.model, ignore)

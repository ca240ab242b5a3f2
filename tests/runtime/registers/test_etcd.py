"""What the register in an etcd cluster promises beside the contract."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.runtime.etcd import EtcdCluster, write_certificates
from tests.runtime.registers.stories import LONG, PATIENCE, SHORT, answered, begun, next_round, refused, story, until
from tramfl.circulation.custody import Record
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import ABSENT, Silent, Standing
from tramfl.runtime.registers.etcd import EtcdRegister
from tramfl.runtime.registers.etcd_gateway import text


class Doubtful:
    """A way to a member that loses answers: it hands requests on, or does not, and hangs up or hangs."""

    def __init__(self, port: int, hands_on: bool, hangs_up: bool) -> None:
        self._port = port
        self._hands_on = hands_on
        self._hangs_up = hangs_up
        self.requests = 0
        self.handed_on = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line)
            body = await reader.readexactly(length)
            self.requests += 1
            if self._hands_on:
                member, out = await asyncio.open_connection("127.0.0.1", self._port)
                out.write(head + body)
                await member.readuntil(b"\r\n\r\n")
                out.close()
                self.handed_on.set()
            if not self._hangs_up:
                await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def at(
    cluster: EtcdCluster, federation: str, node: int = 0, *, lease_seconds: float = LONG, **changes: Any
) -> AsyncIterator[EtcdRegister]:
    """A register of this cluster, closed at the end."""
    settings = cluster.settings(**{"timeout_seconds": 10, **changes})
    register = EtcdRegister(settings, federation, str(node), lease_seconds)
    try:
        yield register
    finally:
        await register.close()


async def _is(value: bool) -> bool:
    return value


def heard_by(register: EtcdRegister) -> list[Any]:
    """Every message that the register's watches bring from now on."""
    listen, heard = register._gateway.listen, list[Any]()

    async def listening(path: str, body: Any) -> AsyncGenerator[Any, None]:
        async with contextlib.aclosing(listen(path, body)) as messages:
            async for message in messages:
                heard.append(message)
                yield message

    register._gateway.listen = listening  # type: ignore[method-assign]
    return heard


def connected(endpoint: str) -> bool:
    """Whether this process has a connection to a member; the kernel makes it for one that is frozen, too."""
    port = int(endpoint.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return any(c.status == psutil.CONN_ESTABLISHED and c.raddr.port == port for c in found)


async def swapped(register: EtcdRegister, revision: int, record: Record, row: bytes | None = None) -> Any:
    """A swap that is read back when in doubt, and tried again when it was not made."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(Silent):
            if (made := await register.swap(revision, record, row)) is not None:
                return made
        found = (await answered(register.look)).versioned
        if found is not None and found.revision != revision:
            assert found.record == record
            return found
        assert time.monotonic() < deadline, "it was never made"


class TestEtcdFailures:
    """What a cluster promises beside the contract, while its members fail."""

    @story
    async def test_the_loss_of_one_member_stops_nothing(self, cluster: EtcdCluster) -> None:
        for name, lost in (("follower", cluster.followers()[0]), ("leader", cluster.leader())):
            async with at(cluster, f"one-{name}") as register:
                await answered(register.join)
                start = await swapped(register, ABSENT, begun())
                cluster.kill(lost)
                assert (await answered(register.look)).versioned == start
                await answered(register.renew)
                done = await swapped(register, start.revision, next_round(start.record), b"row")
                cluster.start(lost)
                assert (await answered(register.look)).versioned == done

    @story
    async def test_without_a_majority_nothing_is_said_and_nothing_is_lost(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "two", timeout_seconds=1) as register:
            await answered(register.join)
            start = await swapped(register, ABSENT, begun())
            since = await answered(register.look)
            lost = cluster.followers()
            cluster.kill(*lost)
            for deed in (
                register.look(),
                register.swap(start.revision, next_round(start.record), b"row"),
                register.rows("run", 0, 9),
                register.note("run", 1, b"note"),
                register.renew(),
                register.join(),
                register.changed(since, 3.0),
            ):
                with pytest.raises(Silent):
                    await deed
            cluster.start(*lost)
            # What was proposed when it could not be agreed upon may be agreed upon now, all of it or nothing.
            standing = await answered(register.look)
            rows = await answered(lambda: register.rows("run", 0, 9))
            assert (standing.versioned.record.round, rows) in ((0, []), (1, [b"row"]))
            await answered(register.join)
            await swapped(register, standing.versioned.revision, begun("next"))

    @story
    async def test_a_member_that_was_left_behind_answers_nothing_old(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "behind", timeout_seconds=2) as register:
            await answered(register.join)
            held = await swapped(register, ABSENT, begun())
            for _ in range(3):
                behind = cluster.leader()
                cluster.stop(behind)
                held = await swapped(register, held.revision, next_round(held.record))
                async with at(cluster, "behind", 1, endpoints=(cluster.endpoints[behind],)) as late:
                    looking = asyncio.create_task(answered(late.look))
                    await until(lambda behind=behind: _is(connected(cluster.endpoints[behind])))  # type: ignore[misc]
                    cluster.cont(behind)
                    assert (await looking).versioned == held
                cluster.wait_until_healthy(behind)

    @story
    async def test_everybody_killed_at_work_comes_back_with_all_that_was_acknowledged(
        self, cluster: EtcdCluster
    ) -> None:
        async with at(cluster, "all") as register:
            await answered(register.join)
            held = await swapped(register, ABSENT, begun())
            for _ in range(2):
                at_work = threading.Event()
                killing = asyncio.create_task(asyncio.to_thread(self._kill_all_at_work, cluster, at_work))
                with contextlib.suppress(Silent):
                    for made in itertools.count():
                        assert held is not None
                        held = await register.swap(held.revision, next_round(held.record), b"row")
                        if made == 3:
                            at_work.set()
                at_work.set()
                await killing
                cluster.start(*cluster.numbers)
                found = (await answered(register.look)).versioned
                assert held is not None
                assert found.record.round in (held.record.round, held.record.round + 1)
                assert len(await answered(lambda: register.rows("run", 1, 10**6))) == found.record.round
                await answered(register.join)
                held = found

    @story
    async def test_a_swap_in_doubt_was_made_whole_or_not_at_all(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "doubt", timeout_seconds=1) as register:
            await answered(register.join)
            held = await swapped(register, ABSENT, begun())
            for turn, hurt in enumerate((cluster.stop, cluster.kill) * 2):
                lost = cluster.followers() if turn < 2 else (cluster.leader(), cluster.followers()[0])
                row = b"row %d" % turn
                swap = asyncio.create_task(register.swap(held.revision, next_round(held.record, f"turn {turn}"), row))
                await asyncio.sleep(0.001 * turn)
                hurt(*lost)
                with contextlib.suppress(Silent):
                    await swap
                cluster.heal()
                if not swap.cancelled() and swap.exception() is None:
                    held = await self._read_back(register, held.record.round + 1)
                    continue
                held = await self._settled(register)
                rows = await answered(lambda: register.rows("run", 1, 10**6))
                assert len(rows) == held.record.round
                if held.record.weights.digest == f"turn {turn}":
                    assert rows[-1] == row
                await answered(register.join)

    @staticmethod
    def _kill_all_at_work(cluster: EtcdCluster, at_work: threading.Event) -> None:
        assert at_work.wait(PATIENCE)
        cluster.kill(*cluster.numbers)

    @staticmethod
    async def _read_back(register: EtcdRegister, round_: int) -> Any:
        versioned = (await answered(register.look)).versioned
        assert versioned.record.round == round_
        return versioned

    @staticmethod
    async def _settled(register: EtcdRegister) -> Any:
        """The record, once a swap in flight can no longer change it: a write after it has been made."""
        await answered(lambda: register.note("run", 0, b"settled"))
        return (await answered(register.look)).versioned


class TestEtcdDoors:
    """Which member is asked, and what is asked again."""

    @story
    async def test_a_swap_whose_answer_is_lost_is_not_sent_again(self, cluster: EtcdCluster) -> None:
        port = int(cluster.endpoints[0].rpartition(":")[2])
        for number, (hands_on, hangs_up) in enumerate([(True, True), (True, False), (False, True), (False, False)]):
            name = f"lost-{number}"
            async with at(cluster, name) as sound:
                await sound.join()
                start = await sound.swap(ABSENT, begun())
                assert start is not None
                doubtful = Doubtful(port, hands_on, hangs_up)
                async with doubtful as door, at(cluster, name, timeout_seconds=2) as register:
                    await answered(register.join)
                    # From here on the doubtful way comes first, the sound ones after it.
                    register._gateway._endpoints = (door, *cluster.endpoints)
                    register._gateway._current = 0
                    with pytest.raises(Silent):
                        await register.swap(start.revision, next_round(start.record), b"row")
                    assert doubtful.requests == 1
                    if hands_on:
                        await asyncio.wait_for(doubtful.handed_on.wait(), PATIENCE)
                    register._gateway._timeout = PATIENCE  # what follows is not to turn from a member that is slow
                    found = (await register.look()).versioned
                    rows = await register.rows("run", 0, 9)
                    assert doubtful.requests == 1, "the next to be asked is another member"
                assert found is not None
                assert (found.record.round, rows) == ((1, [b"row"]) if hands_on else (0, []))

    @story
    async def test_what_is_only_read_is_asked_of_another_member(self, cluster: EtcdCluster) -> None:
        for hangs_up in (True, False):
            doubtful = Doubtful(0, hands_on=False, hangs_up=hangs_up)
            async with doubtful as door, at(cluster, "read", endpoints=(door, *cluster.endpoints)) as register:
                assert (await register.look()).versioned is None
                assert doubtful.requests == 1

    @story
    async def test_members_that_are_not_there_are_passed_over(self, cluster: EtcdCluster) -> None:
        lost = cluster.followers()[0]
        cluster.kill(lost)
        endpoints = (cluster.endpoints[lost], *(cluster.endpoints[m] for m in cluster.numbers if m != lost))
        async with at(cluster, "absent", endpoints=endpoints) as register:
            await register.join()
            register._gateway._current = 0
            assert await register.swap(ABSENT, begun()) is not None
        async with at(cluster, "absent", endpoints=endpoints[:1]) as register:
            with pytest.raises(Silent):
                await register.join()

    @story
    async def test_a_watch_that_goes_quiet_hides_nothing(self, cluster: EtcdCluster) -> None:
        quiet = Doubtful(0, hands_on=False, hangs_up=False)
        async with quiet as door, at(cluster, "quiet") as actor:
            await actor.join()
            register = EtcdRegister(cluster.settings(timeout_seconds=10), "quiet", "1", 3 * SHORT)
            since = await register.look()
            register._gateway._endpoints = (door, *cluster.endpoints)
            register._gateway._current = 0
            register._keep_watching()
            await until(lambda: _is(quiet.requests > 0))
            register._gateway._current = 1
            made = await actor.swap(ABSENT, begun())
            news = await asyncio.wait_for(register.changed(since, 2 * PATIENCE), PATIENCE)
            assert news.versioned == made
            await register.close()

    @story
    async def test_news_costs_no_question(self, cluster: EtcdCluster) -> None:
        # No test waits as long as this lease: no look is made because the watch is silent.
        async with at(cluster, "free") as actor, at(cluster, "free", 1, lease_seconds=20 * PATIENCE) as register:
            asked: list[str] = []
            messages = heard_by(register)
            standing, ask = await register.look(), register._gateway.ask

            async def counted(path: str, *rest: Any, **more: Any) -> Any:
                asked.append(path)
                return await ask(path, *rest, **more)

            async def heard() -> Standing:
                return await asyncio.wait_for(register.changed(standing, 2 * PATIENCE), PATIENCE)

            await actor.join()
            standing = await heard()
            await until(lambda: _is(bool(messages)))
            assert await register.look() == standing  # the watch and the look meet from here on
            register._gateway.ask = counted  # type: ignore[method-assign]
            made = await swapped(actor, ABSENT, begun())
            standing = await heard()
            assert (standing.versioned, standing.alive) == (made, frozenset({"0"}))
            for _ in range(3):
                assert made is not None
                made = await swapped(actor, made.revision, next_round(made.record))
                standing = await heard()
                assert standing.versioned == made
            await actor.leave()
            standing = await heard()
            assert (standing.versioned, standing.alive) == (made, frozenset())
            assert asked == []
            assert await register.look() == standing

    @story
    async def test_a_watch_is_taken_up_again_after_its_member_died(self, cluster: EtcdCluster) -> None:
        # No test waits as long as this lease: it is the watch that wakes, not the look that is made now and then.
        async with at(cluster, "again") as actor, at(cluster, "again", 1, lease_seconds=20 * PATIENCE) as register:
            messages = heard_by(register)
            await answered(actor.join)
            since = await answered(register.look)
            await answered(lambda: register.changed(since, 1.0))
            await until(lambda: _is(bool(messages)))
            watched = cluster.endpoints.index(register._gateway._endpoints[register._gateway._current])
            before = len(messages)
            cluster.kill(watched)
            await until(lambda: _is(len(messages) > before))
            waiting = asyncio.create_task(answered(lambda: register.changed(since, 2 * PATIENCE)))
            assert await answered(register.look) == since  # and meanwhile it has begun to wait
            made = await swapped(actor, ABSENT, begun())
            news = await asyncio.wait_for(waiting, PATIENCE)
            assert news.versioned == made

    @story
    async def test_too_big_a_row_is_refused_in_one_sentence(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "big") as register:
            await register.join()
            with pytest.raises(BadInput, match=r"larger than max|too large"):
                await register.swap(ABSENT, begun(), bytes(3_000_000))
            with pytest.raises(BadInput, match=r"larger than max|too large"):
                await register.note("run", 1, bytes(1_600_000))
            assert (await register.look()).versioned is None


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """TLS, and users with rights to one federation."""
    with EtcdCluster(tmp_path_factory.mktemp("secure"), members=1, tls=True) as cluster:
        # What docs/etcd.md has the operator do with etcdctl.
        span = {"key": text("tramfl/mine/"), "range_end": text("tramfl/mine0"), "permType": "READWRITE"}
        for path, body in (
            ("auth/user/add", {"name": "root", "password": "of all"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/role/add", {"name": "mine"}),
            ("auth/role/grant", {"name": "mine", "perm": span}),
            ("auth/user/add", {"name": "site", "password": "word"}),
            ("auth/user/grant", {"user": "site", "role": "mine"}),
            ("auth/enable", {}),
        ):
            answer = cluster.ask(path, body)
            assert answer.status_code == 200, answer.text
        yield cluster


class TestEtcdSecurity:
    """Who is let in."""

    def register(self, secure: EtcdCluster, federation: str = "mine", password: str = "word", **changes: Any) -> Any:
        settings = secure.settings(**{"user": "site", "timeout_seconds": 10, **changes})
        return EtcdRegister(settings, federation, "0", LONG, lambda: password)

    @story
    async def test_a_user_with_the_right_password_gets_in(self, secure: EtcdCluster) -> None:
        register = self.register(secure)
        await register.join()
        assert await register.swap(ABSENT, begun(), b"row") is not None
        since = await register.look()
        assert since.alive == {"0"}
        other = self.register(secure)
        messages = heard_by(register)
        waiting = asyncio.create_task(register.changed(since, 2 * PATIENCE))
        await until(lambda: _is(bool(messages)))  # the watch is let in, too
        await other.join()
        await other.leave()
        assert (await asyncio.wait_for(waiting, PATIENCE)).alive == frozenset()
        await register.close()
        await other.close()

    @story
    async def test_a_token_that_etcd_forgot_is_asked_for_again(self, secure: EtcdCluster) -> None:
        register = self.register(secure)
        await register.join()
        held = (await register.look()).versioned
        secure.restart(0)  # a member keeps tokens in memory only
        revision = held.revision if held else ABSENT
        assert await register.swap(revision, begun("after")) is not None
        register._gateway._token = "forged.17"
        await register.renew()
        await register.note("run", 1, b"note")
        await register.close()

    @story
    async def test_wrong_credentials_are_refused_in_one_sentence(self, secure: EtcdCluster) -> None:
        await refused(self.register(secure, password="wrong"), "invalid user ID or password")
        await refused(self.register(secure, user="nobody"), "invalid user ID or password")
        await refused(self.register(secure, user=None), "refuses")

    @story
    async def test_another_federations_keys_are_out_of_reach(self, secure: EtcdCluster) -> None:
        for name in ("yours", "mine0", "min"):
            await refused(self.register(secure, federation=name), "permission denied")

    @story
    async def test_a_cluster_that_somebody_else_vouches_for_is_not_believed(
        self, secure: EtcdCluster, tmp_path: Path
    ) -> None:
        write_certificates(tmp_path, ["127.0.0.1"])
        await refused(self.register(secure, authorities=str(tmp_path / "ca.crt")), "authorities")
        await refused(self.register(secure, authorities=None), "authorities")

    @story
    async def test_plaintext_and_tls_do_not_mix(self, secure: EtcdCluster, cluster: EtcdCluster) -> None:
        plain = tuple(endpoint.replace("https", "http") for endpoint in secure.endpoints)
        mixed = tuple(endpoint.replace("http", "https") for endpoint in cluster.endpoints)
        for endpoints in (plain, mixed):
            register = self.register(secure, endpoints=endpoints)
            with pytest.raises(Silent, match="https"):
                await register.join()
            await register.close()

    @story
    async def test_what_was_let_in_once_is_silent_when_it_is_refused_later(self, secure: EtcdCluster) -> None:
        register = self.register(secure)
        await register.join()
        register._gateway._password, register._gateway._token = lambda: "changed meanwhile", None
        with pytest.raises(Silent, match="invalid user ID or password"):
            await register.look()
        register._gateway._password = lambda: "word"
        await register.look()
        await register.close()

    @story
    async def test_a_cluster_may_ask_for_certificates(self, tmp_path: Path) -> None:
        with EtcdCluster(tmp_path / "etcd", members=1, tls=True, client_certificates=True) as cluster:
            async with at(cluster, "shown") as register:
                await register.join()
                assert await register.swap(ABSENT, begun()) is not None
            other = tmp_path / "other"
            other.mkdir()
            write_certificates(other, ["127.0.0.1"])
            foreign = {"certificate": str(other / "etcd.crt"), "key": str(other / "etcd.key")}
            for shown in ({"certificate": None, "key": None}, foreign):
                register = EtcdRegister(cluster.settings(timeout_seconds=10, **shown), "shown", "1", LONG)
                # Whether its reason arrives before it hangs up is chance.
                with pytest.raises((BadInput, Silent), match="certificate"):
                    await register.join()
                await register.close()

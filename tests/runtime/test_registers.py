"""One contract for the memory, SQLite and etcd registers, and what each of the last two promises beside it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import tomli_w
from msgspec import to_builtins
from msgspec.structs import replace

from tests.runtime.etcd import EtcdCluster, write_certificates
from tests.runtime.memory import Memory, MemoryView
from tramfl.circulation.custody import Record, first_record
from tramfl.notation import BadInput
from tramfl.runtime.etcd_gateway import text
from tramfl.runtime.etcd_register import PAGE, EtcdRegister
from tramfl.runtime.register import ABSENT, LeaseLost, Register, Silent, Standing
from tramfl.runtime.registers import open_register
from tramfl.runtime.settings import RegisterSettings, read_federation
from tramfl.runtime.sqlite_register import SqliteRegister

P = ParamSpec("P")
LONG = 120.0
"""A lease that does not run out in a test."""
SHORT = 1.0
PATIENCE = 60.0
"""How long a condition may take to come true."""


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that awaits."""

    @functools.wraps(test)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return told


def begun(run: str = "run", labels: int = 3) -> Record:
    return first_record(run, 0, "w0", (0,), labels)


def next_round(record: Record, digest: str = "w") -> Record:
    """The record with one round more."""
    used = (1,) * len(record.ledger.used)
    weights = replace(record.weights, digest=digest)
    return replace(record, ledger=record.ledger.after(used, 1.0), weights=weights)


class Home:
    """Where the registers of one test live; closes what it opened."""

    kind = "memory"

    def __init__(self) -> None:
        self._memory = Memory()
        self._opened: list[Register] = []

    def open(self, node: int, lease_seconds: float = LONG) -> Register:
        register = self.make(node, lease_seconds)
        self._opened.append(register)
        return register

    async def joined(self, node: int, lease_seconds: float = LONG) -> Register:
        register = self.open(node, lease_seconds)
        await register.join()
        return register

    def make(self, node: int, lease_seconds: float) -> Register:
        return MemoryView(self._memory, node, lease_seconds)

    async def close(self) -> None:
        for register in self._opened:
            await register.close()
        self._opened.clear()

    def restart(self) -> None:
        """End whatever keeps the register, the hard way, and start it again."""

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncIterator[Home]:
        try:
            yield self
        finally:
            await self.close()


class FileHome(Home):
    """Registers that a federation's file names."""

    def __init__(self, kind: str, path: Path, settings: RegisterSettings, restart: Callable[[], None]) -> None:
        super().__init__()
        self.kind = kind
        self.path = path
        self._settings = settings
        self._restart = restart

    def make(self, node: int, lease_seconds: float) -> Register:
        return open_register(read_federation(self.write(lease_seconds)), node)

    def write(self, lease_seconds: float) -> Path:
        sites = [{"name": f"s{n}", "address": f"127.0.0.1:{7400 + n}"} for n in range(3)]
        register = {k: v for k, v in to_builtins(self._settings).items() if v is not None}
        file = {"name": self.path.parent.name, "site": sites, "lease_seconds": lease_seconds, "register": register}
        self.path.write_text(tomli_w.dumps(file))
        return self.path

    def restart(self) -> None:
        self._restart()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: EtcdCluster) -> EtcdCluster:
    """Three members in good health, whatever the test before did to them."""
    shared_cluster.heal()
    return shared_cluster


def home_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Home:
    if kind == "memory":
        return Home()
    path = folder / "federation.toml"
    if kind == "sqlite":
        return FileHome(kind, path, RegisterSettings(timeout_seconds=10), lambda: None)
    cluster: EtcdCluster = request.getfixturevalue("cluster")
    return FileHome(kind, path, cluster.settings(timeout_seconds=10), lambda: cluster.restart(*cluster.numbers))


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return home_of(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "etcd"])
def file_home(request: pytest.FixtureRequest, tmp_path: Path) -> FileHome:
    made = home_of(request.param, request, tmp_path)
    assert isinstance(made, FileHome)
    return made


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


async def until_alive_are(register: Register, nodes: set[int]) -> None:
    async def are() -> bool:
        return (await register.look()).alive == nodes

    await until(are)


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to what may be asked again, once there is one."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask()
        except Silent:
            assert time.monotonic() < deadline, "it never answered"


class TestContract:
    """What a node relies on, whichever register it has."""

    @story
    async def test_before_the_first_run_there_is_no_record(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            assert await register.look() == Standing(None, frozenset({0}))
            assert await register.swap(7, begun()) is None
            assert (await register.look()).versioned is None

    @story
    async def test_a_swap_gives_the_revision_that_a_look_shows(self, home: Home) -> None:
        async with home.closing():
            register, other = await home.joined(0), home.open(1)
            first = await register.swap(ABSENT, begun())
            assert first is not None
            assert first.revision != ABSENT
            assert (await other.look()).versioned == first
            second = await register.swap(first.revision, next_round(first.record))
            assert second is not None
            assert second.revision > first.revision
            assert (await other.look()).versioned == second

    @story
    async def test_only_the_newest_revision_can_be_replaced(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            first = await register.swap(ABSENT, begun())
            assert first is not None
            second = await register.swap(first.revision, next_round(first.record))
            assert second is not None
            for revision in (ABSENT, first.revision, second.revision + 1, second.revision + 1000):
                assert await register.swap(revision, begun("other")) is None
            assert (await register.look()).versioned == second

    @story
    async def test_of_many_who_swap_at_once_one_wins(self, home: Home) -> None:
        async with home.closing():
            registers = [await home.joined(n) for n in range(12)]
            revision = ABSENT
            for turn in range(5):
                records = [replace(begun(), epoch=turn + 1, holder=n) for n in range(12)]
                swaps = [r.swap(revision, record) for r, record in zip(registers, records, strict=True)]
                won = [swapped for swapped in await asyncio.gather(*swaps) if swapped is not None]
                assert len(won) == 1
                assert (await registers[0].look()).versioned == won[0]
                revision = won[0].revision

    @story
    async def test_a_row_is_there_if_and_only_if_its_swap_was_made(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            start = await register.swap(ABSENT, begun())
            assert start is not None
            assert await register.rows("run", 0, 100) == []
            done = await register.swap(start.revision, next_round(start.record), b"row 1")
            assert done is not None
            assert await register.rows("run", 0, 100) == [b"row 1"]
            assert await register.swap(start.revision, next_round(start.record), b"too late") is None
            assert await register.swap(start.revision, next_round(done.record), b"too late") is None
            assert await register.rows("run", 0, 100) == [b"row 1"]

    @story
    async def test_a_later_epoch_overwrites_the_row_of_a_round(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            start = await register.swap(ABSENT, begun())
            assert start is not None
            lost = await register.swap(start.revision, next_round(start.record), b"lost")
            assert lost is not None
            taken = await register.swap(lost.revision, replace(start.record, epoch=2))
            assert taken is not None
            assert await register.rows("run", 1, 1) == [b"lost"]
            await register.swap(taken.revision, next_round(taken.record), b"done again")
            assert await register.rows("run", 1, 1) == [b"done again"]

    @story
    async def test_rows_come_in_order_and_only_those_asked_for(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            held = await register.swap(ABSENT, begun())
            for number in range(1, 13):
                assert held is not None
                held = await register.swap(held.revision, next_round(held.record), b"%d" % number)
            assert await register.rows("run", 0, 10**9) == [b"%d" % n for n in range(1, 13)]
            assert await register.rows("run", 9, 11) == [b"9", b"10", b"11"]
            assert await register.rows("run", 13, 20) == []
            assert await register.rows("run", 5, 4) == []
            assert await register.rows("ru", 0, 100) == []

    @story
    async def test_runs_are_kept_apart_whatever_their_names(self, home: Home) -> None:
        names = ("a", "a/b", "a/", "/", "..", "A", "ü 雪", "a%2Fb", "a\\b", "'; --", "row/a")
        async with home.closing():
            register = await home.joined(0)
            revision = ABSENT
            for name in names:
                swapped = await register.swap(revision, next_round(begun(name)), name.encode())
                assert swapped is not None
                assert swapped.record.run == name
                revision = swapped.revision
                await register.note(name, 1, b"note " + name.encode())
            for name in names:
                assert await register.rows(name, 0, 10) == [name.encode()]
                assert await register.notes(name, 0, 10) == {1: b"note " + name.encode()}

    @story
    async def test_of_the_notes_about_a_round_the_last_counts(self, home: Home) -> None:
        async with home.closing():
            register = home.open(0)
            for number, content in ((1, b"first"), (3, b""), (1, b"\x00second"), (10, b"ten")):
                await register.note("run", number, content)
            assert await register.notes("run", 0, 9) == {1: b"\x00second", 3: b""}
            assert await register.notes("run", 2, 10) == {3: b"", 10: b"ten"}
            assert await register.rows("run", 0, 100) == []

    @story
    async def test_more_rounds_than_fit_in_one_answer_come_whole(self, home: Home) -> None:
        async with home.closing():
            register = home.open(0)
            rounds = range(PAGE + 1)
            for first in rounds[::20]:
                some = rounds[first : first + 20]
                await asyncio.gather(*(register.note("run", n, b"%d" % n) for n in some))
            found = await register.notes("run", 0, 10**15)
            assert list(found.items()) == [(n, b"%d" % n) for n in rounds]

    @story
    async def test_big_values_come_back_as_they_were(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            record, row = next_round(begun(labels=20_000)), bytes(range(256)) * 2000
            swapped = await register.swap(ABSENT, record, row)
            assert swapped is not None
            assert (await register.look()).versioned == swapped
            assert await register.rows("run", 1, 1) == [row]

    @story
    async def test_a_lease_that_is_not_renewed_runs_out(self, home: Home) -> None:
        async with home.closing():
            watcher = await home.joined(0)
            mortal = await home.joined(1, SHORT)
            assert (await watcher.look()).alive == {0, 1}
            start = await mortal.swap(ABSENT, begun())
            assert start is not None
            await until_alive_are(watcher, {0})
            with pytest.raises(LeaseLost):
                await mortal.swap(start.revision, next_round(start.record), b"row")
            with pytest.raises(LeaseLost):
                await mortal.swap(ABSENT, next_round(start.record), b"row")
            with pytest.raises(LeaseLost):
                await mortal.renew()
            assert await watcher.look() == Standing(start, frozenset({0}))
            assert await watcher.rows("run", 0, 10) == []
            await mortal.join()
            assert (await watcher.look()).alive == {0, 1}
            assert await mortal.swap(start.revision, next_round(start.record)) is not None

    @story
    async def test_a_lease_that_is_renewed_does_not_run_out(self, home: Home) -> None:
        async with home.closing():
            watcher, mortal = home.open(0), await home.joined(1, 3 * SHORT)
            ends = time.monotonic() + 6 * SHORT
            while time.monotonic() < ends:
                await mortal.renew()
                assert (await watcher.look()).alive == {1}
                await asyncio.sleep(SHORT / 3)

    @story
    async def test_whoever_leaves_is_gone_at_once(self, home: Home) -> None:
        async with home.closing():
            register, other = await home.joined(0), await home.joined(1)
            await register.leave()
            assert (await other.look()).alive == {1}
            for deed in (register.renew(), register.swap(ABSENT, begun())):
                with pytest.raises(LeaseLost):
                    await deed
            await register.leave()
            await register.join()
            assert (await other.look()).alive == {0, 1}

    @story
    async def test_whoever_never_joined_has_no_lease(self, home: Home) -> None:
        async with home.closing():
            register = home.open(0)
            for deed in (register.renew(), register.swap(ABSENT, begun())):
                with pytest.raises(LeaseLost):
                    await deed
            assert await register.look() == Standing(None, frozenset())

    @story
    async def test_a_former_life_can_do_nothing_to_the_present_one(self, home: Home) -> None:
        async with home.closing():
            former = await home.joined(0, SHORT)
            present = await home.joined(0)
            for deed in (former.renew(), former.swap(ABSENT, begun(), b"row")):
                with pytest.raises(LeaseLost):
                    await deed
            await former.leave()
            assert await present.look() == Standing(None, frozenset({0}))
            await asyncio.sleep(2.5 * SHORT)  # the former lease would have ended by now, and etcd's key with it
            assert (await present.look()).alive == {0}
            await present.renew()
            assert await present.swap(ABSENT, begun()) is not None

    @story
    async def test_a_node_that_joins_twice_at_once_has_one_lease(self, home: Home) -> None:
        async with home.closing():
            register = home.open(0)
            for _ in range(3):
                await asyncio.gather(*(register.join() for _ in range(4)))
                await register.renew()
                assert await register.swap(7, begun()) is None
            assert (await register.look()).alive == {0}

    @story
    async def test_a_lease_outlives_the_connection_and_no_longer(self, home: Home) -> None:
        async with home.closing():
            watcher = home.open(0)
            mortal = await home.joined(1, 2 * SHORT)
            await mortal.close()
            assert (await watcher.look()).alive == {1}
            await until_alive_are(watcher, set())

    @story
    async def test_news_wakes_whoever_waits(self, home: Home) -> None:
        async with home.closing():
            watcher, actor = home.open(0), home.open(1, SHORT)

            async def heard(since: Standing, deed: Callable[[], Awaitable[Any]]) -> Standing:
                waiting = [asyncio.create_task(watcher.changed(since, 2 * PATIENCE)) for _ in range(2)]
                await asyncio.sleep(0.2)
                assert not any(task.done() for task in waiting)
                await deed()
                first, second = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
                assert first == second
                return first

            standing = await heard(await watcher.look(), actor.join)
            assert standing.alive == {1}
            standing = await heard(standing, actor.leave)
            assert standing.alive == frozenset()
            standing = await heard(standing, actor.join)
            standing = await heard(standing, lambda: actor.swap(ABSENT, begun()))
            assert standing.versioned is not None
            if 1 in standing.alive:
                standing = await asyncio.wait_for(watcher.changed(standing, 2 * PATIENCE), PATIENCE)
            assert standing.alive == frozenset(), "the end of a lease is news, too"

    @story
    async def test_news_from_before_the_wait_is_told_at_once(self, home: Home) -> None:
        async with home.closing():
            watcher, actor = home.open(0), await home.joined(1)
            nothing = await watcher.look()
            for _ in range(3):
                since = await watcher.look()
                revision = since.versioned.revision if since.versioned else ABSENT
                swapped = await actor.swap(revision, begun())
                told = await asyncio.wait_for(watcher.changed(since, 2 * PATIENCE), PATIENCE)
                assert told.versioned == swapped
            assert (await asyncio.wait_for(watcher.changed(nothing, 2 * PATIENCE), PATIENCE)).versioned == swapped

    @story
    async def test_without_news_a_wait_ends_after_its_time(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            since = await register.look()
            for seconds in (0.0, 0.3):
                began = time.monotonic()
                assert await register.changed(since, seconds) == since
                assert time.monotonic() - began >= seconds - 0.01

    @story
    async def test_a_wait_that_is_given_up_harms_nothing(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            since = await register.look()
            for turn in range(40):
                waiting = asyncio.create_task(register.changed(since, PATIENCE))
                await asyncio.sleep(0.0007 * turn)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert await register.swap(ABSENT, begun()) is not None
            told = await asyncio.wait_for(register.changed(since, PATIENCE), PATIENCE)
            assert told.versioned is not None

    @story
    async def test_a_closed_register_says_nothing_more(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            waiting = asyncio.create_task(register.changed(await register.look(), 2 * PATIENCE))
            await asyncio.sleep(0.2)
            await register.close()
            with pytest.raises(Silent):
                await asyncio.wait_for(waiting, PATIENCE)
            with pytest.raises(Silent):
                await register.look()
            await register.close()

    @story
    async def test_everything_survives_a_restart_of_the_register(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            start = await register.swap(ABSENT, begun())
            assert start is not None
            done = await register.swap(start.revision, next_round(start.record), b"row")
            await register.note("run", 1, b"note")
            await home.close()
            home.restart()
            again = home.open(0)
            assert (await answered(again.look)).versioned == done
            assert await again.rows("run", 0, 10) == [b"row"]
            assert await again.notes("run", 0, 10) == {1: b"note"}
            await answered(again.join)
            assert done is not None
            assert await again.swap(start.revision, begun("other")) is None
            assert await again.swap(done.revision, next_round(done.record)) is not None


SWAPPER = """
import asyncio, sys
from pathlib import Path
from msgspec.structs import replace
from tramfl.runtime.registers import open_register
from tramfl.runtime.settings import read_federation

async def main(path, node, last):
    register = open_register(read_federation(Path(path)), node)
    await register.join()
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        held = (await register.look()).versioned
        if held.record.round >= last:
            break
        record = replace(held.record, ledger=held.record.ledger.after((1, 1, 1), 1.0))
        if await register.swap(held.revision, record, b"%d" % node):
            print(held.record.round + 1, flush=True)
    await register.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@contextlib.contextmanager
def swappers(path: Path, nodes: Sequence[int], last: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that each try to commit every round up to the last, beginning all at once."""
    words = [sys.executable, "-c", SWAPPER, str(path)]
    processes = [
        subprocess.Popen(
            [*words, str(node), str(last)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in nodes
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class TestProcesses:
    """Several processes, one register."""

    @story
    async def test_every_round_is_committed_by_one_process_and_its_row_says_which(self, file_home: FileHome) -> None:
        async with file_home.closing():
            register = await file_home.joined(9)
            await register.swap(ABSENT, begun())
            with swappers(file_home.write(LONG), range(3), last=60) as processes:
                outputs = [(await asyncio.to_thread(p.communicate, timeout=PATIENCE))[0] for p in processes]
            assert all(process.returncode == 0 for process in processes)
            won = {int(line): node for node, output in enumerate(outputs) for line in output.split()}
            assert sum(len(output.split()) for output in outputs) == 60, "no round twice"
            assert await register.rows("run", 1, 60) == [b"%d" % won[n] for n in range(1, 61)]
            standing = await register.look()
            assert standing.versioned is not None
            assert standing.versioned.record.ledger.used == (60, 60, 60)
            assert standing.alive == {0, 1, 2, 9}

    @story
    async def test_a_process_that_is_killed_leaves_whole_rounds(self, file_home: FileHome) -> None:
        async with file_home.closing():
            register = await file_home.joined(9)
            await register.swap(ABSENT, begun())
            for _ in range(3):
                with swappers(file_home.write(LONG), [0, 1], last=10**6) as processes:
                    await asyncio.sleep(0.5)
                    for process in processes:
                        process.send_signal(signal.SIGKILL)
                    told = [line for p in processes for line in p.communicate()[0].split()]
                standing = await register.look()
                assert standing.versioned is not None
                rounds = standing.versioned.record.round
                assert rounds >= max(map(int, told)), "what was acknowledged is kept"
                assert len(await register.rows("run", 1, rounds + 10)) == rounds


async def refused(register: Register, *words: str) -> None:
    """A node that begins with this register is told what is wrong, in one sentence."""
    with pytest.raises(BadInput) as caught:
        await register.join()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message, message
    await register.close()


class TestSqlite:
    """What one file promises beside the contract."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "register.sqlite"

    @story
    async def test_a_file_that_is_no_database_is_named_and_left_alone(self, path: Path) -> None:
        for content in (b"holiday pictures " * 500, b"SQLite format 3\x00" + b"\xff" * 5000):
            path.write_bytes(content)
            await refused(SqliteRegister(path, 0, LONG), str(path))
            assert path.read_bytes() == content

    @story
    async def test_another_programs_database_is_named_and_left_alone(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE bookmarks (url)")
            db.commit()
        content = path.read_bytes()
        await refused(SqliteRegister(path, 0, LONG), str(path), "another program")
        assert path.read_bytes() == content

    @story
    async def test_a_register_of_another_version_is_named(self, path: Path) -> None:
        register = SqliteRegister(path, 0, LONG)
        await register.join()
        await register.close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        await refused(SqliteRegister(path, 0, LONG), str(path), "another version")

    @story
    async def test_a_damaged_register_is_named(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:  # holds the file open, so that nobody cleans up
            register = SqliteRegister(path, 0, LONG)
            await register.join()
            await register.swap(ABSENT, begun(), b"x" * 100_000)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            await register.close()
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
        await refused(SqliteRegister(path, 0, LONG), str(path), "damaged")

    @story
    async def test_a_record_that_cannot_be_read_is_named(self, path: Path) -> None:
        register = SqliteRegister(path, 0, LONG)
        await register.join()
        await register.swap(ABSENT, begun())
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE record SET content = x'c1', revision = 7")
            db.commit()
        with pytest.raises(BadInput, match="cannot be read"):
            await register.look()
        await register.close()

    @story
    async def test_a_place_where_no_file_can_be_is_named(self, path: Path) -> None:
        await refused(SqliteRegister(path / "nowhere" / "r.sqlite", 0, LONG), "nowhere", "permissions")
        path.mkdir()
        await refused(SqliteRegister(path, 0, LONG), str(path))

    @story
    async def test_a_file_that_is_locked_for_too_long_is_silent_and_keeps_nothing(self, path: Path) -> None:
        register = SqliteRegister(path, 0, LONG, timeout_seconds=0.4)
        await answered(register.join)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for deed in (register.swap(ABSENT, begun(), b"row"), register.note("run", 1, b"note"), register.renew()):
                with pytest.raises(Silent):
                    await deed
            assert ticks > 10, "the event loop went on meanwhile"
            assert (await register.look()).alive == {0}, "who only reads is not kept waiting"
            await asyncio.gather(register.leave())
            db.execute("ROLLBACK")
        ticking.cancel()
        await asyncio.sleep(0.5)
        assert await register.look() == Standing(None, frozenset({0}))
        assert await register.notes("run", 0, 9) == {}
        await register.close()

    @story
    async def test_a_lease_from_before_the_machine_was_restarted_is_none(self, path: Path) -> None:
        now = 1_000_000.0
        before = SqliteRegister(path, 0, 5.0, clock=lambda: now)
        await before.join()
        assert (await before.look()).alive == {0}
        now = 60.0
        after = SqliteRegister(path, 1, 5.0, clock=lambda: now)
        assert (await after.look()).alive == frozenset()
        with pytest.raises(LeaseLost):
            await before.swap(ABSENT, begun())
        await after.join()
        await before.join()
        assert (await after.look()).alive == {0, 1}
        await before.close()
        await after.close()

    @story
    async def test_a_file_that_was_replaced_is_no_second_register(self, path: Path) -> None:
        register = SqliteRegister(path, 0, LONG)
        await register.join()
        for file in path.parent.glob("register.sqlite*"):
            file.unlink()
        other = SqliteRegister(path, 1, LONG)
        await other.join()
        for deed in (register.swap(ABSENT, begun()), register.renew(), register.look()):
            with pytest.raises(BadInput, match="replaced while in use"):
                await deed
        await register.close()
        await other.close()

    @story
    async def test_many_may_begin_with_a_new_file_at_once(self, path: Path) -> None:
        registers = [SqliteRegister(path, node, LONG, timeout_seconds=30) for node in range(10)]
        await asyncio.gather(*(register.join() for register in registers))
        assert (await registers[0].look()).alive == set(range(10))
        for register in registers:
            await register.close()

    def test_a_full_disk_is_silent_and_passes(self, path: Path) -> None:
        code = """
import asyncio, resource, signal, sys
from pathlib import Path
from tests.runtime.test_registers import begun, next_round
from tramfl.runtime.register import ABSENT, Silent
from tramfl.runtime.sqlite_register import SqliteRegister

async def main():
    register = SqliteRegister(Path(sys.argv[1]), 0, 120.0)
    await register.join()
    start = await register.swap(ABSENT, begun())
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        await register.swap(start.revision, next_round(start.record), bytes(1_000_000))
    except Silent as error:
        print(error, file=sys.stderr)
    else:
        raise AssertionError("it cannot have been written")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert (await register.look()).versioned == start
    assert await register.rows("run", 0, 9) == []
    await register.renew()
    assert await register.swap(start.revision, next_round(start.record), b"row") is not None
    await register.close()

asyncio.run(main())
"""
        subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parents[2], check=True)


class Doubtful:
    """A way to a member that loses answers: it hands requests on, or does not, and hangs up or hangs."""

    def __init__(self, port: int, hands_on: bool, hangs_up: bool) -> None:
        self._port = port
        self._hands_on = hands_on
        self._hangs_up = hangs_up
        self.requests = 0

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
            if not self._hangs_up:
                await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def at(cluster: EtcdCluster, federation: str, node: int = 0, **changes: Any) -> AsyncIterator[EtcdRegister]:
    """A register that has joined, if it is to have joined."""
    settings = cluster.settings(**{"timeout_seconds": 10, **changes})
    register = EtcdRegister(settings, federation, node, LONG)
    try:
        yield register
    finally:
        await register.close()


class TestEtcdFailures:
    """What a cluster promises beside the contract, while its members fail."""

    @story
    async def test_the_loss_of_one_member_stops_nothing(self, cluster: EtcdCluster) -> None:
        for name, lost in (("follower", cluster.followers()[0]), ("leader", cluster.leader())):
            async with at(cluster, f"one-{name}") as register:
                await register.join()
                start = await register.swap(ABSENT, begun())
                assert start is not None
                cluster.kill(lost)
                assert (await answered(register.look)).versioned == start
                await answered(register.renew)
                done = await register.swap(start.revision, next_round(start.record), b"row")
                assert done is not None
                cluster.start(lost)
                assert (await register.look()).versioned == done

    @story
    async def test_without_a_majority_nothing_is_said_and_nothing_is_lost(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "two", timeout_seconds=1) as register:
            await answered(register.join)
            start = await answered(lambda: register.swap(ABSENT, begun()))
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
            assert await register.swap(standing.versioned.revision, begun("next")) is not None

    @story
    async def test_a_member_that_was_left_behind_tells_nothing_old(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "behind", timeout_seconds=2) as register:
            await answered(register.join)
            held = await answered(lambda: register.swap(ABSENT, begun()))
            for _ in range(3):
                behind = cluster.leader()
                cluster.stop(behind)
                held = await self._swapped(register, held.revision, next_round(held.record))
                async with at(cluster, "behind", 1, endpoints=(cluster.endpoints[behind],)) as late:
                    looking = asyncio.create_task(answered(late.look))
                    await asyncio.sleep(0.1)
                    cluster.cont(behind)
                    assert (await looking).versioned == held
                cluster.wait_until_healthy(behind)

    @story
    async def test_everybody_killed_at_work_comes_back_with_all_that_was_acknowledged(
        self, cluster: EtcdCluster
    ) -> None:
        async with at(cluster, "all") as register:
            await register.join()
            held = await register.swap(ABSENT, begun())
            for _ in range(2):
                killing = asyncio.create_task(asyncio.to_thread(self._kill_all_soon, cluster))
                with contextlib.suppress(Silent):
                    while True:
                        assert held is not None
                        held = await register.swap(held.revision, next_round(held.record), b"row")
                await killing
                cluster.start(*cluster.numbers)
                found = (await answered(register.look)).versioned
                assert held is not None
                assert found.record.round in (held.record.round, held.record.round + 1)
                assert len(await register.rows("run", 1, 10**6)) == found.record.round
                await answered(register.join)
                held = found

    @story
    async def test_a_swap_in_doubt_was_made_whole_or_not_at_all(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "doubt", timeout_seconds=1) as register:
            await answered(register.join)
            held = await answered(lambda: register.swap(ABSENT, begun()))
            for turn, hurt in enumerate((cluster.stop, cluster.kill) * 2):
                lost = cluster.followers() if turn < 2 else (cluster.leader(), cluster.followers()[0])
                row = b"row %d" % turn
                swap = asyncio.create_task(register.swap(held.revision, next_round(held.record, f"turn {turn}"), row))
                await asyncio.sleep(0.001 * turn)
                hurt(*lost)
                with contextlib.suppress(Silent):
                    await swap
                await asyncio.to_thread(cluster.heal)
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
    def _kill_all_soon(cluster: EtcdCluster) -> None:
        time.sleep(0.3)
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

    @staticmethod
    async def _swapped(register: EtcdRegister, revision: int, record: Record) -> Any:
        """A swap that is read back when in doubt, and tried again when it was not made."""
        while True:
            try:
                swapped = await register.swap(revision, record)
            except Silent:
                swapped = None
            if swapped is not None:
                return swapped
            found = (await answered(register.look)).versioned
            if found.revision != revision:
                assert found.record == record
                return found


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
            register = EtcdRegister(cluster.settings(timeout_seconds=10), "quiet", 1, 3 * SHORT)
            since = await register.look()
            register._gateway._endpoints = (door, *cluster.endpoints)
            register._gateway._current = 0
            register._keep_watching()
            while not quiet.requests:
                await asyncio.sleep(0.01)
            register._gateway._current = 1
            swapped = await actor.swap(ABSENT, begun())
            told = await asyncio.wait_for(register.changed(since, 2 * PATIENCE), PATIENCE)
            assert told.versioned == swapped
            await register.close()

    @story
    async def test_a_watch_is_taken_up_again_after_its_member_died(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "again") as actor, at(cluster, "again", 1) as register:
            await actor.join()
            since = await register.look()
            await register.changed(since, 1.0)
            watched = cluster.endpoints.index(register._gateway._endpoints[register._gateway._current])
            wakes = register._wakes
            assert wakes > 0
            cluster.kill(watched)
            await until(lambda: _is(register._wakes > wakes))
            waiting = asyncio.create_task(register.changed(since, 2 * PATIENCE))
            await asyncio.sleep(0.2)
            swapped = await self._made(actor)
            # The lease is long: it is the watch that wakes, not the look that is made now and then.
            told = await asyncio.wait_for(waiting, LONG / 4)
            assert told.versioned == swapped

    @staticmethod
    async def _made(register: EtcdRegister) -> Any:
        with contextlib.suppress(Silent):
            await register.swap(ABSENT, begun())
        versioned = (await answered(register.look)).versioned
        return versioned or await register.swap(ABSENT, begun())

    @story
    async def test_too_big_a_row_is_refused_in_one_sentence(self, cluster: EtcdCluster) -> None:
        async with at(cluster, "big") as register:
            await register.join()
            with pytest.raises(BadInput, match=r"larger than max|too large"):
                await register.swap(ABSENT, begun(), bytes(3_000_000))
            with pytest.raises(BadInput, match=r"larger than max|too large"):
                await register.note("run", 1, bytes(1_600_000))
            assert (await register.look()).versioned is None


async def _is(value: bool) -> bool:
    return value


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
        return EtcdRegister(settings, federation, 0, LONG, password)

    @story
    async def test_a_user_with_the_right_password_gets_in(self, secure: EtcdCluster) -> None:
        register = self.register(secure)
        await register.join()
        assert await register.swap(ABSENT, begun(), b"row") is not None
        since = await register.look()
        assert since.alive == {0}
        other = self.register(secure)
        waiting = asyncio.create_task(register.changed(since, 2 * PATIENCE))
        await asyncio.sleep(0.5)
        assert register._wakes > 0, "the watch is let in, too"
        await other.join()
        await other.leave()
        assert (await asyncio.wait_for(waiting, PATIENCE)).alive == frozenset()
        await register.close()
        await other.close()

    @story
    async def test_a_token_that_etcd_forgot_is_asked_for_again(self, secure: EtcdCluster) -> None:
        register = self.register(secure, timeout_seconds=5)
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
        register._gateway._password, register._gateway._token = "changed meanwhile", None
        with pytest.raises(Silent, match="invalid user ID or password"):
            await register.look()
        register._gateway._password = "word"
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
                register = EtcdRegister(cluster.settings(**shown), "shown", 1, LONG)
                # Whether its reason arrives before it hangs up is chance.
                with pytest.raises((BadInput, Silent), match="certificate"):
                    await register.join()
                await register.close()


class TestOpening:
    """What a federation's file may name."""

    def refusal(self, tmp_path: Path, **register: Any) -> str:
        sites = [{"name": "a", "address": "127.0.0.1:7400"}]
        path = tmp_path / "federation.toml"
        path.write_text(tomli_w.dumps({"name": "f", "site": sites, "register": register}))
        with pytest.raises(BadInput) as caught:
            open_register(read_federation(path), 0)
        message = str(caught.value)
        assert str(path) in message
        assert message.endswith(".")
        assert "\n" not in message
        return message

    def test_a_register_in_no_folder_is_refused(self, tmp_path: Path) -> None:
        assert "nowhere" in self.refusal(tmp_path, path="nowhere/register.sqlite")

    @pytest.mark.parametrize("key", ["authorities", "certificate", "key", "password_file"])
    def test_a_missing_file_is_named(self, tmp_path: Path, key: str) -> None:
        write_certificates(tmp_path, ["127.0.0.1"])
        (tmp_path / "password").write_text("word\n")
        files = {"authorities": "ca.crt", "certificate": "etcd.crt", "key": "etcd.key", "password_file": "password"}
        settings = {"kind": "etcd", "endpoints": ["https://127.0.0.1:1"], "user": "site", **files, key: "absent"}
        message = self.refusal(tmp_path, **settings)
        assert f"register.{key}" in message
        assert str(tmp_path / "absent") in message

    def test_files_that_are_no_certificates_are_named(self, tmp_path: Path) -> None:
        write_certificates(tmp_path, ["127.0.0.1"])
        (tmp_path / "text").write_text("no certificate\n")
        there = {"kind": "etcd", "endpoints": ["https://127.0.0.1:1"]}
        assert "text" in self.refusal(tmp_path, **there, authorities="text")
        assert "text" in self.refusal(tmp_path, **there, certificate="etcd.crt", key="text")
        assert "belong together" in self.refusal(tmp_path, **there, certificate="etcd.crt")

    def test_a_user_needs_a_password_file(self, tmp_path: Path) -> None:
        message = self.refusal(tmp_path, kind="etcd", endpoints=["https://127.0.0.1:1"], user="site")
        assert "register.password_file" in message

    @pytest.mark.parametrize("endpoint", ["127.0.0.1:2379", "ftp://a:1", "https://", "https://a:1/v3", "https://a:x"])
    def test_what_is_no_endpoint_is_named(self, tmp_path: Path, endpoint: str) -> None:
        assert repr(endpoint) in self.refusal(tmp_path, kind="etcd", endpoints=[endpoint])

    def test_plaintext_is_for_loopback_only(self, tmp_path: Path) -> None:
        message = self.refusal(tmp_path, kind="etcd", endpoints=["http://127.0.0.1:1", "http://192.0.2.1:2379"])
        assert "192.0.2.1" in message

"""One contract for the memory, SQLite and etcd registers, within one process and between several."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tomli_w
from msgspec import to_builtins
from msgspec.structs import replace

from tests.runtime.etcd import EtcdCluster
from tests.runtime.memory import Memory, MemoryView
from tests.runtime.registers.stories import LONG, PATIENCE, SHORT, answered, begun, next_round, story, until
from tests.system_parts import TIED
from tramfl.circulation.custody import Entry, Record, Versioned
from tramfl.runtime.registers.contract import ABSENT, LeaseLost, LeaseTaken, Register, Silent, Standing
from tramfl.runtime.registers.etcd import PAGE
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import RegisterSettings, read_federation

T = TypeVar("T")


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
        return MemoryView(self._memory, str(node), lease_seconds)

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
        return open_register(read_federation(self.write(lease_seconds)), str(node))

    def at(self, place: str) -> Register:
        """Node 0 of a process at this place."""
        register = open_register(read_federation(self.write(LONG)), "0", place)
        self._opened.append(register)
        return register

    def write(self, lease_seconds: float) -> Path:
        sites = [{"name": f"s{n}", "address": f"127.0.0.1:{7400 + n}"} for n in range(3)]
        register = {k: v for k, v in to_builtins(self._settings).items() if v is not None}
        file = {"name": self.path.parent.name, "site": sites, "lease_seconds": lease_seconds, "register": register}
        self.path.write_text(tomli_w.dumps(file))
        return self.path

    def restart(self) -> None:
        self._restart()


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


async def until_alive_are(register: Register, nodes: set[str]) -> None:
    async def are() -> bool:
        return (await register.look()).alive == nodes

    await until(are)


async def in_time(lease_seconds: float, deed: Callable[[], Awaitable[T]]) -> T:
    """What comes of a deed that begins with a join; again, where it took this machine longer than the lease lasts."""
    deadline = time.monotonic() + PATIENCE
    while True:
        began = time.monotonic()
        try:
            return await deed()
        except (AssertionError, LeaseLost):
            now = time.monotonic()
            if now < began + lease_seconds or now > deadline:
                raise


class TestContract:
    """What a node relies on, whichever register it has."""

    @story
    async def test_before_the_first_run_there_is_no_record(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            assert await register.look() == Standing(None, frozenset({"0"}))
            assert await register.swap(7, begun()) is None
            assert (await register.look()).versioned is None

    @story
    async def test_the_last_list_of_revoked_certificates_is_news_for_every_node(self, home: Home) -> None:
        async with home.closing():
            register, other = await home.joined(0), home.open(1)
            before = await other.look()
            assert before.revoked == b""
            news = asyncio.create_task(other.changed(before, PATIENCE))
            await register.announce_revoked(b"first")
            assert (await news).revoked == b"first"
            await register.announce_revoked(b"\x00second")
            assert (await register.look()).revoked == b"\x00second"
            assert (await other.look()).versioned is None

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
            first = replace(begun(), members=tuple(Entry(str(n), "") for n in range(12)))
            revision = ABSENT
            for turn in range(5):
                records = [replace(first, epoch=turn + 1, holder=n) for n in range(12)]
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
    async def test_all_see_where_a_lease_is_and_two_processes_of_one_node_where_the_other_is(
        self, file_home: FileHome
    ) -> None:
        async with file_home.closing():
            watcher, here, there = file_home.open(1), file_home.at("here"), file_home.at("there")
            assert await here.join() is None
            assert (await watcher.look()).places == {"0": "here"}
            assert await there.join() == "here"
            assert (await watcher.look()).places == {"0": "there"}
            with pytest.raises(LeaseTaken, match="there"):
                await here.join()

    @story
    async def test_a_lease_that_is_not_renewed_runs_out(self, home: Home) -> None:
        async with home.closing():
            watcher, mortal = await home.joined(0), home.open(1, SHORT)

            async def joins_and_swaps(revision: int, record: Record) -> Versioned:
                await mortal.join()
                assert (await watcher.look()).alive == {"0", "1"}
                swapped = await mortal.swap(revision, record)
                assert swapped is not None
                return swapped

            start = await in_time(SHORT, lambda: joins_and_swaps(ABSENT, begun()))
            await until_alive_are(watcher, {"0"})
            with pytest.raises(LeaseLost):
                await mortal.swap(start.revision, next_round(start.record), b"row")
            with pytest.raises(LeaseLost):
                await mortal.swap(ABSENT, next_round(start.record), b"row")
            with pytest.raises(LeaseLost):
                await mortal.renew()
            assert await watcher.look() == Standing(start, frozenset({"0"}))
            assert await watcher.rows("run", 0, 10) == []
            await in_time(SHORT, lambda: joins_and_swaps(start.revision, next_round(start.record)))

    @story
    async def test_a_lease_that_is_renewed_does_not_run_out(self, home: Home) -> None:
        async with home.closing():
            lease_seconds = 2 * SHORT
            watcher, mortal, other = home.open(0), home.open(1, lease_seconds), home.open(2, lease_seconds)

            async def outlives_a_later_lease_that_is_not_renewed() -> bool:
                """False where this machine was too slow to renew the lease in time."""
                renewed = time.monotonic()
                await mortal.join()
                await other.join()
                while True:
                    now = time.monotonic()
                    try:
                        await mortal.renew()
                        renewed = now
                        alive = (await watcher.look()).alive
                        assert "1" in alive
                    except (AssertionError, LeaseLost):
                        if time.monotonic() < renewed + lease_seconds:
                            raise
                        return False
                    if alive == {"1"}:
                        return True
                    await asyncio.sleep(SHORT / 3)

            await until(outlives_a_later_lease_that_is_not_renewed)

    @story
    async def test_a_node_that_leaves_is_gone_at_once(self, home: Home) -> None:
        async with home.closing():
            register, other = await home.joined(0), await home.joined(1)
            await register.leave()
            assert (await other.look()).alive == {"1"}
            for deed in (register.renew(), register.swap(ABSENT, begun())):
                with pytest.raises(LeaseLost):
                    await deed
            await register.leave()
            await register.join()
            assert (await other.look()).alive == {"0", "1"}

    @story
    async def test_a_node_that_never_joined_has_no_lease(self, home: Home) -> None:
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
            assert await present.look() == Standing(None, frozenset({"0"}))
            # Once a later and longer lease has ended, so would the former have, and etcd's key with it.
            await home.joined(1, 2 * SHORT)
            await until_alive_are(present, {"0"})
            assert (await present.look()).alive == {"0"}
            await present.renew()
            assert await present.swap(ABSENT, begun()) is not None

    @story
    async def test_an_earlier_process_takes_its_lease_back_only_once_the_later_one_has_left(self, home: Home) -> None:
        async with home.closing():
            earlier, later = await home.joined(0), await home.joined(0)
            with pytest.raises(LeaseTaken):
                await earlier.join()
            await later.renew()
            assert await later.swap(ABSENT, begun()) is not None
            await later.leave()
            await earlier.join()
            await earlier.renew()

    @story
    async def test_a_node_that_joins_twice_at_once_has_one_lease(self, home: Home) -> None:
        async with home.closing():
            register = home.open(0)
            for _ in range(3):
                await asyncio.gather(*(register.join() for _ in range(4)))
                await register.renew()
                assert await register.swap(7, begun()) is None
            assert (await register.look()).alive == {"0"}

    @story
    async def test_a_lease_outlives_the_connection_and_no_longer(self, home: Home) -> None:
        async with home.closing():
            watcher = home.open(0)

            async def joins_and_closes() -> None:
                mortal = await home.joined(1, 2 * SHORT)
                await mortal.close()
                assert (await watcher.look()).alive == {"1"}

            await in_time(2 * SHORT, joins_and_closes)
            await until_alive_are(watcher, set())

    @story
    async def test_news_wakes_every_waiter(self, home: Home) -> None:
        async with home.closing():
            watcher, actor = home.open(0), home.open(1)

            async def heard(since: Standing, deed: Callable[[], Awaitable[Any]]) -> Standing:
                waiting = [asyncio.create_task(watcher.changed(since, 2 * PATIENCE)) for _ in range(2)]
                assert await watcher.look() == since  # and meanwhile both have begun to wait
                assert not any(task.done() for task in waiting)
                await deed()
                first, second = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
                assert first == second
                return first

            standing = await heard(await watcher.look(), actor.join)
            assert standing.alive == {"1"}
            standing = await heard(standing, actor.leave)
            assert standing.alive == frozenset()
            standing = await heard(standing, actor.join)
            standing = await heard(standing, lambda: actor.swap(ABSENT, begun()))
            assert standing.versioned is not None
            assert standing.alive == {"1"}
            await home.joined(1, SHORT)
            standing = await asyncio.wait_for(watcher.changed(standing, 2 * PATIENCE), PATIENCE)
            assert standing.alive == frozenset(), "the end of a lease is news, too"

    @story
    async def test_news_from_before_the_wait_is_returned_at_once(self, home: Home) -> None:
        async with home.closing():
            watcher, actor = home.open(0), await home.joined(1)
            nothing = await watcher.look()
            for _ in range(3):
                since = await watcher.look()
                revision = since.versioned.revision if since.versioned else ABSENT
                swapped = await actor.swap(revision, begun())
                news = await asyncio.wait_for(watcher.changed(since, 2 * PATIENCE), PATIENCE)
                assert news.versioned == swapped
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
            news = await asyncio.wait_for(register.changed(since, PATIENCE), PATIENCE)
            assert news.versioned is not None

    @story
    async def test_a_closed_register_says_nothing_more(self, home: Home) -> None:
        async with home.closing():
            register = await home.joined(0)
            waiting = asyncio.create_task(register.changed(await register.look(), 2 * PATIENCE))
            await register.look()  # and meanwhile it has begun to wait
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
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import read_federation

async def main(path, node, last):
    register = open_register(read_federation(Path(path)), str(node))
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
    words = [*TIED, sys.executable, "-c", SWAPPER, str(path)]
    processes = [
        subprocess.Popen(
            [*words, str(node), str(last)],
            cwd=Path(__file__).parents[3],
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
            assert standing.alive == {"0", "1", "2", "9"}

    @story
    async def test_a_process_that_is_killed_leaves_whole_rounds(self, file_home: FileHome) -> None:
        async with file_home.closing():
            register = await file_home.joined(9)
            await register.swap(ABSENT, begun())

            async def reached(number: int) -> bool:
                versioned = (await register.look()).versioned
                return versioned is not None and versioned.record.round >= number

            rounds = 0
            for _ in range(3):
                with swappers(file_home.write(LONG), [0, 1], last=10**6) as processes:
                    # Of three rounds one process made two, so it has printed the first of them.
                    await until(functools.partial(reached, rounds + 20))
                    for process in processes:
                        process.send_signal(signal.SIGKILL)
                    printed = [line for p in processes for line in p.communicate()[0].split()]
                # What a process had asked for when it was killed may still be done.
                standing, rows = await register.look(), await register.rows("run", 1, 10**6)
                while (later := await register.look()) != standing:
                    standing, rows = later, await register.rows("run", 1, 10**6)
                assert standing.versioned is not None
                rounds = standing.versioned.record.round
                assert rounds >= max(map(int, printed)), "what was acknowledged is kept"
                assert len(rows) == rounds

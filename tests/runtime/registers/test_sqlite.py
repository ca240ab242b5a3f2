"""What the register in one SQLite file promises beside the contract."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.registers.stories import LONG, PATIENCE, answered, begun, refused, story
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import ABSENT, LeaseLost, Silent, Standing
from tramfl.runtime.registers.sqlite import SqliteRegister


def at(path: Path, node: int = 0) -> SqliteRegister:
    """A register that is never silent because the disk is slow."""
    return SqliteRegister(path, str(node), LONG, timeout_seconds=PATIENCE)


class TestSqlite:
    """What one file promises beside the contract."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "register.sqlite"

    @story
    async def test_a_file_that_is_no_database_is_named_and_left_alone(self, path: Path) -> None:
        for content in (b"holiday pictures " * 500, b"SQLite format 3\x00" + b"\xff" * 5000):
            path.write_bytes(content)
            await refused(at(path), str(path))
            assert path.read_bytes() == content

    @story
    async def test_another_programs_database_is_named_and_left_alone(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE bookmarks (url)")
            db.commit()
        content = path.read_bytes()
        await refused(at(path), str(path), "another program")
        assert path.read_bytes() == content

    @story
    async def test_a_register_of_another_version_is_named(self, path: Path) -> None:
        register = at(path)
        await register.join()
        await register.close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        await refused(at(path), str(path), "another version")

    @story
    async def test_a_damaged_register_is_named(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:  # holds the file open, so that nobody cleans up
            register = at(path)
            await register.join()
            await register.swap(ABSENT, begun(), b"x" * 100_000)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            await register.close()
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
        await refused(at(path), str(path), "damaged")

    @story
    async def test_a_record_that_cannot_be_read_is_named(self, path: Path) -> None:
        register = at(path)
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
        await refused(at(path / "nowhere" / "r.sqlite"), "nowhere", "permissions")
        path.mkdir()
        await refused(at(path), str(path))

    @story
    async def test_a_file_that_is_locked_for_too_long_is_silent_and_keeps_nothing(self, path: Path) -> None:
        register = SqliteRegister(path, "0", LONG, timeout_seconds=1)
        await answered(register.join)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for deed in (register.swap(ABSENT, begun(), b"row"), register.note("run", 1, b"note"), register.renew()):
                with pytest.raises(Silent):
                    await deed
            assert (await answered(register.look)).alive == {"0"}, "who only reads is not kept waiting"
            await asyncio.gather(register.leave())
            db.execute("ROLLBACK")
        # What it was asked for it does, or does not, in turn: an answer comes after all that was asked before.
        assert await answered(register.look) == Standing(None, frozenset({"0"}))
        assert await answered(lambda: register.notes("run", 0, 9)) == {}
        await register.close()

    @story
    async def test_the_event_loop_goes_on_while_the_register_waits_for_the_file(self, path: Path) -> None:
        register = at(path)
        await register.join()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(register.swap(ABSENT, begun(), b"row"))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done()
            db.execute("ROLLBACK")
            assert await waiting is not None
        await register.close()

    @story
    async def test_a_lease_from_before_the_machine_was_restarted_is_none(self, path: Path) -> None:
        now = 1_000_000.0
        before = SqliteRegister(path, "0", 5.0, PATIENCE, lambda: now)
        await before.join()
        assert (await before.look()).alive == {"0"}
        now = 60.0
        after = SqliteRegister(path, "1", 5.0, PATIENCE, lambda: now)
        assert (await after.look()).alive == frozenset()
        with pytest.raises(LeaseLost):
            await before.swap(ABSENT, begun())
        await after.join()
        await before.join()
        assert (await after.look()).alive == {"0", "1"}
        await before.close()
        await after.close()

    @story
    async def test_a_file_that_was_replaced_is_no_second_register(self, path: Path) -> None:
        register = at(path)
        await register.join()
        for file in path.parent.glob("register.sqlite*"):
            file.unlink()
        other = at(path, 1)
        await other.join()
        for deed in (register.swap(ABSENT, begun()), register.renew(), register.look()):
            with pytest.raises(BadInput, match="replaced while in use"):
                await deed
        await register.close()
        await other.close()

    @story
    async def test_many_may_begin_with_a_new_file_at_once(self, path: Path) -> None:
        registers = [at(path, node) for node in range(10)]
        await asyncio.gather(*(register.join() for register in registers))
        assert (await registers[0].look()).alive == set(map(str, range(10)))
        for register in registers:
            await register.close()

    def test_a_full_disk_is_silent_and_passes(self, path: Path) -> None:
        code = """
import asyncio, resource, signal, sys
from pathlib import Path
from tests.runtime.registers.stories import begun, next_round
from tramfl.runtime.registers.contract import ABSENT, Silent
from tramfl.runtime.registers.sqlite import SqliteRegister

async def main():
    register = SqliteRegister(Path(sys.argv[1]), "0", 120.0, timeout_seconds=60)
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
        subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parents[3], check=True)

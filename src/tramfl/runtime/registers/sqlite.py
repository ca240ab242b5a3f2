"""The register of sites that share one machine: a SQLite file.

A swap is on the disk before it is acknowledged (WAL, synchronous=FULL), and every write is one BEGIN IMMEDIATE
transaction, so of two writers one waits for the other. Leases end by the machine's monotonic clock, which all
processes of one boot share. All work is done in threads, each with its own connection: the
event loop waits for no disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tramfl.circulation.custody import Record, Versioned
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import ABSENT, LeaseLost, LeaseTaken, Silent, Standing
from tramfl.runtime.registers.records import Records

T = TypeVar("T")

APPLICATION = 0x7472616D
"""What SQLite's header says of whose file it is: "tram"."""
LAYOUT = 3
"""2 since the nodes are known by their names, 3 since there is a list of revoked certificates."""
POLL_SECONDS = 0.05
"""How soon a change is seen: a poll asks only whether anybody has written."""
TABLES = (
    "CREATE TABLE record (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, content BLOB NOT NULL)",
    "CREATE TABLE lease (node TEXT PRIMARY KEY, life TEXT NOT NULL, ends REAL NOT NULL, length REAL NOT NULL,"
    " place TEXT NOT NULL)",
    "CREATE TABLE revoked (id INTEGER PRIMARY KEY CHECK (id = 1), content BLOB NOT NULL)",
    "CREATE TABLE row (run TEXT, round INTEGER, content BLOB NOT NULL, PRIMARY KEY (run, round))",
    "CREATE TABLE note (run TEXT, round INTEGER, content BLOB NOT NULL, PRIMARY KEY (run, round))",
)
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH})
BARRED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
"""At the first opening these mean that the setting names a wrong file; later they may pass, like a full disk."""


def machine_seconds() -> float:
    """Seconds since this machine was started: the same for all its processes."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class SqliteRegister:
    """One node's view of a file that all nodes share. See `Register`.

    A file that is damaged or not ours raises BadInput, at first use or whenever it is found out.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        lease_seconds: float,
        timeout_seconds: float = 2.0,
        clock: Callable[[], float] = machine_seconds,
        place: str = "",
    ) -> None:
        self.records = Records()
        self._file = RegisterFile(path, node, lease_seconds, clock, place, self.records)
        self._timeout = timeout_seconds
        self._actor = ThreadPoolExecutor(1, "register")
        self._watchers = ThreadPoolExecutor(8, "register-watch")
        self._watches: set[threading.Event] = set()
        self._lookouts: list[RegisterFile] = []

    async def join(self) -> str | None:
        """Take this node's lease, in place of any that a former life of it left."""
        return await self._do(self._file.join)

    async def renew(self) -> None:
        """Make the lease last a full length again."""
        await self._do(self._file.renew)

    async def leave(self) -> None:
        """Give the lease up; where the register is silent it runs out by itself."""
        with contextlib.suppress(Silent):
            await self._do(self._file.leave)

    async def look(self) -> Standing:
        """The record and who is alive."""
        standing, _ = await self._do(self._file.look)
        return standing

    async def changed(self, since: Standing, seconds: float) -> Standing:
        """The standing, as soon as it differs from `since`, or as it is when `seconds` have passed."""
        ended = threading.Event()
        self._watches.add(ended)
        try:
            return await self._in(
                self._watchers, seconds + self._timeout, partial(self._watch, since, seconds, ended)
            )
        finally:
            ended.set()
            self._watches.discard(ended)

    async def swap(self, revision: int, record: Record, row: bytes | None = None) -> Versioned | None:
        """Put `record` in place of `revision`, with its row; None if the record has another revision by now."""
        return await self._do(lambda: self._file.swap(revision, record, row))

    async def rows(self, run: str, first: int, last: int) -> list[bytes]:
        """The rows of rounds `first` to `last`, in order."""
        found = await self._do(lambda: self._file.contents("row", run, first, last))
        return [content for _, content in found]

    async def note(self, run: str, round_: int, content: bytes) -> None:
        """Keep something about a round; the last one counts."""
        await self._do(lambda: self._file.note(run, round_, content))

    async def notes(self, run: str, first: int, last: int) -> dict[int, bytes]:
        """What was noted about rounds `first` to `last`."""
        return dict(await self._do(lambda: self._file.contents("note", run, first, last)))

    async def announce_revoked(self, content: bytes) -> None:
        """Put a list of revoked certificates where every node sees it; the last one counts."""
        await self._do(lambda: self._file.announce_revoked(content))

    async def close(self) -> None:
        """Close the file; the lease runs out by itself unless given up before."""
        for ended in self._watches:
            ended.set()
        with contextlib.suppress(RuntimeError):  # closed already
            self._actor.submit(self._file.close)
            self._watchers.submit(self._close_lookouts)
        self._actor.shutdown(wait=False)
        self._watchers.shutdown(wait=False)

    async def _do(self, work: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._timeout
        # A moment more than the work has itself, so that it can say what kept it.
        return await self._in(self._actor, self._timeout + POLL_SECONDS, partial(self._file.within, deadline, work))

    async def _in(self, threads: ThreadPoolExecutor, seconds: float, work: Callable[[], T]) -> T:
        """The outcome of work in a thread; Silent if it takes too long, though it may yet be done."""
        try:
            future = threads.submit(work)
        except RuntimeError:
            raise Silent(f"{self._file.path} is closed") from None
        future.add_done_callback(_heard)
        try:
            # Not wait_for: until Python 3.12 it may swallow a cancellation that comes with the outcome.
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Silent(f"{self._file.path} did not answer in time") from None

    def _watch(self, since: Standing, seconds: float, ended: threading.Event) -> Standing:
        """Look until there is news; in a thread of its own, for a hop between threads costs more than to ask."""
        try:
            lookout = self._lookouts.pop()
        except IndexError:
            lookout = self._file.beside()
        until = time.monotonic() + seconds
        try:
            while True:
                standing, seen = lookout.within(time.monotonic() + self._timeout, lookout.look)
                if standing != since or time.monotonic() >= until:
                    return standing
                self._wait_until_stale(lookout, seen, until, ended)
        finally:
            self._lookouts.append(lookout)

    def _wait_until_stale(self, lookout: RegisterFile, seen: Seen, until: float, ended: threading.Event) -> None:
        while (now := time.monotonic()) < until:
            if lookout.stale(seen):
                return
            if ended.wait(min(POLL_SECONDS, until - now)):
                raise Silent(f"{self._file.path} is closed")

    def _close_lookouts(self) -> None:
        while self._lookouts:
            self._lookouts.pop().close()


def _heard(future: Future[Any]) -> None:
    """Work whose caller has gone may fail unheard."""
    if not future.cancelled():
        future.exception()


class Seen(msgspec.Struct, frozen=True):
    """Changes when a look is out of date."""

    others: int
    """SQLite's count of changes by other connections."""
    lapse: float
    """When the next lease runs out."""


class RegisterFile:
    """The file, as one thread works on it."""

    def __init__(
        self,
        path: Path,
        node: str,
        lease_seconds: float,
        clock: Callable[[], float],
        place: str,
        records: Records,
    ) -> None:
        self.path = path.absolute()
        self._node, self._place, self._records = node, place, records
        self._length = lease_seconds
        self._clock = clock
        self._life: str | None = None
        self._lives: set[str] = set()
        """Under these names this process took its lease, or tried to."""
        self._joined = False
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._deadline = 0.0
        self._newest: Versioned | None = None

    def beside(self) -> RegisterFile:
        """The same file through another connection, which sees what this one writes as news."""
        return RegisterFile(self.path, self._node, self._length, self._clock, self._place, self._records)

    def within(self, deadline: float, work: Callable[[], T]) -> T:
        """Do some work on the open file, or nothing if the deadline has passed while it waited for its turn."""
        self._deadline = deadline
        if self._left() <= 0:
            raise Silent(f"{self.path} is busy")
        try:
            self._same_file()
            if self._connection is None:
                self._connection = self._opened()
            self._connection.execute(f"PRAGMA busy_timeout = {max(1, int(self._left() * 1000))}")
            return work()
        except sqlite3.Error as error:
            raise self._reason(error) from None
        except OSError as error:
            raise Silent(f"{self.path}: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def join(self) -> str | None:
        """A lease of a new life; not in place of another process's that joined after this one."""
        life = secrets.token_hex(8)
        with self._transaction() as db:
            other = self._place_of_other(db)
            if self._joined and other is not None:
                raise LeaseTaken(other)
            self._lives.add(life)
            lease = (self._node, life, self._clock() + self._length, self._length, self._place)
            db.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)", lease)
        self._life, self._joined = life, True
        return other if other != self._place else None

    def _place_of_other(self, db: sqlite3.Connection) -> str | None:
        """Where another process runs that has this node's lease; None where none has it."""
        query = "SELECT life, ends, length, place FROM lease WHERE node = ?"
        found, now = db.execute(query, (self._node,)).fetchone(), self._clock()
        has_it = found is not None and found[0] not in self._lives and now < found[1] <= now + found[2]
        return str(found[3]) if has_it else None

    def renew(self) -> None:
        """A full length again, unless it is over."""
        with self._transaction() as db:
            self._check_lease(db)
            db.execute("UPDATE lease SET ends = ? WHERE node = ?", (self._clock() + self._length, self._node))

    def leave(self) -> None:
        """No lease; a later life's is not mine to end."""
        with self._transaction() as db:
            db.execute("DELETE FROM lease WHERE node = ? AND life = ?", (self._node, self._life))
        self._life = None

    def look(self) -> tuple[Standing, Seen]:
        """Record and leases as of one moment, and how to tell that they have changed."""
        with self._transaction("DEFERRED") as db:
            # First of all: what is written after it was read makes the look out of date, at worst once too often.
            others = self._changes(db)
            versioned = self._record(db)
            revoked = db.execute("SELECT content FROM revoked").fetchone()
            now = self._clock()
            leases = db.execute("SELECT node, ends, length FROM lease").fetchall()
        running = {node: ends for node, ends, length in leases if now < ends <= now + length}
        seen = Seen(others, min(running.values(), default=float("inf")))
        return Standing(versioned, frozenset(running), revoked[0] if revoked else b""), seen

    def stale(self, seen: Seen) -> bool:
        """Whether anything may have changed; what goes wrong here, the next look will say."""
        assert self._connection is not None
        try:
            return self._changes(self._connection) != seen.others or self._clock() >= seen.lapse
        except sqlite3.Error:
            return True

    def swap(self, revision: int, record: Record, row: bytes | None) -> Versioned | None:
        """The swap and its row, both or neither."""
        with self._transaction() as db:
            self._check_lease(db)
            found = db.execute("SELECT revision FROM record").fetchone()
            if revision != (found[0] if found else ABSENT):
                return None
            content = self._records.content(record, revision)
            db.execute("INSERT OR REPLACE INTO record VALUES (1, ?, ?)", (revision + 1, content))
            if row is not None:
                db.execute("INSERT OR REPLACE INTO row VALUES (?, ?, ?)", (record.run, record.round, row))
        return self._records.swapped(record, revision, revision + 1)

    def note(self, run: str, round_: int, content: bytes) -> None:
        """The last one counts."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?)", (run, round_, content))

    def announce_revoked(self, content: bytes) -> None:
        """The last one counts."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO revoked VALUES (1, ?)", (content,))

    def contents(self, table: str, run: str, first: int, last: int) -> list[tuple[int, bytes]]:
        """Rounds and what a table keeps of them, in order."""
        query = f"SELECT round, content FROM {table} WHERE run = ? AND round BETWEEN ? AND ? ORDER BY round"
        with self._transaction("DEFERRED") as db:
            return db.execute(query, (run, first, last)).fetchall()

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        db = self._connection
        assert db is not None
        db.execute(f"BEGIN {kind}")
        try:
            if self._left() <= 0:  # the lock came too late: the caller already has its answer, Silent
                raise Silent(f"{self.path} is busy")
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _check_lease(self, db: sqlite3.Connection) -> None:
        found = db.execute("SELECT life, ends, length FROM lease WHERE node = ?", (self._node,)).fetchone()
        now = self._clock()
        # A lease that ends more than a length from now was given before the machine was started anew.
        if found is None or found[0] != self._life or not now < found[1] <= now + found[2]:
            raise LeaseLost(f"site {self._node} has no lease in {self.path}")

    def _record(self, db: sqlite3.Connection) -> Versioned | None:
        found = db.execute("SELECT revision, content FROM record").fetchone()
        if found is None:
            return None
        if self._newest is None or self._newest.revision != found[0]:
            self._newest = self._records.versioned(found[1], str(self.path), found[0])
        return self._newest

    def _changes(self, db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA data_version").fetchone()[0])

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _same_file(self) -> None:
        """A file put in the place of the one that is open would be a second register beside it.

        Only looked at: to open and close it would drop the locks that this process has on it.
        """
        if self._identity is not None and _identity(self.path) != self._identity:
            raise BadInput(f"{self.path} was removed or replaced while in use; restart every site that uses it.")

    def _opened(self) -> sqlite3.Connection:
        """The file, made if need be. Those who open it at once may bar each other for a moment."""
        while True:
            mode = "rwc" if self._identity is None else "rw"
            db = sqlite3.connect(
                f"{self.path.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(db)
            except sqlite3.Error as error:
                db.close()
                if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or self._left() <= 0:
                    raise
                time.sleep(0.01)
            except BaseException:
                db.close()
                raise
            else:
                self._identity = _identity(self.path)
                return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA busy_timeout = {max(1, int(self._left() * 1000))}")
        if self._is_empty(db, "DEFERRED"):  # asked before anything is changed: it may be somebody else's
            db.execute("PRAGMA journal_mode = WAL")
            self._is_empty(db, "IMMEDIATE", TABLES)
        db.execute("PRAGMA synchronous = FULL")

    def _is_empty(self, db: sqlite3.Connection, kind: str, tables: Sequence[str] = ()) -> bool:
        """Whether it is not a register yet; if so, it gets the tables.

        Asked and made in one transaction, for another process may be making it one just now.
        """
        db.execute(f"BEGIN {kind}")
        application = db.execute("PRAGMA application_id").fetchone()[0]
        layout = db.execute("PRAGMA user_version").fetchone()[0]
        found = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        is_empty = (application, layout, found) == (0, 0, 0)
        if not is_empty:
            self._check_ours(application, layout)
        elif tables:
            for table in tables:
                db.execute(table)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {LAYOUT}")
        db.execute("COMMIT")
        return is_empty

    def _check_ours(self, application: int, layout: int) -> None:
        if application != APPLICATION:
            raise BadInput(f"{self.path} is not a register but another program's database; name another file.")
        if layout != LAYOUT:
            raise BadInput(
                f"{self.path} was made by another version of tramfl; use that version or name another file."
            )

    def _reason(self, error: sqlite3.Error) -> Exception:
        """What an error means to a node: stop, for the file is of no use, or try again."""
        code = _code(error)
        if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            self.close()
        if code in DAMAGE:
            return BadInput(f"{self.path} is damaged or not a register ({error}); name another file or restore it.")
        if code in BARRED and _out_of_files():
            return Silent(f"{self.path}: this process has too many open files")
        if code in BARRED and self._identity is None:
            return BadInput(f"{self.path} cannot be opened for writing ({error}); check its folder and permissions.")
        return Silent(f"{self.path}: {error}")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _out_of_files() -> bool:
    """Whether this process, or the system, can open no further file at the moment."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; what the binding itself complains of counts as an error of the file."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF

"""The register's SQLite file, as one thread works on it.

A swap is on the disk before it is acknowledged (WAL, synchronous=FULL), and every write is one BEGIN IMMEDIATE
transaction, so of two writers one waits for the other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

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


class LookStamp(msgspec.Struct, frozen=True):
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

    def look(self) -> tuple[Standing, LookStamp]:
        """Record and leases as of one moment, and the marks that change with them."""
        with self._transaction("DEFERRED") as db:
            # First of all: what is written after it was read makes the look out of date, at worst once too often.
            others = self._changes(db)
            versioned = self._record(db)
            revoked = db.execute("SELECT content FROM revoked").fetchone()
            now = self._clock()
            leases = db.execute("SELECT node, ends, length, place FROM lease").fetchall()
        running = {node: (ends, place) for node, ends, length, place in leases if now < ends <= now + length}
        stamp = LookStamp(others, min((ends for ends, _ in running.values()), default=float("inf")))
        places = {node: place for node, (_, place) in running.items() if place}
        return Standing(versioned, frozenset(running), revoked[0] if revoked else b"", places), stamp

    def stale(self, seen: LookStamp) -> bool:
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
        if self._is_empty(db, "DEFERRED"):  # asked before any change: the file may be another program's
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

"""Sees every revision of a register, of every site: the evidence that tests of faults are judged by.

SQLite: a trigger in the file keeps each record as it is written, in the writer's own transaction. etcd: its own
history, which a watch from the first revision on gives whole.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import msgspec

from tests.conftest import PATIENCE
from tests.runtime.etcd import EtcdCluster
from tramfl.circulation.custody import Record, Versioned
from tramfl.record import Row
from tramfl.runtime.registers.contract import Register, Silent, Standing
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.registers.records import record_from, round_content
from tramfl.runtime.settings import read_federation

T = TypeVar("T")


class Witness:
    """Reads a federation's register and never writes to it."""

    def __init__(self, federation: Path, cluster: EtcdCluster | None = None) -> None:
        self._runner = asyncio.Runner()
        self._file = read_federation(federation)
        self._cluster = cluster
        self._register: Register = self._run(self._opened())
        if cluster is None:
            self._keep_history()

    async def _opened(self) -> Register:
        return open_register(self._file, "witness")

    def __enter__(self) -> Witness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._register.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def standing(self) -> Standing | None:
        """The record and who is alive; None where the register does not answer."""
        try:
            return self._run(self._register.look())
        except Silent:
            return None

    def record(self) -> Record | None:
        """The record; None where there is none, or no answer."""
        standing = self.standing()
        return standing.versioned.record if standing is not None and standing.versioned is not None else None

    def alive(self) -> frozenset[str]:
        """Who has a lease; the register must answer."""
        return self._answered(self._register.look).alive

    def _answered(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """An answer of the register, asked again while it is silent: a busy etcd may choose another leader."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._run(ask())
            except Silent:
                if time.monotonic() > until:
                    raise

    def rows(self, run: str, last: int, first: int = 1) -> list[Row]:
        """The rows that the register keeps of a run's rounds."""
        rows = self._answered(lambda: self._register.rows(run, first, last))
        lines = [round_content(row) for row in rows]
        return [msgspec.json.decode(line, type=Row) for line in lines]

    def accuracies(self, run: str, first: int, last: int) -> dict[int, float]:
        """Rounds and the test accuracies noted of them."""
        kept = self._answered(lambda: self._register.notes(run, first, last))
        notes = {round_: round_content(note) for round_, note in kept.items()}
        found = {round_: json.loads(note)["scores"]["test_accuracy"] for round_, note in notes.items()}
        return {round_: accuracy for round_, accuracy in found.items() if accuracy is not None}

    def history(self, run: str) -> list[Versioned]:
        """Every record of a run, in the order in which the register took them."""
        found = self._sqlite_history() if self._cluster is None else self._etcd_history(self._cluster)
        return [versioned for versioned in found if versioned.record.run == run]

    # SQLite.

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        path = self._file.beside(self._file.file.register.path)
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as database:
            yield database

    def _keep_history(self) -> None:
        self._run(self._register.look())  # which makes the file
        with self._database() as database, database:
            database.execute("CREATE TABLE history (revision INTEGER, content BLOB)")
            database.execute(
                "CREATE TRIGGER witness AFTER INSERT ON record BEGIN"
                " INSERT INTO history VALUES (NEW.revision, NEW.content); END"
            )

    def _sqlite_history(self) -> Iterator[Versioned]:
        with self._database() as database:
            for revision, content in database.execute("SELECT revision, content FROM history ORDER BY rowid"):
                yield Versioned(record_from(content, "the history", revision), revision)

    # etcd.

    def _etcd_history(self, cluster: EtcdCluster) -> Iterator[Versioned]:
        standing = self.standing()
        assert standing is not None
        assert standing.versioned is not None
        newest = standing.versioned.revision
        key = base64.b64encode(f"tramfl/{self._file.file.name}/record".encode()).decode()
        question = {"create_request": {"key": key, "start_revision": "1"}}
        url = f"{cluster.endpoints[cluster.leader()]}/v3/watch"
        trust = ssl.create_default_context(cafile=str(cluster.authority))
        with (
            httpx.Client(verify=trust, trust_env=False, timeout=30) as client,
            client.stream("POST", url, json=question) as answers,
        ):
            for line in answers.iter_lines():
                for event in json.loads(line)["result"].get("events", ()):
                    kv = event["kv"]
                    revision = int(kv["mod_revision"])
                    yield Versioned(record_from(base64.b64decode(kv["value"]), "the history", revision), revision)
                    if revision >= newest:
                        return

"""A live view at work in this process, and rows to grow a run with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tramfl.record import ROUNDS_FILE, Row, RowLoads, RowWriter, read_rows
from tramfl.reporting.dashboard import Dashboard, FolderSource, Source

Watch = Callable[..., Dashboard]
LOST = 3
"""The site that dies in `with_takeover`."""


@contextmanager
def watching(source: Source, **options: Any) -> Iterator[Dashboard]:
    """A live view that answers until the block ends."""
    dashboard = Dashboard(source, **options)
    thread = threading.Thread(target=dashboard.serve, daemon=True)
    thread.start()
    try:
        yield dashboard
    finally:
        dashboard.stop()
        thread.join()
        dashboard.close()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Serves a run's folder, or another source, until the test ends."""
    with ExitStack() as stack:

        def start(source: Path | Source, **options: Any) -> Dashboard:
            found = FolderSource(source) if isinstance(source, Path) else source
            return stack.enter_context(watching(found, **options))

        yield start


def rows_of(folder: Path) -> list[Row]:
    return list(read_rows(folder / ROUNDS_FILE))


def write_rows(folder: Path, rows: list[Row]) -> None:
    """Put these rows in place of those that are there."""
    (folder / ROUNDS_FILE).unlink(missing_ok=True)
    append(folder, rows)


def append(folder: Path, rows: list[Row]) -> None:
    writer = RowWriter(folder / ROUNDS_FILE)
    for row in rows:
        writer.write(row)
    writer.close()


def with_takeover(rows: list[Row], at: int) -> list[Row]:
    """The rows of a run whose site `LOST` dies with the model after row `at`, so that two rounds are done again."""
    nodes = len(rows[0].loads.flops)
    others = [node for node in range(nodes) if node != LOST]
    before = [*rows[: at - 1], replace(rows[at - 1], node=LOST, samples=(1,) * len(rows[0].samples))]

    def survived(row: Row) -> Row:
        holder = others[row.holder % len(others)]
        loads = RowLoads(
            tuple(None if i == LOST else f for i, f in enumerate(row.loads.flops)),
            tuple(None if i in (LOST, holder) else 5e7 for i in range(nodes)),
        )
        node = None if row.node is None else others[row.node % len(others)]
        return replace(row, epoch=2, round=row.round - 2, holder=holder, node=node, loads=loads)

    return before + [survived(row) for row in rows[at:]]

"""Rows of a run while it is written: each is read once, and nothing is locked, so the run is not disturbed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import UNSET

from tramfl.notation import BadInput
from tramfl.record.rows import Row, check_rows
from tramfl.record.schema import check_schema

MOST_ROWS = 1000
"""Rows of one reading: a long run begins to show before it is read to its end."""


class RowTail:
    """Follows rounds.jsonl from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begins: list[int] = [0]
        """Where each row begins in its file, and where the next will."""
        self._end = b""
        """The last bytes that were read: they differ once the file is another."""
        self._first: Row | None = None
        self._file = (0, 0)
        self._resets = 0
        self._decode = msgspec.json.Decoder(Row).decode
        self.trouble = ""
        """What is wrong with the file, in one sentence; empty where nothing is."""

    @property
    def count(self) -> int:
        """Rows that were read so far."""
        return len(self._begins) - 1

    @property
    def identity(self) -> tuple[tuple[int, int], int]:
        """Changes when the rows read so far do not count any more."""
        return self._file, self._resets

    def restart_if_replaced(self) -> None:
        """Begin anew where the file does not begin any more with what was read of it."""
        if not self._continues():
            self._begins, self._end, self._first, self.trouble = [0], b"", None, ""
            self._resets += 1

    def _continues(self) -> bool:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                same, self._file = (found.st_dev, found.st_ino) == self._file, (found.st_dev, found.st_ino)
                file.seek(self._begins[-1] - len(self._end))
                return (same or self.count == 0) and file.read(len(self._end)) == self._end
        except FileNotFoundError:
            return self.count == 0

    def rows(self, after: int) -> list[Row]:
        """Whole rows without the first `after`, at most `MOST_ROWS`; none past a line that is not a row."""
        if after > self.count:
            return []
        found: list[Row] = []
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._begins[after])
            for line in file:
                if not line.endswith(b"\n") or len(found) == MOST_ROWS:
                    break
                row = self._row(line, after + len(found))
                if row is None:
                    break
                found.append(row)
        return found

    def _row(self, line: bytes, number: int) -> Row | None:
        """One line as a row; None, and `trouble`, where it is none."""
        try:
            row = self._decode(line)
            self._first = self._first or row
            check_schema(1 if self._first.schema is UNSET else self._first.schema, Path(self._path.name))
            check_rows([self._first, row], Path(self._path.name))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.trouble = f"{self._path.name}, line {number + 1}, is not a round's row: {error}."
            return None
        except BadInput as error:
            self.trouble = str(error)
            return None
        if number == self.count:
            self._begins.append(self._begins[-1] + len(line))
            self._end = line[-64:]
        return row

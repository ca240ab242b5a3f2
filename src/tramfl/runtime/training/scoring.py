"""How good committed weights are: tested where they were trained, off the round's clock, and noted in the register.

A round's row is written when the round is committed; its scores come later, beside it. Where rounds are quicker than
tests, only the newest weights are tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from tramfl.circulation.custody import Record
from tramfl.notation import BadInput
from tramfl.record import Row, Scores
from tramfl.runtime.journal import Log
from tramfl.runtime.registers.contract import Register, Silent
from tramfl.runtime.training.workshop import WorkFailed, Workshop


class Note(Struct, frozen=True):
    """How good the weights of a round are, noted beside its row."""

    epoch: int
    """Of the row it belongs to: a round may be done again after a takeover."""
    scores: Scores


class Scorer:
    """Tests weights one after the other."""

    def __init__(
        self,
        folder: Path,
        workshop: Workshop,
        register: Register,
        targets: tuple[float, ...],
        log: Log,
        reached: Callable[[str], None],
    ) -> None:
        """`reached` is called with the name of a run whose weights reach the last of the `targets`."""
        self._folder, self._workshop, self._register = folder, workshop, register
        self._targets, self._log, self._reached = targets, log, reached
        self._next: tuple[Record, Path] | None = None
        self._wanted = asyncio.Event()

    def soon(self, record: Record, path: Path) -> None:
        """The weights at `path` are tested next; older ones that still wait are passed by."""
        link = self._folder / f"score-{record.round}.safetensors"
        with contextlib.suppress(OSError):
            link.unlink(missing_ok=True)
            os.link(path, link)  # the run may discard its own name for them meanwhile
            if self._next is not None:
                self._next[1].unlink(missing_ok=True)
            self._next = (record, link)
            self._wanted.set()

    async def work(self) -> None:
        """Test whatever comes, for ever."""
        for old in self._folder.glob("score-*.safetensors"):
            old.unlink(missing_ok=True)
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._next is not None:
                (record, path), self._next = self._next, None
                try:
                    await self._test(record, path)
                finally:
                    path.unlink(missing_ok=True)

    async def _test(self, record: Record, path: Path) -> None:
        try:
            scores = await self._workshop.score(path, self._targets)
            note = msgspec.json.encode(Note(record.epoch, scores))
            await self._register.note(record.run, record.round, note)
        except (WorkFailed, BadInput, Silent) as error:
            self._log("not-scored", round=record.round, reason=str(error))
            return
        self._log("scored", round=record.round, test_accuracy=scores.test_accuracy, test_loss=scores.test_loss)
        if self._targets and scores.test_accuracy is not None and scores.test_accuracy >= max(self._targets):
            self._reached(record.run)


def with_scores(line: bytes, notes: dict[int, bytes]) -> bytes:
    """A row with what was noted of its round, if that is of the same epoch."""
    row = msgspec.json.decode(line, type=Row)
    if row.round not in notes:
        return line
    note = msgspec.json.decode(notes[row.round], type=Note)
    if note.epoch != row.epoch:
        return line
    return msgspec.json.encode(msgspec.structs.replace(row, **msgspec.structs.asdict(note.scores)))

"""How good committed weights are: tested where they were trained, off the round's clock, and noted in the register.

A round's row is written when the round is committed; its scores are noted beside it later. `record.milestones` says
when a test is due, which targets are open and whether the last one is reached. What it needs of earlier tests, those
of other sites and of earlier holders included, is read from the register: rows and notes outlive every site. Where
rounds are quicker than tests, only the newest weights are tested.
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
from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import Milestones, Row, Scores, is_test_due, sound_row
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import Register, Silent
from tramfl.runtime.training.workshop import WorkFailed, Workshop
from tramfl.runtime.weights.store import READOUT_FILE

LATE_ROUNDS = 1000
"""A note may come late, since the next rounds do not wait for a test; notes further back are not read again."""
ROWS_AT_ONCE = 200
"""Rows are a few kilobytes each, and a register's answer has a limit."""


class Note(Struct, frozen=True):
    """How good the weights of a round are, noted beside its row."""

    epoch: int
    """Of the row it belongs to: a round may be done again after a takeover."""
    scores: Scores


class TestedRounds:
    """The tested rounds of the run at hand, from every site, as far as the register has them."""

    __test__ = False  # pytest must not collect it

    def __init__(self, register: Register) -> None:
        self._register = register
        self._lineage: tuple[str, int] | None = None
        self._rows: dict[int, Row] = {}
        self._read = 0

    async def before(self, record: Record) -> list[Row]:
        """Rows with scores of the rounds before the record's last, in order. Raises Silent.

        After a takeover rounds may be done again, so everything is read anew in a new epoch. A note of another epoch
        than its row's is of a round that was lost.
        """
        if self._lineage != (record.run, record.epoch):
            self._lineage, self._rows, self._read = (record.run, record.epoch), {}, 0
        first, last = max(1, self._read - LATE_ROUNDS), record.round - 1
        while first <= last:
            await self._read_part(record.run, first, min(last, first + ROWS_AT_ONCE - 1))
            first += ROWS_AT_ONCE
        self._read = max(self._read, last)
        return [row for round_, row in sorted(self._rows.items()) if round_ <= last]

    async def _read_part(self, run: str, first: int, last: int) -> None:
        notes = await self._register.notes(run, first, last)
        if new := sorted(notes.keys() - self._rows.keys()):
            for line in await self._register.rows(run, new[0], new[-1]):
                row = sound_row(with_scores(line, notes))
                if isinstance(row, Row) and row.is_tested:
                    self._rows[row.round] = row


class Scorer:
    """Tests weights one after the other."""

    def __init__(
        self,
        folder: Path,
        workshop: Workshop,
        register: Register,
        scenario: Scenario,
        log: Log,
        reached: Callable[[str], None],
    ) -> None:
        """`reached` is called with a run that has reached the last of its targets."""
        self._folder, self._workshop, self._register = folder, workshop, register
        self._scenario, self._log, self._reached = scenario, log, reached
        self._tested = TestedRounds(register)
        self._next: tuple[Record, Path] | None = None
        self._testing = False
        self._wanted = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether weights are tested, or wait for their test."""
        return self._testing or self._next is not None

    def committed(self, record: Record, path: Path, *, trained: bool) -> None:
        """A round of this site's is committed: test its weights, at `path`, if a test is due.

        They are next; older ones that still wait are left out.
        """
        if not is_test_due(self._scenario.evaluation, record.ledger, trained=trained):
            return
        link = self._folder / f"score-{record.round}.safetensors"
        with contextlib.suppress(OSError):
            _unlink(link)
            os.link(path, link)  # the run may discard its own name for them meanwhile
            with contextlib.suppress(FileNotFoundError):  # there is none where the newest weights are tested
                os.link(path.with_name(READOUT_FILE), _readout_of(link))
            if self._next is not None:
                _unlink(self._next[1])
            self._next = (record, link)
            self._wanted.set()

    async def work(self) -> None:
        """Test what comes, for ever."""
        for old in self._folder.glob("score-*.safetensors"):
            _unlink(old)
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._next is not None:
                (record, path), self._next, self._testing = self._next, None, True
                try:
                    await self._test(record, path)
                finally:
                    _unlink(path)
                    self._testing = False

    async def _test(self, record: Record, path: Path) -> None:
        try:
            milestones = await self._milestones_before(record)
            if not milestones.all_reached:
                scores = await self._workshop.score(path, milestones.open, _readout_of(path))
                note = msgspec.json.encode(Note(record.epoch, scores))
                await self._register.note(record.run, record.round, note)
                accuracy, loss = scores.test_accuracy, scores.test_loss
                self._log("scored", round=record.round, test_accuracy=accuracy, test_loss=loss)
                milestones = milestones.after(scores, record.ledger.seconds)
        except (WorkFailed, BadInput, Silent) as error:
            self._log("not-scored", round=record.round, reason=str(error))
            return
        if milestones.all_reached:
            # Also where an earlier holder reached the last target and was lost before it could end the run.
            self._reached(record.run)

    async def _milestones_before(self, record: Record) -> Milestones:
        # Without targets nothing depends on earlier tests.
        budget = self._scenario.budget
        return Milestones.of(budget, await self._tested.before(record) if budget.targets else ())


def _readout_of(weights: Path) -> Path:
    """The mean that belongs to weights on their way to a test; its name ends so that nobody takes it for weights."""
    return weights.with_suffix(".readout")


def _unlink(weights: Path) -> None:
    for path in (weights, _readout_of(weights)):
        path.unlink(missing_ok=True)


def with_scores(line: bytes, notes: dict[int, bytes]) -> bytes:
    """A row with what was noted of its round, if that is of the same epoch; a bad row, or note, is left as it is."""
    row = sound_row(line)
    if isinstance(row, str) or row.round not in notes:
        return line
    try:
        note = msgspec.json.decode(notes[row.round], type=Note)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    if note.epoch != row.epoch:
        return line
    return msgspec.json.encode(msgspec.structs.replace(row, **msgspec.structs.asdict(note.scores)))

"""Rows as a site gives them to the operator: signed by the sites that trained, each checked by itself.

One site passes on what many wrote, and may lie about all of it but the signatures.
"""

from __future__ import annotations

from collections.abc import Iterable

from tramfl.circulation.custody import Record
from tramfl.record import Row, sound_row
from tramfl.runtime.registers.records import NOTE, ROW, Seal, Unsealed, opened_round
from tramfl.runtime.training import with_scores
from tramfl.runtime.wire import AskRows, Rows, plain


def read_rows(
    given: Rows, ask: AskRows, names: Iterable[str], record: Record | None, seal: Seal | None
) -> tuple[list[Row], list[str]]:
    """Rows that can be right, and a sentence for each other one; with a seal, all must be signed."""
    known, rows, bad = frozenset(names), [], []
    notes = _notes(given, ask, known, seal)
    last = ask.first - 1
    for number, line in enumerate(given.lines[: ask.last - ask.first + 1], ask.first):
        row = _row(line, ask, known, notes, seal)
        if isinstance(row, Row) and not last < row.round <= ask.last:
            row = "it is of another round"
        if isinstance(row, Row) and not _fits(row, record):
            row = "it does not fit the record"
        if isinstance(row, str):
            bad.append(f"The row of round {number} is left out: {plain(row)}.")
        else:
            last = row.round
            rows.append(plain(row))
    return rows, bad


def _fits(row: Row, record: Record | None) -> bool:
    """Whether the row of the last round says what the record says."""
    if record is None or row.round != record.round:
        return True
    return (row.used, row.total_seconds) == (record.ledger.used, record.ledger.seconds)


def _row(line: bytes, ask: AskRows, known: frozenset[str], notes: dict[int, bytes], seal: Seal | None) -> Row | str:
    """The row, with the scores of its note; a few words about what is wrong where it is none."""
    try:
        opened = opened_round(seal, ROW, ask.run, line, known)
    except Unsealed as error:
        return f"it {error}"
    row = sound_row(with_scores(opened.content, notes))
    if isinstance(row, str) or not opened.by:
        return row
    if row.round != opened.round:
        return f"it was signed for round {opened.round}"
    if row.node is None:  # nobody trained
        return row
    trained = row.sites[row.node] if isinstance(row.sites, tuple) and row.node < len(row.sites) else "nobody"
    return row if trained == opened.by else f"{trained} is said to have trained, and {opened.by} signed it"


def _notes(given: Rows, ask: AskRows, known: frozenset[str], seal: Seal | None) -> dict[int, bytes]:
    """What was noted of rounds, as far as a site signed it."""
    found: dict[int, bytes] = {}
    for round_, note in given.notes.items():
        try:
            opened = opened_round(seal, NOTE, ask.run, note, known)
        except Unsealed:
            continue
        if not opened.by or opened.round == round_:
            found[round_] = opened.content
    return found

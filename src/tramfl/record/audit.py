"""The audit trail: which site made which weights out of which, and what became of rounds that do not count.

Every site appends what it sees to a file of its own, in the folder of its state. `tramfl pull` gathers them into the
run's folder as `audit.jsonl`. A round is found there by the digest of its weights, also long after it was dropped.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tramfl.notation import Digest

AUDIT_FILE = "audit.jsonl"
DROPPED_FILE = "audit-dropped.jsonl"
"""At a site: the rounds that do not count. In a file of their own, so that the many that count push none out."""
MOST_BYTES = 2 << 20
"""A site starts another file above this, and keeps the one before it: twice this of each of the two."""
MOST_TEXT = 500
MOST_COUNT = 1 << 53

AuditKind = Literal["trained", "committed", "rejected", "refused", "dropped", "rolled-back"]


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """What happened to the weights of one round."""

    at: float
    """Seconds since 1970, by the clock of the site that noted it first."""
    what: AuditKind
    """trained: a site made them. committed: the record has them. rejected: their trainer did not accept them.
    refused: a site that was sent them did not accept them. dropped: a takeover went back to a round before.
    rolled-back: an operator did."""
    run: str
    epoch: int
    round: int
    digest: Digest
    parent: Digest | None = None
    """What they were trained from, where that is known."""
    author: str | None = None
    """The site that trained them, or, of `refused`, that sent them; null where no site that noted it knows."""
    samples: int = 0
    reason: str = ""
    """Why they do not count."""
    noted_by: tuple[str, ...] = ()
    """The sites that say so; each of them could be wrong, or lie."""

    @property
    def counts_not(self) -> bool:
        """Whether the round was taken back, or never counted."""
        return self.what not in ("trained", "committed")

    @property
    def key(self) -> tuple[object, ...]:
        """What two notes of the same entry have in common, from whichever site they come."""
        return self.what, self.run, self.epoch, self.round, self.digest


class AuditFile:
    """A site's own trail: append-only, of bounded size."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._counting, self._dropped = folder / AUDIT_FILE, folder / DROPPED_FILE
        self._most_bytes = most_bytes

    def note(self, entry: AuditEntry) -> None:
        """Append one entry. Raises OSError."""
        path = self._dropped if entry.counts_not else self._counting
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size >= self._most_bytes:
                os.replace(path, _before(path))
        with path.open("ab") as file:
            # What a crash left of a line must not spoil the next one.
            cut = file.tell() > 0 and not _ends_whole(path)
            file.write((b"\n" if cut else b"") + msgspec.json.encode(entry) + b"\n")

    def entries(self, run: str | None = None) -> list[AuditEntry]:
        """What was noted of a run, or of all, in order of time."""
        paths = [file for path in (self._counting, self._dropped) for file in (_before(path), path)]
        return sorted((e for path in paths for e in read_audit(path) if run in (None, e.run)), key=_by_time)


def _by_time(entry: AuditEntry) -> tuple[float, int]:
    return entry.at, entry.epoch


def _before(path: Path) -> Path:
    """The file that was full before this one: audit.jsonl has audit.1.jsonl."""
    return path.with_suffix(f".1{path.suffix}")


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def read_audit(path: Path) -> Iterator[AuditEntry]:
    """The entries of a file; none where there is no file, and lines that are no entries are left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        if (entry := sound_entry(line)) is not None:
            yield entry


_decode = msgspec.json.Decoder(AuditEntry).decode


def sound_entry(line: bytes) -> AuditEntry | None:
    """The entry in a line; None where no site would write it."""
    try:
        entry = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    texts = (entry.run, entry.digest, entry.parent or "", entry.author or "", entry.reason, *entry.noted_by)
    counts = (entry.epoch, entry.round, entry.samples)
    sound = all(0 <= count < MOST_COUNT for count in counts) and all(len(text) <= MOST_TEXT for text in texts)
    return entry if sound and abs(entry.at) < MOST_COUNT else None


def gathered(
    trails: Iterable[tuple[str, Iterable[AuditEntry]]], signed: Mapping[tuple[int, int], str] | None = None
) -> list[AuditEntry]:
    """The trails of several sites as one, in order of time: each entry once, with the sites that noted it.

    A site can lie in its trail. For what a site trained or rejected, its own trail alone counts. Who made the weights
    of a round that counts is proved by the row of its epoch and round, `signed` by the site that trained it. Without
    such a row, the author is the one that most of the sites noted.
    """
    found: dict[tuple[object, ...], AuditEntry] = {}
    claims: dict[tuple[object, ...], Counter[str]] = {}
    for site, entries in trails:
        for entry in entries:
            if entry.what in ("trained", "rejected") and entry.author != site:
                continue
            key = entry.key
            before = found.get(key)
            found[key] = replace(entry, noted_by=(site,)) if before is None else _joined(before, entry, site)
            if entry.author is not None:
                claims.setdefault(key, Counter())[entry.author] += 1
    trained = {e.digest: _most_named(claims[about]) for about, e in found.items() if e.what == "trained"}
    named = []
    for about, entry in found.items():
        author = (signed or {}).get((entry.epoch, entry.round)) if entry.what == "committed" else None
        named.append(replace(entry, author=author or _most_named(claims.get(about)) or trained.get(entry.digest)))
    return _in_order(named)


def completed(entries: Iterable[AuditEntry], earlier: Iterable[AuditEntry], run: str) -> list[AuditEntry]:
    """A trail of a run, with what an earlier trail of it had: sites forget what is old, and some may not answer."""
    found = {entry.key: entry for entry in earlier if entry.run == run}
    return _in_order({**found, **{entry.key: entry for entry in entries}}.values())


def _in_order(entries: Iterable[AuditEntry]) -> list[AuditEntry]:
    return sorted(entries, key=lambda e: (e.at, e.epoch, e.round, e.what))


def _most_named(claims: Counter[str] | None) -> str | None:
    """The author that most sites name; None where two are named equally often. Sites that name none do not count."""
    ranked = claims.most_common(2) if claims else []
    return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None


def _joined(one: AuditEntry, other: AuditEntry, site: str) -> AuditEntry:
    return replace(
        one,
        at=min(one.at, other.at),
        parent=one.parent or other.parent,
        samples=one.samples or other.samples,
        noted_by=tuple(sorted({*one.noted_by, site})),
    )

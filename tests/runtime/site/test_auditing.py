"""What a site notes in its audit trail, from the records that it sees and from its own work."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tramfl.circulation.commands import Train
from tramfl.circulation.custody import Record, Safe, Weights, first_record, numbered
from tramfl.circulation.phases import Assignment
from tramfl.notation import Decision, Loads
from tramfl.runtime.site.auditing import Auditor

FIRST = first_record("run", 0, "d0", (0, 1, 2), 1, numbered(3))
TRAIN = Train(7, "d0", 1, Assignment(0, Decision("p", 1, (30,), 1.0, 0.0, 0.0, "So."), Loads((1.0,), (1.0,)), 0.0))


class Site:
    """One site's auditor, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.logged: list[tuple[str, object]] = []
        self.auditor = Auditor(folder, "2", lambda: 5.0, self._log)

    def _log(self, event: str, **fields: object) -> None:
        self.logged.append((event, fields["reason"]))

    def noted(self) -> list[tuple[str, int, str, str | None, str | None]]:
        return [(e.what, e.round, e.digest, e.parent, e.author) for e in self.auditor.entries("run")]


def committed(record: Record, by: int) -> Record:
    digest = f"d{record.round + 1}" + "x" * (record.epoch - 1)
    return replace(record, holder=by, weights=Weights(digest, (by,)), ledger=record.ledger.after((3,), 1.0))


def safe(record: Record, to: int) -> Record:
    copies = (*record.weights.copies, to)
    kept = Safe(record.round, record.weights.digest, copies, record.ledger)
    return replace(record, holder=to, weights=replace(record.weights, copies=copies), safe=kept)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def seen(site: Site, *records: Record) -> None:
    for record in records:
        site.auditor.saw(record)


def test_a_site_notes_who_made_which_weights_out_of_which(site: Site) -> None:
    one = committed(FIRST, by=0)
    skipped = replace(one, ledger=one.ledger.after((0,), 1.0))
    seen(site, FIRST, one, safe(one, 1), committed(safe(one, 1), by=1), skipped)
    assert site.noted() == [("committed", 1, "d1", None, "0"), ("committed", 2, "d2", "d1", "1")]


def test_rounds_that_a_takeover_drops_stay_in_the_trail_also_of_a_site_that_was_started_again_meanwhile(
    site: Site, tmp_path: Path
) -> None:
    one = safe(committed(FIRST, by=0), 1)
    two = committed(one, by=1)
    three = committed(two, by=1)
    seen(site, FIRST, one, two, three)
    back = replace(one, epoch=2, holder=0)
    again = Site(tmp_path)
    seen(again, back, committed(back, by=0))
    assert again.noted()[3:] == [
        ("dropped", 2, "d2", "d1", "1"),
        ("dropped", 3, "d3", "d2", "1"),
        ("committed", 2, "d2x", "d1", "0"),
    ]
    (entry,) = [e for e in again.auditor.entries("run") if e.digest == "d3" and e.what == "dropped"]
    assert entry.reason == "epoch 2 goes on from round 1 at 0"


def test_a_takeover_that_loses_nothing_drops_nothing(site: Site) -> None:
    one = committed(FIRST, by=0)
    seen(site, one, replace(one, epoch=2, holder=1))
    assert [what for what, *_ in site.noted()] == ["committed"]


def test_a_site_notes_what_it_trained_what_it_rejected_and_what_it_refused(site: Site) -> None:
    site.auditor.made(FIRST, TRAIN, "good")
    site.auditor.made(FIRST, TRAIN, "bad", "its loss is no finite number")
    site.auditor.refused(FIRST, "0", "worse", "r" * 10_000)
    assert site.noted() == [
        ("trained", 1, "good", "d0", "2"),
        ("rejected", 1, "bad", "d0", "2"),
        ("refused", 0, "worse", None, "0"),
    ]
    assert [entry.samples for entry in site.auditor.entries("run")] == [30, 30, 0]
    assert len(msgspec.json.encode(site.auditor.entries("run")[-1])) < 1000


def test_a_trail_that_cannot_be_written_is_logged_once_and_stops_nothing(site: Site, tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    seen(site, committed(FIRST, by=0), committed(committed(FIRST, by=0), by=0))
    assert site.logged == [("audit-not-kept", "Is a directory")]


def test_a_site_that_names_another_in_the_record_of_its_own_round_is_noted_as_its_author(site: Site) -> None:
    one = committed(FIRST, by=0)
    two = committed(one, by=0)
    seen(site, FIRST, one)
    site.auditor.saw(replace(two, weights=replace(two.weights, copies=(1,))), writer="0")
    three = replace(committed(two, by=0), weights=Weights("d3", (1, 2)))
    site.auditor.saw(three, writer="0")
    assert [author for *_, author in site.noted()] == ["0", "0", "0"]

"""A site's trail is append-only and bounded; the trails of several sites become one, with each entry's witnesses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tramfl.record import AuditEntry, AuditFile, completed, gathered, read_audit, sound_entry

ENTRY = AuditEntry(100.0, "committed", "run", 1, 5, "d5", "d4", "a", 30)


def test_what_was_noted_is_read_back_in_order_and_by_run(tmp_path: Path) -> None:
    file = AuditFile(tmp_path)
    other = replace(ENTRY, run="other")
    for entry in (ENTRY, other, replace(ENTRY, round=6)):
        file.note(entry)
    assert AuditFile(tmp_path).entries("run") == [ENTRY, replace(ENTRY, round=6)]
    assert AuditFile(tmp_path).entries() == [ENTRY, other, replace(ENTRY, round=6)]


def test_a_line_that_a_crash_cut_short_costs_no_other(tmp_path: Path) -> None:
    file = AuditFile(tmp_path)
    file.note(ENTRY)
    with (tmp_path / "audit.jsonl").open("ab") as cut:
        cut.write(b'{"at": 1')
    file.note(replace(ENTRY, round=6))
    assert [entry.round for entry in file.entries()] == [5, 6]


def test_a_trail_has_a_bounded_size_and_keeps_the_newest(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, most_bytes=1000)
    for round_ in range(100):
        file.note(replace(ENTRY, round=round_))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2300
    rounds = [entry.round for entry in file.entries()]
    assert rounds == list(range(rounds[0], 100))


def test_rounds_that_count_push_none_out_that_was_dropped(tmp_path: Path) -> None:
    file, dropped = AuditFile(tmp_path, most_bytes=1000), replace(ENTRY, what="dropped", reason="lost")
    file.note(dropped)
    for round_ in range(6, 100):
        file.note(replace(ENTRY, at=100.0 + round_, round=round_))
    assert file.entries()[0] == dropped
    assert file.entries()[-1].round == 99


def test_a_later_trail_of_a_run_keeps_what_an_earlier_one_had_of_it_and_nothing_of_another() -> None:
    dropped, other = replace(ENTRY, what="dropped"), replace(ENTRY, run="other")
    newer = replace(ENTRY, author="b")
    later = replace(ENTRY, at=200.0, round=6)
    assert completed([newer, later], [ENTRY, dropped, other], "run") == [newer, dropped, later]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[" * 5000,
        b'{"at": 1, "what": "lied", "run": "run", "epoch": 1, "round": 1, "digest": "d"}',
        msgspec.json.encode(replace(ENTRY, round=-1)),
        msgspec.json.encode(replace(ENTRY, reason="x" * 501)),
        msgspec.json.encode(replace(ENTRY, at=1e300)),
    ],
)
def test_a_line_that_no_site_would_write_is_left_out(line: bytes, tmp_path: Path) -> None:
    assert sound_entry(line) is None
    path = tmp_path / "audit.jsonl"
    path.write_bytes(line + b"\n" + msgspec.json.encode(ENTRY) + b"\n")
    assert list(read_audit(path)) == [ENTRY]


def test_no_file_is_an_empty_trail(tmp_path: Path) -> None:
    assert list(read_audit(tmp_path / "none")) == []


def test_trails_become_one_in_which_each_entry_names_the_sites_that_say_so() -> None:
    unknown = replace(ENTRY, at=99.0, author=None, parent=None)
    dropped = replace(unknown, at=120.0, what="dropped", reason="epoch 2 goes on from round 4 at b")
    made = replace(ENTRY, at=98.0, what="trained")
    lie = replace(made, digest="d6", author="a")
    found = gathered([("b", [unknown, dropped]), ("a", [made, ENTRY]), ("c", [unknown, lie])])
    assert [(e.what, e.author, e.noted_by) for e in found] == [
        ("trained", "a", ("a",)),  # what c says that a trained is left out: a says it of itself
        ("committed", "a", ("a", "b", "c")),
        ("dropped", "a", ("b",)),
    ]
    assert found[1].parent == "d4"
    assert found[2].author == "a", "its trainer says that it made these weights"


def test_one_lying_trail_names_no_other_site_as_the_author_of_a_round() -> None:
    committed = replace(ENTRY, what="committed", author="e")
    lie = replace(committed, author="b")
    honest = [("a", [committed]), ("b", [committed])]
    forged = [replace(ENTRY, what=what, author="b", digest="f" * 64) for what in ("trained", "rejected")]
    found = gathered([("e", [lie, *forged]), *honest])
    assert [(entry.author, entry.noted_by) for entry in found] == [("e", ("a", "b", "e"))]
    # Where honest sites do not know, a signed row does.
    unknown = replace(committed, author=None)
    (entry,) = gathered([("e", [lie]), ("a", [unknown])], {(ENTRY.epoch, ENTRY.round): "e"})
    assert entry.author == "e"
    # Two sites that contradict each other prove nothing.
    assert [e.author for e in gathered([("e", [lie]), ("a", [committed])])] == [None]

"""The operator takes a row only with the signature of the site that trained it, whichever site passes it on."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tests.record.test_rows import row
from tramfl.record import Row, Scores
from tramfl.runtime.operator.row_reading import read_rows
from tramfl.runtime.registers.records import NOTE, ROW, sealed_round
from tramfl.runtime.training.scoring import Note
from tramfl.runtime.transport import Credentials
from tramfl.runtime.transport.certificates import Authority
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import AskRows, Rows

NAMES = ("ash", "birch", "cedar")
OURS = Authority.create("ours")
ASK = AskRows("run", 1, 4)


def seal(name: str, authority: Authority = OURS, past: bytes = b"") -> SiteSeal:
    issued = authority.issue(name)
    return SiteSeal(name, Credentials(OURS.certificate_pem, issued.certificate_pem, issued.key_pem), past=past)


READER = seal("operator")


def trained(round_: int, node: int | None = 1) -> Row:
    return replace(row(round_), sites=NAMES, node=node)


def line(made: Row, by: str = "birch", round_: int | None = None, run: str = "run", of: Authority = OURS) -> bytes:
    content = msgspec.json.encode(made)
    return sealed_round(seal(by, of), ROW, run, made.round if round_ is None else round_, content)


def test_a_forged_row_is_named_and_skipped_and_the_others_stay() -> None:
    another = Authority.create("ours")
    for forged, reason in (
        (msgspec.json.encode(trained(2)), "it is not signed"),
        (line(trained(2), "cedar"), "birch is said to have trained, and cedar signed it"),
        (line(trained(2), of=another), "it is not signed by a site"),
        (line(trained(2), run="another"), "it is of run another"),
        (line(trained(2), round_=7), "it was signed for round 7"),
        (line(trained(1)), "it is of another round"),
        (line(trained(2), "operator"), "is no site of this federation"),
    ):
        given = Rows((line(trained(1)), forged, line(trained(3, None), "cedar")))
        rows, bad = read_rows(given, ASK, NAMES, None, READER)
        assert [found.round for found in rows] == [1, 3]
        assert len(bad) == 1
        assert bad[0].startswith("The row of round 2 is left out: ")
        assert reason in bad[0]


def test_scores_come_from_notes_that_a_site_signed_for_the_round() -> None:
    def note(accuracy: float, round_: int, by: SiteSeal | None) -> bytes:
        content = msgspec.json.encode(Note(1, Scores(test_accuracy=accuracy)))
        return sealed_round(by, NOTE, "run", round_, content)

    lines = tuple(line(replace(trained(n), epoch=1, test_accuracy=None)) for n in (1, 2, 3))
    notes = {1: note(0.5, 1, seal("cedar")), 2: note(0.9, 2, None), 3: note(0.9, 1, seal("cedar"))}
    rows, bad = read_rows(Rows(lines, notes), ASK, NAMES, None, READER)
    assert bad == []
    assert [found.test_accuracy for found in rows] == [0.5, None, None]


def test_rows_of_the_time_of_an_authority_that_was_rotated_out_still_count() -> None:
    former = Authority.create("ours")
    given = Rows((line(trained(1), of=former), line(trained(2))))
    assert len(read_rows(given, ASK, NAMES, None, READER)[1]) == 1
    rows, bad = read_rows(given, ASK, NAMES, None, seal("operator", past=former.certificate_pem))
    assert (len(rows), bad) == (2, [])


def test_without_certificates_rows_are_taken_as_they_are() -> None:
    rows, bad = read_rows(Rows((msgspec.json.encode(trained(1)),)), ASK, NAMES, None, None)
    assert (rows, bad) == ([trained(1)], [])

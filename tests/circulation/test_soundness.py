"""What makes a record one that a site may act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from tramfl.circulation.changes import Resign, RollBack, TakeOver
from tramfl.circulation.custody import Entry, Record, Safe, Versioned, Weights, first_record
from tramfl.circulation.soundness import fault, fault_in_step, fault_in_writing
from tramfl.notation import Ledger

GOOD = first_record("run-1", 0, "a" * 64, (0, 1), 3)
LATER = replace(
    GOOD,
    epoch=2,
    ledger=Ledger((5, 6, 7), 12.0, 4, 1),
    safe=replace(GOOD.safe, round=2, ledger=Ledger((1, 2, 3), 6.0, 2)),
)


@dataclass
class Wrong:
    """One change that no site makes, and a word of the complaint."""

    change: dict[str, Any]
    word: str

    @property
    def record(self) -> Record:
        return replace(GOOD, **self.change)


WRONG = [
    Wrong({"holder": 7}, "site number 7"),
    Wrong({"holder": -1}, "site number -1"),
    Wrong({"run": "../../etc"}, "no name for a run"),
    Wrong({"run": "a" * 5000}, "no name for a run"),
    Wrong({"epoch": 0}, "epoch"),
    Wrong({"epoch": 1 << 62}, "epoch"),
    Wrong({"weights": replace(GOOD.weights, digest="../x")}, "SHA-256"),
    Wrong({"weights": replace(GOOD.weights, copies=(0, 3))}, "site number 3"),
    Wrong({"weights": replace(GOOD.weights, copies=(0, 0))}, "twice"),
    Wrong({"weights": replace(GOOD.weights, since=float("nan"))}, "moment"),
    Wrong({"safe": replace(GOOD.safe, round=1, ledger=Ledger((0, 0, 0), 0.0, 1))}, "round 1"),
    Wrong({"safe": replace(GOOD.safe, round=1)}, "round 1"),
    Wrong({"safe": replace(GOOD.safe, ledger=Ledger((0, 0)))}, "labels"),
    Wrong({"ledger": Ledger((0, 0, -1))}, "count"),
    Wrong({"ledger": Ledger((0, 0, 1 << 60))}, "count"),
    Wrong({"ledger": Ledger((0, 0, 0), float("inf"))}, "seconds"),
    Wrong({"ledger": Ledger((0, 0, 0), float("nan"))}, "seconds"),
    Wrong({"ledger": Ledger((0, 0, 0), -1.0)}, "seconds"),
    Wrong({"ledger": Ledger((0, 0, 0), 0.0, 1, 2)}, "count"),
    Wrong({"members": (*GOOD.members, Entry("0"))}, "two of one name"),
    Wrong({"members": (*GOOD.members, Entry("../x"))}, "no member"),
    Wrong({"members": (*GOOD.members, Entry("x", "y" * 1000))}, "no member"),
    Wrong({"ledger": Ledger(()), "safe": replace(GOOD.safe, ledger=Ledger(()))}, "labels"),
]


def test_records_that_sites_write_are_sound() -> None:
    assert fault(GOOD) is None
    assert fault(LATER) is None
    assert fault(replace(LATER, holder=None)) is None
    assert fault_in_step(GOOD, LATER) is None
    joined = replace(LATER, members=(*LATER.members, Entry("new", "there:1")))
    assert fault(replace(joined, holder=len(LATER.members))) is None
    assert fault_in_step(LATER, joined) is None


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.word)
def test_a_record_that_would_break_a_site_is_named(wrong: Wrong) -> None:
    assert wrong.word in (fault(wrong.record) or "")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"epoch": 1}, "epoch fell"),
        ({"ledger": Ledger((5, 6, 6), 11.0, 3, 1)}, "round fell"),
        ({"safe": GOOD.safe}, "safe round fell"),
        ({"ledger": Ledger((5, 6), 12.0, 4, 1)}, "labels"),
        ({"members": LATER.members[::-1]}, "lost its number"),
    ],
)
def test_a_record_that_undoes_what_was_done_is_named(change: dict[str, Any], word: str) -> None:
    assert word in (fault_in_step(LATER, replace(LATER, **change)) or "")
    assert fault_in_step(LATER, replace(LATER, run="another", **change)) is None


def test_a_stopped_run_does_not_go_on() -> None:
    assert "stopped" in (fault_in_step(replace(LATER, status="stopped"), LATER) or "")


def test_every_way_to_begin_an_epoch_goes_on_from_weights_that_the_run_has() -> None:
    safe = replace(GOOD.safe, round=2, digest="b" * 64, copies=(0, 1), ledger=Ledger((1, 2, 3), 6.0, 2))
    kept = (Safe(1, "c" * 64, (0, 1), Ledger((1, 1, 1), 3.0, 1)),)
    now = Ledger((5, 6, 7), 12.0, 4)
    record = replace(GOOD, weights=Weights("d" * 64, (0,)), ledger=now, safe=safe, kept=kept, keep_versions=3)
    paused = replace(record, status="paused")
    made = [
        (record, TakeOver(1, 7, "d" * 64).applied(record, 1)),
        (record, TakeOver(1, 7, "b" * 64).applied(record, 1)),
        (record, Resign(1, True).applied(record, 0)),
        *((paused, RollBack(1, version.round).applied(paused, 1)) for version in paused.versions),
    ]
    assert len(made) == 5
    for before, after in made:
        assert after is not None
        writer = before.members[0 if after.epoch == before.epoch else 1].name
        assert fault_in_writing(Versioned(before, 7), Versioned(after, 8, writer, 7)) is None
        other = replace(after, epoch=2, weights=replace(after.weights, digest="e" * 64))
        assert "did not have" in (fault_in_writing(Versioned(before, 7), Versioned(other, 8, writer, 7)) or "")
        assert fault_in_writing(Versioned(before, 7), Versioned(other, 9, writer, 8)) is None, (
            "not known: one is missing"
        )

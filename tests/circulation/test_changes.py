"""Each change fits only the record it was made for, and says the right thing about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tramfl.circulation.changes import Change, Commit, HandOver, MarkSafe, Resign, TakeOver
from tramfl.circulation.custody import Entry, MemoryRegister, Record, Safe, Weights, numbered
from tramfl.notation import Ledger

ME = 0
RECORD = Record(
    run="run",
    epoch=3,
    holder=ME,
    weights=Weights("w7", (ME,), since=70.0),
    safe=Safe(5, "w5", (ME, 1), Ledger((5, 5), 50.0, 5), since=50.0),
    ledger=Ledger((7, 8), 70.0, 7),
    members=numbered(3),
)

HAND_OVER = HandOver(3, 7, "w7", 2)
COMMIT = Commit(3, 7, "w7", "w8", (1, 2), 4.0, 74.0)
TAKE_NEWEST = TakeOver(3, 1, "w7")
TAKE_SAFE = TakeOver(3, 1, "w5")
MARK_SAFE = MarkSafe(3, 6, "w6", (ME, 2), Ledger((6, 6), 60.0, 6), 60.0)
RESIGN = Resign(3, has_safe=True)

_OTHER_EPOCHS = {"an older epoch": replace(RECORD, epoch=2), "a newer epoch": replace(RECORD, epoch=4)}
_MOVED = {
    **_OTHER_EPOCHS,
    "another holder": replace(RECORD, holder=1),
    "no holder": replace(RECORD, holder=None),
    "another round": replace(RECORD, ledger=Ledger((7, 8), 70.0, 8)),
    "other weights": replace(RECORD, weights=Weights("w7b", (ME,))),
}
_VOID: list[tuple[Change, str, Record]] = [
    *((change, why, record) for change in (HAND_OVER, COMMIT) for why, record in _MOVED.items()),
    *(
        (change, why, record)
        for change in (TAKE_NEWEST, TAKE_SAFE, MARK_SAFE, RESIGN)
        for why, record in _OTHER_EPOCHS.items()
    ),
    (TakeOver(3, 1, "w6"), "weights that the record does not name", RECORD),
    (MARK_SAFE, "a safe round as new", replace(RECORD, safe=replace(RECORD.safe, round=6))),
    (MARK_SAFE, "a newer safe round", replace(RECORD, safe=replace(RECORD.safe, round=7))),
    (RESIGN, "another holder", replace(RECORD, holder=1)),
]


@pytest.mark.parametrize("change", [HAND_OVER, COMMIT, TAKE_NEWEST, TAKE_SAFE, MARK_SAFE, RESIGN])
def test_a_change_fits_the_record_it_was_made_for(change: Change) -> None:
    assert change.applied(RECORD, ME) is not None


@pytest.mark.parametrize(
    ("change", "record"),
    [pytest.param(change, record, id=f"{type(change).__name__}-{why}") for change, why, record in _VOID],
)
def test_a_change_does_not_fit(change: Change, record: Record) -> None:
    assert change.applied(record, ME) is None


def test_a_handover_makes_the_receiver_holder_and_the_weights_safe() -> None:
    after = HAND_OVER.applied(RECORD, ME)
    assert after is not None
    assert (after.holder, after.epoch, after.round) == (2, 3, 7)
    assert after.weights == Weights("w7", (0, 2), 70.0)
    assert after.safe == Safe(7, "w7", (0, 2), RECORD.ledger, 70.0)


def test_a_commit_adds_its_samples_and_seconds_and_leaves_one_copy() -> None:
    after = COMMIT.applied(RECORD, ME)
    assert after is not None
    assert after.ledger == Ledger((8, 10), 74.0, 8)
    assert after.weights == Weights("w8", (ME,), 74.0)
    assert after.safe == RECORD.safe


def test_a_skipped_round_keeps_every_copy() -> None:
    record = replace(RECORD, weights=Weights("w7", (0, 1, 2)))
    after = Commit(3, 7, "w7", "w7", (0, 0), 1.0, 71.0).applied(record, ME)
    assert after is not None
    assert after.weights == Weights("w7", (0, 1, 2), 71.0)


def test_a_commit_has_landed_only_where_the_record_shows_this_very_one() -> None:
    after = COMMIT.applied(RECORD, ME)
    assert after is not None
    assert COMMIT.landed(after)
    assert COMMIT.landed(replace(after, epoch=4, holder=1)), "someone took over from what it committed"
    assert not COMMIT.landed(RECORD)
    assert not COMMIT.landed(replace(after, weights=Weights("w8b", (ME,), 74.0))), "a former life's"
    assert not COMMIT.landed(replace(after, weights=Weights("w8", (ME,), 73.0))), "a former life's, same weights"


@pytest.mark.parametrize(("change", "ledger"), [(TAKE_NEWEST, RECORD.ledger), (TAKE_SAFE, RECORD.safe.ledger)])
def test_a_takeover_raises_the_epoch_and_takes_the_ledger_of_its_weights(change: TakeOver, ledger: Ledger) -> None:
    after = change.applied(RECORD, 2)
    assert after is not None
    assert (after.epoch, after.holder, after.ledger) == (4, 2, ledger)
    assert after.weights.digest == change.digest
    assert 2 in after.weights.copies
    assert after.safe == RECORD.safe


def test_marking_the_newest_weights_safe_names_the_copy_twice() -> None:
    after = MarkSafe(3, 7, "w7", (0, 2), RECORD.ledger, 70.0).applied(RECORD, ME)
    assert after is not None
    assert after.weights.copies == (0, 2)
    assert after.safe == Safe(7, "w7", (0, 2), RECORD.ledger, 70.0)


@pytest.mark.parametrize("has_safe", [True, False])
def test_who_resigns_is_named_only_for_what_it_still_has(has_safe: bool) -> None:
    after = Resign(3, has_safe=has_safe).applied(RECORD, ME)
    assert after is not None
    assert after.holder is None
    assert after.weights.copies == ()
    assert after.safe.copies == ((0, 1) if has_safe else (1,))


_nodes = st.integers(0, 3)
_digests = st.sampled_from(["w0", "w1", "w2"])
_small = st.integers(0, 3)
_copies = st.frozensets(_nodes, min_size=1).map(lambda s: tuple(sorted(s)))
_ledgers = st.builds(lambda used, round_: Ledger((used,), float(round_), round_), _small, _small)
_records = st.builds(
    Record,
    st.just("run"),
    epoch=_small,
    holder=st.none() | _nodes,
    weights=st.builds(Weights, _digests, _copies),
    safe=st.builds(Safe, _small, _digests, _copies, _ledgers),
    ledger=_ledgers,
    members=st.just((*numbered(3), Entry("gone", None))),
)
_changes = st.one_of(
    st.builds(HandOver, _small, _small, _digests, _nodes),
    st.builds(Commit, _small, _small, _digests, _digests, st.tuples(_small), st.just(1.0), st.just(1.0)),
    st.builds(TakeOver, _small, st.just(1), _digests),
    st.builds(MarkSafe, _small, _small, _digests, _copies, _ledgers, st.just(1.0)),
    st.builds(Resign, _small, st.booleans()),
)


@given(_changes, _records, _nodes)
def test_no_change_ever_fits_an_epoch_but_its_own_or_lowers_it(change: Change, record: Record, me: int) -> None:
    after = change.applied(record, me)
    if after is not None:
        assert record.epoch == change.epoch
        assert after.epoch >= record.epoch
        assert after.run == record.run
        assert after.status == record.status


@given(_changes, _records, _nodes)
def test_within_an_epoch_no_change_lowers_the_round_or_the_order_of_safe_rounds(
    change: Change, record: Record, me: int
) -> None:
    after = change.applied(record, me)
    if after is not None and record.safe.round <= record.round:
        assert after.safe.round >= record.safe.round
        if after.epoch == record.epoch:
            assert after.round >= record.round


@given(_changes, _changes, _records, _nodes, _nodes)
def test_of_two_changes_made_from_one_revision_the_register_takes_one(
    one: Change, other: Change, record: Record, a: int, b: int
) -> None:
    register = MemoryRegister(record)
    revision = register.read().revision
    first, second = one.applied(record, a), other.applied(record, b)
    if first is not None and second is not None:
        assert register.swap(revision, first) is not None
        assert register.swap(revision, second) is None
        assert register.read().record == first

"""The judge is judged: each planted breach of an invariant is found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chaos.evidence import check_disks, check_history, check_logs, check_rows, what_changed
from tramfl.circulation.changes import Commit, HandOver, MarkSafe, Resign, TakeOver
from tramfl.circulation.custody import Record, Versioned, first_record
from tramfl.record import Row, RowDecision, RowLoads

pytestmark = pytest.mark.quick


def made(record: Record | None) -> Record:
    assert record is not None
    return record


FIRST = first_record("run", 0, "w0", (0, 1, 2), 2)
ONE = made(Commit(1, 0, "w0", "w1", (3, 4), 0.1, 10.0).applied(FIRST, 0))
SENT = made(HandOver(1, 1, "w1", 1).applied(ONE, 0))
TWO = made(Commit(1, 1, "w1", "w2", (1, 0), 0.2, 20.0).applied(SENT, 1))
TAKEN = made(TakeOver(1, 0, "w1").applied(TWO, 0))
AGAIN = made(Commit(2, 1, "w1", "v2", (2, 2), 0.3, 30.0).applied(TAKEN, 0))
MARKED = made(MarkSafe(2, 2, "v2", (0, 2), AGAIN.ledger, 30.0).applied(AGAIN, 0))
LINEAGE = (FIRST, ONE, SENT, TWO, TAKEN, AGAIN, MARKED)


def history(*records: Record) -> list[Versioned]:
    return [Versioned(record, revision) for revision, record in enumerate(records, 1)]


def row(record: Record, samples: tuple[int, ...]) -> Row:
    return Row(
        round=record.round,
        epoch=record.epoch,
        holder=0,
        node=0,
        samples=samples,
        loads=RowLoads((), ()),
        compute_seconds=0.0,
        transfer_seconds=0.0,
        idle_seconds=0.0,
        total_seconds=record.ledger.seconds,
        used=record.ledger.used,
        label_variance=0.0,
        decision=RowDecision("by hand", "", 0.0, ()),
    )


def test_a_lawful_history_passes() -> None:
    check_history(history(*LINEAGE))
    kinds = [list(what_changed(a, b)) for a, b in pairwise(LINEAGE)]
    assert kinds == [["commit"], ["hand over"], ["commit"], ["take over"], ["commit"], ["mark safe"]]
    assert list(what_changed(TWO, made(Resign(1, has_safe=True).applied(TWO, 1)))) == ["resign"]
    assert list(what_changed(TWO, replace(TWO, status="paused"))) == ["order"]
    check_history(history(FIRST, *(replace(record, status="paused") for record in (FIRST, ONE, SENT)), SENT, TWO))


@pytest.mark.parametrize(
    "breach",
    [
        lambda: (FIRST, ONE, SENT, TWO, TAKEN, TWO),
        lambda: (FIRST, ONE, SENT, TWO, TAKEN, replace(AGAIN, epoch=1)),
        lambda: (FIRST, ONE, SENT, ONE),
        lambda: (FIRST, ONE, SENT, replace(TWO, holder=2)),
        lambda: (FIRST, ONE, AGAIN),
        lambda: (FIRST, ONE, SENT, replace(TWO, ledger=replace(TWO.ledger, round=3))),
        lambda: (FIRST, ONE, SENT, TWO, replace(TAKEN, safe=FIRST.safe)),
        lambda: (FIRST, ONE, replace(SENT, weights=replace(SENT.weights, copies=(0, 1, 2)))),
        lambda: (FIRST, replace(FIRST, status="stopped"), FIRST),
        lambda: (FIRST, replace(ONE, status="paused")),
        lambda: (FIRST, *(replace(record, status="paused") for record in (FIRST, ONE, SENT, TWO))),
        lambda: (ONE, SENT),
    ],
)
def test_a_record_that_does_not_follow_from_the_one_before_is_found(breach: Callable[[], tuple[Record, ...]]) -> None:
    with pytest.raises(AssertionError):
        check_history(history(*breach()))


def test_rows_that_do_not_add_up_are_found() -> None:
    seen = history(*LINEAGE)
    rows = [row(ONE, (3, 4)), row(AGAIN, (2, 2))]
    check_rows(MARKED, rows, seen)
    for wrong in (rows[:1], [*rows, rows[-1]], [rows[0], row(TWO, (1, 0))], [rows[0], row(AGAIN, (1, 2))]):
        with pytest.raises(AssertionError):
            check_rows(MARKED, wrong, seen)


def committed(epoch: int, round_: int, samples: int) -> dict[str, Any]:
    return {"event": "committed", "run": "run", "epoch": epoch, "round": round_, "samples": samples}


def test_logs_that_tell_another_story_are_found() -> None:
    seen = history(*LINEAGE)
    logged = [committed(1, 1, 7), committed(1, 2, 1), committed(2, 2, 4)]
    check_logs("run", seen, logged, killed=0)
    check_logs("run", seen, logged[1:], killed=1)
    for wrong in (logged[1:], [*logged, logged[0]], [*logged[:2], committed(2, 2, 5)], [*logged, committed(1, 3, 4)]):
        with pytest.raises(AssertionError):
            check_logs("run", seen, wrong, killed=0)


def test_a_copy_that_is_missing_or_damaged_is_found(tmp_path: Path) -> None:
    content = b"weights"
    digest = hashlib.sha256(content).hexdigest()
    record = first_record("run", 0, digest, (0, 1), 2)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        (folder / "runs" / "run").mkdir(parents=True)
        (folder / "runs" / "run" / f"1-0-{digest}.safetensors").write_bytes(content)
    check_disks(record, folders)
    file = folders[1] / "runs" / "run" / f"1-0-{digest}.safetensors"
    file.write_bytes(b"other weights")
    with pytest.raises(AssertionError, match="damaged"):
        check_disks(record, folders)
    file.unlink()
    with pytest.raises(AssertionError, match="it does not"):
        check_disks(record, folders)

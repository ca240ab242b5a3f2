"""The run's record: a row is whole or absent, and what was written reads back byte for byte."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

import tramfl
from tramfl.circulation.custody import Record, Safe, Weights
from tramfl.circulation.phases import Assignment, Outcome
from tramfl.notation import BadInput, Candidate, Decision, Ledger, Loads
from tramfl.record import (
    Row,
    RowDecision,
    RowLoads,
    RowWriter,
    Scores,
    keep_whole_rows,
    read_rows,
    row_of,
    shortened,
)

UNHURRIED = settings(max_examples=50, deadline=None)
"""Two cores are shared: a slow example is no fault."""
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.lists(st.integers(0, 10**12), max_size=4).map(tuple)
REPORTS = st.lists(st.none() | NUMBER, max_size=4).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CANDIDATES = st.builds(
    Candidate,
    node=st.integers(0, 9),
    samples=st.integers(0, 10**9),
    compute_seconds=NUMBER,
    transfer_seconds=NUMBER,
    score=NUMBER,
    score_of_waiting=NUMBER,
    label_variance=NUMBER,
    feasible=st.booleans(),
)
ROWS = st.builds(
    Row,
    round=st.integers(1, 10**6),
    epoch=st.integers(1, 9),
    holder=st.integers(0, 9),
    node=st.none() | st.integers(0, 9),
    samples=COUNTS,
    loads=st.builds(RowLoads, REPORTS, REPORTS),
    compute_seconds=NUMBER,
    transfer_seconds=NUMBER,
    idle_seconds=NUMBER,
    lost_seconds=NUMBER,
    overhead_seconds=st.just(UNSET) | NUMBER,
    total_seconds=NUMBER,
    used=COUNTS,
    label_variance=NUMBER,
    decision=st.builds(RowDecision, TEXT, TEXT, NUMBER, st.lists(CANDIDATES, max_size=2).map(tuple), COUNTS),
    test_accuracy=st.none() | st.floats(0, 1),
    test_loss=st.none() | NUMBER,
    validation_loss=st.none() | NUMBER,
)


def row(number: int) -> Row:
    return Row(
        round=number,
        holder=0,
        node=1,
        samples=(3, 0),
        loads=RowLoads((1e12, 2e12), (None, 2e8)),
        compute_seconds=0.1,
        transfer_seconds=0.25,
        idle_seconds=0.0,
        total_seconds=0.35 * number,
        used=(3 * number, 0),
        label_variance=2.25 * number**2,
        decision=RowDecision("load-aware", "Node 1 trains.", 0.35, ()),
    )


def written(folder: Path, *rows: Row) -> Path:
    path = folder / "rounds.jsonl"
    writer = RowWriter(path)
    for each in rows:
        writer.write(each)
    writer.close()
    return path


@UNHURRIED
@given(rows=st.lists(ROWS, max_size=3))
def test_rows_read_back_as_they_were_and_write_back_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    path = written(tmp_path_factory.mktemp("run"), *rows)
    again = list(read_rows(path))
    assert again == rows
    before = path.read_bytes()
    keep_whole_rows(path, again)
    assert path.read_bytes() == before


def test_a_row_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    writer = RowWriter(path)
    for number in (1, 2, 3):
        writer.write(row(number))
        assert [r.round for r in read_rows(path)] == list(range(1, number + 1))
    writer.close()


def test_writing_goes_on_after_what_is_there(tmp_path: Path) -> None:
    written(tmp_path, row(1))
    assert list(read_rows(written(tmp_path, row(2)))) == [row(1), row(2)]


def test_wherever_a_crash_cuts_the_file_the_whole_rows_before_it_remain(tmp_path: Path) -> None:
    rows = [row(1), row(2)]
    path = written(tmp_path, *rows)
    content = path.read_bytes()
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        assert list(read_rows(path)) == rows[: content[:end].count(b"\n")]


def test_keeping_the_whole_rows_drops_a_half_written_tail(tmp_path: Path) -> None:
    path = written(tmp_path, row(1), row(2))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round":3,"hol')
    keep_whole_rows(path, list(read_rows(path)))
    assert path.read_bytes() == whole
    assert list(read_rows(written(tmp_path, row(3)))) == [row(1), row(2), row(3)]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"round":3,"hol',
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        msgspec.json.encode(row(2)).replace(b'"load-aware"', b'"\xff"'),
        msgspec.json.encode(row(2)).replace(b'"round":2', b'"round":"2"'),
        msgspec.json.encode(row(2)) + msgspec.json.encode(row(2)),
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_bad_line_before_the_last_is_named_by_file_and_number(tmp_path: Path, bad: bytes) -> None:
    path = written(tmp_path, row(1))
    path.write_bytes(path.read_bytes() + bad + b"\n" + msgspec.json.encode(row(3)) + b"\n")
    rows = read_rows(path)
    assert next(rows) == row(1)
    with pytest.raises(BadInput) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{path}, line 2, is not a round's row: ")
    assert str(caught.value).endswith(".")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.jsonl cannot be read: No such file or directory\.$"):
        list(read_rows(tmp_path / "none.jsonl"))


def committed(loads: Loads, holder: int, overhead: float = 0.0) -> Row:
    """The row of a round in which node 1 trained on what `loads` say."""
    decision = Decision("tram", 1, (3, 0), 0.5, 0.25, 0.0, "Node 1 trains.", (), (1,))
    outcome = Outcome(Assignment(holder, decision, loads, 0.0), 1, 0.6, 0.3, 0.0, 2.0, overhead)
    ledger = Ledger((7, 2), 40.0, 5)
    record = Record("run", 2, 1, Weights("new", (1,)), Safe(4, "old", (0, 1), Ledger((4, 2), 37.1, 4)), ledger)
    return row_of(outcome, record, Scores(test_accuracy=0.5))


def test_loads_that_are_not_numbers_become_null() -> None:
    made = committed(Loads((1e12, 2e12, math.nan, math.inf), (math.inf, 2e8, math.nan, math.inf)), holder=0)
    assert made.loads == RowLoads((1e12, 2e12, None, None), (None, 2e8, None, None))
    line = msgspec.json.encode(made)
    assert json.loads(line)["loads"] == {"flops": [1e12, 2e12, None, None], "bandwidth": [None, 2e8, None, None]}
    assert msgspec.json.decode(line, type=Row) == made


def test_a_row_takes_its_times_from_the_outcome_and_its_totals_from_the_record() -> None:
    made = committed(Loads((1e12, 2e12), (math.inf, 2e8)), holder=0)
    assert (made.round, made.epoch, made.holder, made.node) == (5, 2, 0, 1)
    assert (made.compute_seconds, made.transfer_seconds, made.idle_seconds, made.lost_seconds) == (0.6, 0.3, 0.0, 2.0)
    assert (made.samples, made.used, made.total_seconds, made.label_variance) == ((3, 0), (7, 2), 40.0, 6.25)
    assert made.decision == RowDecision("tram", "Node 1 trains.", 0.75, (), (1,))
    assert (made.test_accuracy, made.test_loss) == (0.5, None)


def test_a_row_has_the_overhead_of_real_sites_and_in_virtual_time_no_key_for_it() -> None:
    loads = Loads((1e12, 2e12), (math.inf, 2e8))
    assert committed(loads, 0, 0.04).overhead == 0.04
    assert b"overhead_seconds" not in msgspec.json.encode(committed(loads, 0))
    assert committed(loads, 0).overhead == 0.0


def test_rows_that_fail_half_way_leave_the_file_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path, row(1), row(2))
    before = path.read_bytes()
    path.write_bytes(before + b"garbage\n")
    with pytest.raises(BadInput):
        keep_whole_rows(path, read_rows(path))
    assert path.read_bytes() == before + b"garbage\n"


def test_a_row_of_many_nodes_keeps_the_best_candidates_and_rounded_loads(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("\n".join(",".join(str(5 + (i + c) % 7) for c in range(100)) for i in range(1000)))

    def first(rows: str) -> Row:
        settings = {"partition.held": str(table), "record.rows": rows}
        return tramfl.simulate("mnist-10", train=False, rounds=1, settings=settings).rows[0]

    short, whole = first("short"), first("whole")
    assert len(msgspec.json.encode(short)) < 20_000 < len(msgspec.json.encode(whole))
    assert short.decision.weighed == len(whole.decision.candidates) == 1000
    assert set(short.decision.candidates) < set(whole.decision.candidates)
    assert short.node in {candidate.node for candidate in short.decision.candidates}
    assert (short.node, short.samples, short.total_seconds) == (whole.node, whole.samples, whole.total_seconds)
    again = msgspec.json.decode(msgspec.json.encode(short), type=Row)
    assert again == short
    for found, exact in zip(again.loads.in_full.flops, whole.loads.flops, strict=True):
        assert found == pytest.approx(exact, abs=1e10), "a thousandth of the largest at most"
    foreseen = shortened(replace(whole, actual=whole.loads))
    assert foreseen.actual == short.loads, "predicted and actual loads are rounded alike"


def test_a_row_of_few_nodes_is_as_it_was() -> None:
    row = tramfl.simulate("digits-10", train=False, rounds=1).rows[0]
    assert shortened(row) is row
    assert b"steps" not in msgspec.json.encode(row)
    assert b"weighed" not in msgspec.json.encode(row)

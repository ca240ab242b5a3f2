"""The invariants of docs/design.md, against what a federation left behind: every record, rows, logs and disks.

1. one record at a time, epochs and safe rounds never fall, rounds only by a takeover: every record must follow from
   the one before by one of the six changes;
2. what the record says is on a disk is on that disk, with the right SHA-256;
3. the ledger is the sum of the rows, and the rows are what the sites' logs say was trained;
4. nothing of an older epoch comes after a newer one: that, too, shows in what follows from what;
5. the run gets on: that is what the tests wait for;
6. a paused or stopped run commits one round at most, and a stopped run stays stopped;
10. no site trains on with more than `unsafe_rounds` rounds that lie at it alone while another site reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from tramfl.circulation.changes import Commit, HandOver, MarkSafe, Resign, RollBack, SetStatus, TakeOver
from tramfl.circulation.custody import Record, Versioned
from tramfl.circulation.phases import Limits
from tramfl.record import Row
from tramfl.runtime.weights.store import file_digest


def check_history(history: Sequence[Versioned]) -> None:
    """Each record is the one before it, changed as the round machine or an operator may change it."""
    assert history, "the register has no history"
    first = history[0].record
    assert (first.epoch, first.round, first.safe.round) == (1, 0, 0)
    for before, after in pairwise(history):
        assert after.revision > before.revision, (before, after)
        kinds = list(what_changed(before.record, after.record))
        assert kinds, f"nothing may turn\n{before}\ninto\n{after}"
    for a, b in pairwise(v.record for v in history):
        assert b.epoch >= a.epoch
        assert b.epoch > a.epoch or b.round >= a.round
        assert b.safe.round >= a.safe.round or b.safe in a.kept
        assert b.round >= b.safe.round
    check_rest([v.record for v in history])


def check_rest(records: Sequence[Record]) -> None:
    """After every pause and stop, one round is committed at most: the one in hand."""
    committed = 0
    for a, b in pairwise(records):
        if b.status == "running" or b.status != a.status:
            committed = 0
        elif b.epoch == a.epoch and b.round > a.round:
            committed += 1
            assert committed <= 1, f"round {b.round} was begun after the run was {b.status}"


def what_changed(a: Record, b: Record) -> Iterator[str]:
    """The names of the changes that make b of a."""
    if a.run != b.run:
        return
    holder = -1 if a.holder is None else a.holder
    if a.status != b.status:
        if b == SetStatus(a.epoch, b.status).applied(a, holder):
            yield "order"
        return
    if b.holder is not None and b == HandOver(a.epoch, a.round, a.weights.digest, b.holder).applied(a, holder):
        yield "hand over"
    if b.holder is not None:
        for digest in (a.weights.digest, a.safe.digest):
            if b == TakeOver(a.epoch, 0, digest).applied(a, b.holder):
                yield "take over"
    safe = b.safe
    mark = MarkSafe(a.epoch, safe.round, safe.digest, safe.copies, safe.ledger, safe.since)
    if b == mark.applied(a, holder):
        yield "mark safe"
    if any(b == Resign(a.epoch, has_safe).applied(a, holder) for has_safe in (True, False)):
        yield "resign"
    if _is_commit(a, b, holder):
        yield "commit"
    if b == RollBack(a.epoch, b.round).applied(a, holder):
        yield "roll back"


def _is_commit(a: Record, b: Record, holder: int) -> bool:
    samples = tuple(y - x for x, y in zip(a.ledger.used, b.ledger.used, strict=True))
    seconds = b.ledger.seconds - a.ledger.seconds
    commit = Commit(a.epoch, a.round, a.weights.digest, b.weights.digest, samples, seconds, b.weights.since)
    made = commit.applied(a, holder)
    # Seconds are a sum of floats: a difference of two sums does not give the term back to the last bit.
    if made is None or made.round != b.round or min(seconds, *samples) < 0:
        return False
    return replace(made, ledger=b.ledger) == b


def commits(history: Sequence[Versioned]) -> list[Record]:
    """The records that were the first to contain their round."""
    records = [v.record for v in history]
    return [b for a, b in pairwise(records) if b.round == a.round + 1 and b.epoch == a.epoch]


def check_rows(record: Record, rows: Sequence[Row], history: Sequence[Versioned]) -> None:
    """Rounds without gap or double, whose samples add up to the ledger, each as the record took it."""
    assert [row.round for row in rows] == list(range(1, record.round + 1))
    total = (
        np.sum([row.samples for row in rows], axis=0, dtype=int).tolist() if rows else [0] * len(record.ledger.used)
    )
    assert tuple(total) == record.ledger.used
    for before, after in pairwise(rows):
        assert after.used == tuple(np.add(before.used, after.samples).tolist()), after
        assert after.epoch >= before.epoch
    made = {(r.epoch, r.round, r.ledger.used): r for r in commits(history)}
    for row in rows:
        record = made[row.epoch, row.round, row.used]
        others = any(flops is not None for node, flops in enumerate(row.loads.flops) if node != row.holder)
        if row.node == row.holder and others:
            assert record.unsafe_rounds <= Limits().unsafe_rounds, record


def check_logs(run: str, history: Sequence[Versioned], events: Iterable[dict[str, Any]], killed: int) -> None:
    """What the sites say they committed is what the register took; only who was killed may have said nothing."""
    said = Counter(
        (e["epoch"], e["round"], e["samples"]) for e in events if e["event"] == "committed" and e["run"] == run
    )
    records = [v.record for v in history]
    took = Counter(
        (b.epoch, b.round, b.ledger.samples - a.ledger.samples)
        for a, b in pairwise(records)
        if b.round == a.round + 1 and b.epoch == a.epoch
    )
    assert not said - took, f"logged, but not in the record: {said - took}"
    unlogged = took - said
    assert unlogged.total() <= killed, f"in the record, but logged by no site: {unlogged}"


def check_disks(record: Record, folders: Sequence[Path]) -> None:
    """Every copy that the record names is on that site's disk, whole. `folders` are the sites' state folders."""
    for weights in (record.weights, record.safe):
        for node in weights.copies:
            found = list((folders[node] / "runs" / record.run).glob(f"*-{weights.digest}.safetensors"))
            assert found, f"the record says that site {node} has {weights.digest}, and it does not"
            for path in found:
                assert file_digest(path) == weights.digest, f"{path} is damaged"

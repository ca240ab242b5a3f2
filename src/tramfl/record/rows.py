"""One row a round, as JSON lines. Durable and append-only: a row is whole or absent."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import nlargest, nsmallest
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Outcome
from tramfl.config import ACCURACY, LOSS
from tramfl.notation import BadInput, Candidate, Ledger, NodeId
from tramfl.record.files import write_atomically
from tramfl.record.schema import SCHEMA, check_json

MANY_NODES = 50
"""Above this, a short row keeps the best candidates alone ..."""
KEPT_CANDIDATES = 10
"""... this many of them, the chosen one among them."""
ROUNDED_NODES = 200
"""Above this, a short row also has its loads in steps of about a ten-thousandth of the largest."""


class RowLoads(Struct, frozen=True, omit_defaults=True):
    """The loads the decision was made from; null where a node did not report."""

    flops: tuple[float | None, ...]
    bandwidth: tuple[float | None, ...]
    """From the holder to each node; null to itself and to nodes that had the weights already."""
    steps: tuple[float, float] | None = None
    """Of a row with rounded loads: what one unit of `flops` and of `bandwidth` stands for."""

    @property
    def in_full(self) -> RowLoads:
        """The loads in FLOPS and bit/s, whatever the row's steps are."""
        if self.steps is None:
            return self
        flops, bandwidth = self.steps
        return RowLoads(_scaled(self.flops, flops), _scaled(self.bandwidth, bandwidth))

    @property
    def rounded(self) -> RowLoads:
        """The loads in steps of about a ten-thousandth of the largest."""
        flops, one = _in_steps(self.flops)
        bandwidth, other = _in_steps(self.bandwidth)
        return RowLoads(flops, bandwidth, (one, other))


def _scaled(values: Iterable[float | None], step: float) -> tuple[float | None, ...]:
    return tuple(None if value is None else value * step for value in values)


def _in_steps(values: tuple[float | None, ...]) -> tuple[tuple[float | None, ...], float]:
    """`values` as whole numbers of steps, and the step: a power of ten, a ten-thousandth of the largest or less."""
    exact = np.array(values, dtype=np.float64)  # of None, NaN
    largest = np.fmax.reduce(exact, initial=0.0)
    step = 10.0 ** (math.floor(math.log10(largest)) - 3) if largest > 0 else 1.0
    steps = np.rint(exact / step)
    missing = np.isnan(steps)
    found: list[float | None] = np.where(missing, 0.0, steps).astype(np.int64).tolist()
    for place in missing.nonzero()[0].tolist():
        found[place] = None
    return tuple(found), step


class RowDecision(Struct, frozen=True):
    """What was decided, what was weighed and why."""

    policy: str
    reason: str
    predicted_seconds: float
    candidates: tuple[Candidate, ...]
    unreachable_labels: tuple[int, ...] = ()
    weighed: int | UnsetType = UNSET
    """How many candidates there were, where the row keeps only the best of them."""


class NodeTrained(Struct, frozen=True, array_like=True, gc=False):
    """What one node trained in a round in which several may."""

    node: NodeId
    samples: tuple[int, ...]
    """Of each label."""


class Sent(Struct, frozen=True, array_like=True, gc=False):
    """What one place sent to another; the number after the last node's is the server beside them."""

    source: int
    target: int
    bits: float


class SentTo(Struct, frozen=True, array_like=True, gc=False):
    """What one place sent to others, each the same number of bits."""

    source: int
    bits: float
    """Of each transfer."""
    ranges: tuple[int, ...]
    """The first and the last of every range of targets: 0, 2, 4, 9 are 0 to 2 and 4 to 9."""

    @classmethod
    def of(cls, source: int, bits: float, targets: tuple[int, ...]) -> SentTo:
        """The same with targets in ranges."""
        return cls(source, bits, _in_ranges(targets))

    def __len__(self) -> int:
        """How many transfers."""
        return sum(last - first + 1 for first, last in zip(self.ranges[::2], self.ranges[1::2], strict=True))

    @property
    def one_by_one(self) -> Iterator[Sent]:
        """Every transfer."""
        for first, last in zip(self.ranges[::2], self.ranges[1::2], strict=True):
            for target in range(first, last + 1):
                yield Sent(self.source, target, self.bits)


@lru_cache(maxsize=2048)
def _in_ranges(targets: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers as ranges of such that follow each other; a graph that stays asks for the same ones in every round."""
    found: list[int] = []
    for target in targets:
        if found and target == found[-1] + 1:
            found[-1] = target
        else:
            found += (target, target)
    return tuple(found)


class ModelScores(Struct, frozen=True, omit_defaults=True):
    """How good several models are, by the metric of the budget; null where it was not measured."""

    headline: Literal["nodes", "consensus"]
    """What `test_accuracy` and the other scores of the row are of: the mean over the nodes' models, or consensus."""
    nodes: tuple[float | None, ...] = ()
    """Of each node's model; empty where nodes keep none between rounds."""
    mean: float | None = None
    worst: float | None = None
    consensus: float | None = None
    """Of the model that all agree on, or of the mean of the nodes' models."""


class Row(Struct, frozen=True, kw_only=True):
    """One round."""

    schema: int | UnsetType = UNSET
    """Of the whole file, in the row of round 1 alone; see `record.schema`."""
    round: int
    epoch: int = 1
    sites: tuple[str, ...] | UnsetType = UNSET
    """The names of the sites, by number; left out in simulations, whose nodes have numbers alone."""
    holder: NodeId
    """Who held the model before the round."""
    node: NodeId | None
    """Who trained, or null where the round was skipped."""
    samples: tuple[int, ...]
    loads: RowLoads
    compute_seconds: float
    transfer_seconds: float
    idle_seconds: float
    lost_seconds: float = 0.0
    """Spent on attempts that failed; 0 unless something went wrong."""
    overhead_seconds: float | UnsetType = UNSET
    """What gathering, deciding, the register and the disk took, by the clocks of real sites; left out in virtual
    time."""
    total_seconds: float
    """Of the run up to and with this round: all of the above, of every round."""
    used: tuple[int, ...]
    """Samples of each label used up to and with this round."""
    label_variance: float
    decision: RowDecision
    test_accuracy: float | None = None
    test_loss: float | None = None
    validation_loss: float | None = None
    """On the held-back samples of the node that trained."""
    metrics: dict[str, float] | UnsetType = UNSET
    """The other metrics that were measured, by name; left out where there are none."""
    diverged: bool | UnsetType = UNSET
    """True where the loss of the round's training was not a finite number; left out otherwise."""
    rejected: tuple[NodeId, ...] | UnsetType = UNSET
    """Nodes whose training in this round was not accepted, so that it was decided again; left out where none."""
    copies: tuple[NodeId, ...] | UnsetType = UNSET
    """Of a simulated round that was skipped after a setback: who has the weights; left out where the holder alone."""
    actual: RowLoads | UnsetType = UNSET
    """What the loads were, in runs where that is not what the decision was made from; the node that trained has the
    mean over its work."""
    trained: tuple[NodeTrained, ...] | UnsetType = UNSET
    """Where every node keeps a model: who trained what in the round; `node` is the first of them."""
    sent: tuple[Sent, ...] | UnsetType = UNSET
    """Where every node keeps a model: what was sent where; a short row of many nodes has `sent_to` instead."""
    models: ModelScores | UnsetType = UNSET
    """Where every node keeps a model: the scores of each, in rounds that were tested."""
    sent_bits: float | UnsetType = UNSET
    """Where every node keeps a model: all bits of the round."""
    sent_to: tuple[SentTo, ...] | UnsetType = UNSET
    """Of a short row of many nodes: what was sent where, one entry a sender, with ranges of targets."""

    @property
    def by_node(self) -> tuple[NodeTrained, ...]:
        """Who trained what: one node, or several where every node keeps a model."""
        if self.trained is not UNSET:
            return self.trained
        return () if self.node is None else (NodeTrained(self.node, self.samples),)

    @property
    def transfers(self) -> tuple[Sent, ...]:
        """What was sent where, one by one; none in the row of a model that travels."""
        if self.sent_to is not UNSET:
            return tuple(each for group in self.sent_to for each in group.one_by_one)
        return () if self.sent is UNSET else self.sent

    @property
    def overhead(self) -> float:
        """The overhead in seconds; 0 where the row has none."""
        return 0.0 if self.overhead_seconds is UNSET else self.overhead_seconds

    @property
    def is_tested(self) -> bool:
        """Whether scores of the round's weights are there; a task need not have an accuracy."""
        return self.test_accuracy is not None or self.test_loss is not None or self.metrics is not UNSET

    def measured(self, metric: str) -> float | None:
        """A metric of the round's test; None where it was not measured."""
        return measured_in(self, metric)


def ledger_after(rows: Sequence[Row]) -> Ledger:
    """What has been trained in these rows, which are all of a run from its first round on; there is at least one."""
    last = rows[-1]
    return Ledger(last.used, last.total_seconds, last.round, sum(row.node is None for row in rows))


class Scores(Struct, frozen=True):
    """How good a model is."""

    test_accuracy: float | None = None
    test_loss: float | None = None
    validation_loss: float | None = None
    metrics: dict[str, float] | UnsetType = UNSET
    """The other metrics, by name."""

    def measured(self, metric: str) -> float | None:
        """A metric of the test; None where it was not measured."""
        return measured_in(self, metric)


def measured_in(found: Row | Scores, metric: str) -> float | None:
    """A metric of a row or of scores, by the name that `budget.metric` has for it."""
    if metric == ACCURACY:
        return found.test_accuracy
    if metric == LOSS:
        return found.test_loss
    return None if found.metrics is UNSET else found.metrics.get(metric)


def row_of(outcome: Outcome, record: Record, scores: Scores, *, diverged: bool = False) -> Row:
    """The row of a round that `record` is the first to contain; `diverged` where its training had no finite loss."""
    assignment = outcome.assignment
    decision, holder = assignment.decision, assignment.holder
    # JSON has neither NaN nor infinity.
    flops = [f if math.isfinite(f) else None for f in assignment.loads.flops]
    links = [b if math.isfinite(b) else None for b in assignment.loads.bandwidth]
    for node in (holder, *assignment.having):
        links[node] = None
    return Row(
        schema=SCHEMA if record.round == 1 else UNSET,
        round=record.round,
        epoch=record.epoch,
        holder=holder,
        node=outcome.node,
        samples=decision.samples,
        loads=RowLoads(tuple(flops), tuple(links)),
        compute_seconds=outcome.compute_seconds,
        transfer_seconds=outcome.transfer_seconds,
        idle_seconds=outcome.idle_seconds,
        lost_seconds=outcome.lost_seconds,
        overhead_seconds=outcome.overhead_seconds or UNSET,
        total_seconds=record.ledger.seconds,
        used=record.ledger.used,
        label_variance=record.ledger.label_variance if decision.label_variance is None else decision.label_variance,
        decision=RowDecision(
            decision.policy,
            decision.reason,
            decision.round_seconds,
            decision.candidates,
            decision.unreachable_labels,
        ),
        test_accuracy=scores.test_accuracy,
        test_loss=scores.test_loss,
        validation_loss=scores.validation_loss,
        metrics=scores.metrics,
        diverged=diverged or UNSET,
        rejected=outcome.assignment.rejected or UNSET,
    )


def shortened(row: Row) -> Row:
    """A row of many nodes with its best candidates alone, and of very many with rounded loads; others as they are."""
    nodes = len(row.loads.flops)
    if nodes <= MANY_NODES:
        return row
    candidates = row.decision.candidates
    decision = row.decision
    if len(candidates) > KEPT_CANDIDATES:
        least = nlargest(KEPT_CANDIDATES, [c.score for c in candidates])[-1]
        good = [c for c in candidates if c.score >= least or c.node == row.node]
        best = nsmallest(KEPT_CANDIDATES, good, key=lambda c: (c.node != row.node, -c.score, c.node))
        kept = tuple(sorted(best, key=lambda c: c.node))
        decision = replace(decision, candidates=kept, weighed=len(candidates))
    row = replace(row, sent=UNSET)
    loads, actual = row.loads, row.actual
    if nodes > ROUNDED_NODES:
        loads = loads.rounded
        actual = UNSET if actual is UNSET else actual.rounded
    return replace(row, decision=decision, loads=loads, actual=actual)


class RowWriter:
    """Appends rows to a file, each one flushed as a whole line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._encode = msgspec.json.Encoder().encode

    def write(self, row: Row) -> None:
        """Append one row."""
        self._file.write(self._encode(row) + b"\n")
        self._file.flush()

    @property
    def size(self) -> int:
        """Bytes in the file after the last row."""
        return self._file.tell()

    def cut(self, size: int) -> None:
        """Drop what was written past the first `size` bytes."""
        if self.size > size:
            self._file.truncate(size)

    def close(self) -> None:
        """Make what was written durable."""
        os.fsync(self._file.fileno())
        self._file.close()


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file; a last line cut short by a crash is left out, any other bad line is named."""
    decoder = msgspec.json.Decoder(Row)
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            if number == 1:
                check_json(line, path)
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadInput(f"{path}, line {number}, is not a round's row: {error}.") from None


def keep_whole_rows(path: Path, rows: Iterable[Row]) -> None:
    """Rewrite `path` with `rows` alone, dropping a half-written tail before a run goes on."""
    encode = msgspec.json.Encoder().encode
    write_atomically(path, b"".join(encode(row) + b"\n" for row in rows))


def check_rows(rows: Sequence[Row], path: Path) -> None:
    """BadInput where rows contradict each other: no figure could be drawn from them."""
    if not rows:
        raise BadInput(f"{path} holds no round yet.")
    nodes, labels = len(rows[0].loads.flops), len(rows[0].used)
    for row in rows:
        counts = (len(row.loads.flops), len(row.loads.bandwidth), len(row.used), len(row.samples))
        if counts != (nodes, nodes, labels, labels):
            raise BadInput(f"{path}: round {row.round} counts other nodes or labels than round {rows[0].round}.")
        if not all(0 <= node < nodes for node in (row.holder, row.node or 0)):
            raise BadInput(f"{path}: round {row.round} names a node that is not among its {nodes}.")


def in_columns(row: Row, nodes: int) -> Row:
    """A row with loads of this many nodes: those that joined later reported nothing then."""
    loads, more = row.loads, (None,) * (nodes - len(row.loads.flops))
    if not more:
        return row
    return replace(row, loads=RowLoads((*loads.flops, *more), (*loads.bandwidth, *more), loads.steps))


def lineage(written: Sequence[Row]) -> tuple[Row, ...]:
    """The rows that count: after a takeover, rounds that were not safe are done again."""
    rows: list[Row] = []
    for row in written:
        while rows and rows[-1].round >= row.round:
            rows.pop()
        rows.append(row)
    return tuple(rows)

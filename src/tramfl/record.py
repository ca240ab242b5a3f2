"""The run's record: one row a round, as JSON lines; what reports, figures and the dashboard read.

Durable and append-only: a row is whole or absent. Imports notation, config and circulation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, field

from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Outcome
from tramfl.config import Budget, Scenario
from tramfl.notation import BadInput, Candidate, Ledger, ModelCost, NodeId

CONFIG_FILE = "config.toml"
ROUNDS_FILE = "rounds.jsonl"
SUMMARY_FILE = "summary.json"
MODEL_FILE = "model.safetensors"


class RowLoads(Struct, frozen=True):
    """The loads the decision was made from; null where a node did not report."""

    flops: tuple[float | None, ...]
    bandwidth: tuple[float | None, ...]
    """From the holder to each node; null to itself."""


class RowDecision(Struct, frozen=True):
    """What was decided, what was weighed and why."""

    policy: str
    reason: str
    predicted_seconds: float
    candidates: tuple[Candidate, ...]
    unreachable_labels: tuple[int, ...] = ()


class Row(Struct, frozen=True, kw_only=True):
    """One round."""

    round: int
    epoch: int = 1
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
    total_seconds: float
    used: tuple[int, ...]
    """Samples of each label used up to and with this round."""
    label_variance: float
    decision: RowDecision
    test_accuracy: float | None = None
    test_loss: float | None = None
    validation_loss: float | None = None
    """On the held-back samples of the node that trained."""

    @property
    def ledger(self) -> Ledger:
        """What has been trained up to and with this round."""
        return Ledger(self.used, self.total_seconds, self.round)


class Scores(Struct, frozen=True):
    """How good a model is."""

    test_accuracy: float | None = None
    test_loss: float | None = None
    validation_loss: float | None = None


def row_of(outcome: Outcome, record: Record, scores: Scores) -> Row:
    """The row of a round that `record` is the first to contain."""
    assignment = outcome.assignment
    decision, holder = assignment.decision, assignment.holder
    # JSON has neither NaN nor infinity.
    flops = tuple(f if math.isfinite(f) else None for f in assignment.loads.flops)
    links = tuple(b if math.isfinite(b) and n != holder else None for n, b in enumerate(assignment.loads.bandwidth))
    return Row(
        round=record.round,
        epoch=record.epoch,
        holder=holder,
        node=outcome.node,
        samples=decision.samples,
        loads=RowLoads(flops, links),
        compute_seconds=outcome.compute_seconds,
        transfer_seconds=outcome.transfer_seconds,
        idle_seconds=outcome.idle_seconds,
        lost_seconds=outcome.lost_seconds,
        total_seconds=record.ledger.seconds,
        used=record.ledger.used,
        label_variance=record.ledger.label_variance,
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
    )


class Summary(Struct, frozen=True, kw_only=True):
    """What a run came to."""

    scenario: str
    policy: str
    seed: int
    status: str
    """finished, or interrupted."""
    rounds: int
    skipped_rounds: int
    samples: int
    total_seconds: float
    compute_seconds: float
    transfer_seconds: float
    idle_seconds: float
    label_variance: float
    """At the end of the run."""
    largest_label_variance: float
    """Over all rounds."""
    seconds_to_target: dict[str, float | None] = field(default_factory=dict)
    test_accuracy: float | None = None
    """As measured last."""
    cost: ModelCost


def summary_of(scenario: Scenario, rows: Sequence[Row], cost: ModelCost, *, finished: bool) -> Summary:
    """What a run with these rows has come to."""
    measured = [row.test_accuracy for row in rows if row.test_accuracy is not None]
    return Summary(
        scenario=scenario.name,
        policy=scenario.policy,
        seed=scenario.seed,
        status="finished" if finished else "interrupted",
        rounds=len(rows),
        skipped_rounds=sum(row.node is None for row in rows),
        samples=sum(rows[-1].used) if rows else 0,
        total_seconds=rows[-1].total_seconds if rows else 0.0,
        compute_seconds=sum(row.compute_seconds for row in rows),
        transfer_seconds=sum(row.transfer_seconds for row in rows),
        idle_seconds=sum(row.idle_seconds for row in rows),
        label_variance=rows[-1].label_variance if rows else 0.0,
        largest_label_variance=max((row.label_variance for row in rows), default=0.0),
        seconds_to_target={f"{target:g}": seconds_to(rows, target) for target in scenario.budget.targets},
        test_accuracy=measured[-1] if measured else None,
        cost=cost,
    )


def seconds_to(rows: Sequence[Row], target: float) -> float | None:
    """T_total when the test accuracy first reached `target`."""
    for row in rows:
        if row.test_accuracy is not None and row.test_accuracy >= target:
            return row.total_seconds
    return None


def past(budget: Budget, ledger: Ledger) -> bool:
    """Whether a run that has come so far is at one of its limits."""
    return (
        (budget.rounds is not None and ledger.round >= budget.rounds)
        or (budget.seconds is not None and ledger.seconds >= budget.seconds)
        or (budget.samples is not None and ledger.samples >= budget.samples)
    )


class RowWriter:
    """Appends rows to a file, each one flushed as a whole line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._encode = msgspec.json.Encoder().encode

    def write(self, row: Row) -> None:
        """Append one row."""
        self._file.write(self._encode(row) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Make what was written durable."""
        os.fsync(self._file.fileno())
        self._file.close()


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file; a last line cut short by a crash is left out, any other bad line is named."""
    decoder = msgspec.json.Decoder(Row)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    whole, _tail = lines[:-1], lines[-1]
    for number, line in enumerate(whole, start=1):
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}, line {number}, is not a round's row: {error}.") from None


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """BadInput, which says that `place` is to blame, where something cannot be written."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{place} cannot be written: {error.strerror}; give another place with --out.") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a reader sees the old content or the new, never a part."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def keep_whole_rows(path: Path, rows: Iterable[Row]) -> None:
    """Rewrite `path` with `rows` alone, dropping a half-written tail before a run goes on."""
    encode = msgspec.json.Encoder().encode
    write_atomically(path, b"".join(encode(row) + b"\n" for row in rows))

"""One run in virtual time, round by round, from a scenario to rows and a summary.

Deterministic to the last digit: loads, policies, training and evaluation each draw from the seed and the round's
number, never from what came before. So a run that stops after any round and is resumed goes on as if it had not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec import UNSET
from msgspec.structs import replace

from tramfl.circulation.commands import CloseRound
from tramfl.circulation.custody import Record, first_record, numbered
from tramfl.config import Scenario
from tramfl.draws import first_holder
from tramfl.exchange.work import Work
from tramfl.notation import BadInput, Counts, Decision, Digest, Ledger, ModelCost, NodeId
from tramfl.record import Regret, Row, RowLoads, Scores, Summary, Tally, is_test_due, ledger_after, row_of, shortened
from tramfl.references import is_reference, users_code
from tramfl.scheduling.guards import guarded
from tramfl.scheduling.policy import Policy, PolicySettings, as_policy, policy_named
from tramfl.simulation.loads import LoadSource, ReplayedLoads, load_source
from tramfl.simulation.own_loads import checked
from tramfl.simulation.roles import NullLearner, RunTrainer
from tramfl.simulation.world import World


class Judge(Protocol):
    """Says how good weights are; off the virtual clock."""

    def scores(self, digest: Digest, node: NodeId, targets: Sequence[float]) -> Scores:
        """Scores of a model, and its loss on what `node` keeps aside; `targets` are those still open."""
        ...

    def diverged(self, digest: Digest) -> bool:
        """Whether the training that made a model had no finite loss."""
        ...


class PeerModels(Protocol):
    """Computes, keeps and scores the models of all nodes, where every node keeps one."""

    outputs: int
    """How many numbers a model gives for a sample."""

    def do(self, work: Sequence[Work]) -> bool:
        """Compute what is asked for; whether the loss of a training was not a finite number."""
        ...

    def close(self) -> None:
        """End the processes that train, if there are any."""
        ...

    def discard(self, digest: Digest) -> None:
        """Nobody needs this value any longer."""
        ...

    def score(self, models: Sequence[tuple[Digest, NodeId]], targets: Sequence[float]) -> list[Scores]:
        """Scores of models, each with the loss on what a node keeps aside; all on the same test samples."""
        ...

    def delivered(self, digest: Digest, about: Mapping[str, str] | None = None) -> bytes:
        """A model as a file's content."""
        ...

    def saved(self, digests: Sequence[Digest], about: Mapping[str, str]) -> Sequence[bytes | memoryview]:
        """Values as a file's content."""
        ...


@runtime_checkable
class HasWeights(Protocol):
    """A learner whose models can be saved."""

    tests_newest: bool
    """Whether the newest weights are what is tested and delivered."""

    def delivered(self, digest: Digest, about: Mapping[str, str] | None = None) -> bytes:
        """What is delivered of a model, as a file's content."""
        ...

    def weights(self, digest: Digest, *, about: Mapping[str, str] | None = None) -> bytes:
        """A model as a file's content."""
        ...


@dataclass(frozen=True)
class Setting:
    """What a scenario becomes once data and model are known."""

    held: Counts
    cost: ModelCost
    labels: tuple[str, ...]
    learner: RunTrainer = field(default_factory=NullLearner)
    judge: Judge | None = None
    initial: Digest = "w0"
    """The weights the run begins, or goes on, with."""
    peers: PeerModels | None = None
    """Trains, where every node keeps a model."""
    data: str | None = None
    """Fingerprint of the data; None where there are none, or where they are a data set known by name."""


class _KeepsLast:
    """A learner that carries out no `discard` before the next round begins.

    Until then the weights after the last row are there, whatever the nodes have dropped: an interrupt in the middle
    of a round, or of the test after it, finds them and can save them.
    """

    def __init__(self, learner: RunTrainer) -> None:
        self._learner = learner
        self._dropped: set[Digest] = set()

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int) -> Digest:
        """As the learner does it."""
        child = self._learner.train(node, parent, samples, round_)
        self._dropped.discard(child)
        return child

    def discard(self, digest: Digest) -> None:
        """Note it; `release` discards it when the next round begins."""
        self._dropped.add(digest)

    def release(self) -> None:
        """A round begins: forget what was dropped before."""
        for digest in self._dropped:
            self._learner.discard(digest)
        self._dropped.clear()


@dataclass(frozen=True)
class Reached:
    """Where a run stands: all that is needed to conclude it, or to go back to."""

    tally: Tally
    weights: Digest
    """The weights after the last row."""
    skipped: bool = False
    """Whether nobody trained in the last round."""


class Saved(NamedTuple):
    """The files that a run leaves."""

    model: bytes
    """What is delivered."""
    state: Sequence[bytes | memoryview] | None = None
    """In pieces: what a resumed run goes on from, where that is something else."""


class Playing:
    """A run that is being played: iterate over `rounds()`, then ask for the `summary`."""

    def __init__(self, scenario: Scenario, setting: Setting, done: Sequence[Row], keep_rows: bool) -> None:
        if scenario.budget.rounds is None and scenario.budget.seconds is None and scenario.budget.samples is None:
            raise BadInput(
                "the run has no limit: set at least one of budget.rounds, budget.seconds and budget.samples."
            )
        self.scenario, self.setting = scenario, setting
        self.rows: list[Row] = list(done) if keep_rows else []
        """The rows so far; none where they are not kept, so that memory does not grow with the rounds."""
        self._keep_rows = keep_rows
        tally = Tally.of(scenario.budget, setting.held.shape[1], done)
        self.reached = Reached(tally, setting.initial, skipped=bool(done) and done[-1].node is None)
        self.stopped: str | None = None
        """Why the run ends although its budget does not, if it does."""
        if done:
            self._stop_if_diverged(done[-1])
        self.regret: Regret | None = None
        """How much longer the run took than with an oracle, once that is known."""

    def rounds(self) -> Iterator[Row]:
        """Play on, one row a round, until a limit or the last target is reached, or the run is stopped."""
        raise NotImplementedError

    def stop(self, why: str) -> None:
        """End the run after the round in hand."""
        self.stopped = why

    def go_back_to(self, reached: Reached) -> None:
        """Drop the rows past an earlier moment of the run."""
        del self.rows[reached.tally.rounds :]
        self.reached = reached

    @property
    def weights(self) -> Digest:
        """The weights after the last row."""
        return self.reached.weights

    @property
    def finished(self) -> bool:
        """Whether the last target or the first limit is reached, or the run was stopped."""
        tally = self.reached.tally
        return self.stopped is not None or tally.milestones.is_over(self.scenario.budget, tally.ledger)

    def summary(self) -> Summary:
        """What the run has come to so far."""
        found = self.reached.tally.summary(
            self.scenario, self.setting.cost, finished=self.finished, stopped=self.stopped
        )
        return found if self.regret is None else replace(found, regret=self.regret)

    def saved(self, about: dict[str, str]) -> Saved | None:
        """What a run leaves after its last row; None where nothing is trained."""
        raise NotImplementedError

    def _done(self, row: Row, weights: Digest) -> Row:
        """Note that a round is over."""
        self.reached = Reached(self.reached.tally.after(row), weights, skipped=row.node is None)
        if self._keep_rows:
            self.rows.append(row)
        self._stop_if_diverged(row)
        return row

    def _stop_if_diverged(self, row: Row) -> None:
        if row.diverged is True and self.scenario.training.divergence == "stop":
            self.stop(
                f"the training loss of round {row.round:,} is not a finite number; the learning rate may be too high"
                ' (training.divergence = "stop").'
            )


class Experiment(Playing):
    """One model travels."""

    def __init__(
        self,
        scenario: Scenario,
        setting: Setting,
        *,
        policy: Any = None,
        loads: LoadSource | None = None,
        done: Sequence[Row] = (),
        keep_rows: bool = True,
    ) -> None:
        super().__init__(scenario, setting, done, keep_rows)
        nodes = len(setting.held)
        self._closed: deque[CloseRound] = deque()
        self._learner = _KeepsLast(setting.learner)
        # Of drawn and constant loads it is known that every node reports in every round; a file may lack some.
        self._all_report = loads is None and scenario.loads.kind not in ("replay", "trace")
        loads = load_source(scenario.loads, nodes, scenario.seed) if loads is None else checked(loads, nodes)
        self._policy = _policy(policy, scenario, setting.labels)
        self._world = World(
            record=_begin(scenario, setting, done, loads.at(1).holder),
            policy=self._policy,
            held=setting.held,
            cost=setting.cost,
            loads=loads,
            seed=scenario.seed,
            learner=self._learner,
            close_round=self._closed.append,
            load_model=scenario.loads,
            usual_samples=math.sqrt(scenario.variance_limit) * len(setting.labels),
            counts_overhead=isinstance(loads, ReplayedLoads) and loads.has_overhead,
        )
        self._stop_if_stuck()

    def rounds(self) -> Iterator[Row]:
        """Play on, one row a round, until a limit or the last target is reached, or the run is stuck."""
        if self.finished:
            return
        self._world.start()
        while not self.finished:
            self._learner.release()
            self._world.run(lambda: bool(self._closed))
            if not self._closed:
                raise BadInput("the run came to a halt: no node could go on.")
            closed = self._closed.popleft()
            scores, diverged = self._score(closed), self._diverged(closed)
            row = self._with_actual(row_of(closed.outcome, closed.record, scores, diverged=diverged))
            if row.node is None and (copies := closed.record.weights.copies) != (row.holder,):
                row = replace(row, copies=copies)
            if self.scenario.record.rows == "short":
                row = shortened(row)
            self._done(row, closed.record.weights.digest)
            self._stop_if_stuck()
            yield row

    def saved(self, about: dict[str, str]) -> Saved | None:
        """The model that travels."""
        learner = self.setting.learner
        if not isinstance(learner, HasWeights):
            return None
        newest = learner.weights(self.weights, about=about)
        return Saved(newest) if learner.tests_newest else Saved(learner.delivered(self.weights, about), [newest])

    def _stop_if_stuck(self) -> None:
        """End a run in which no later round can train: neither the nodes' data nor the samples used will change."""
        stuck = getattr(self._policy, "stuck", None)
        if self.reached.skipped and self._all_report and stuck is not None:
            self.stopped = stuck(self.reached.tally.ledger, self.setting.held)

    def _with_actual(self, row: Row) -> Row:
        """The row with what the loads were, where the decision was made from something else."""
        settings = self.scenario.loads
        if settings.clock == "round" and settings.prediction == "oracle":
            return row
        clock, cost = self._world.load_clock, self.setting.cost
        decided = row.total_seconds - (row.compute_seconds + row.transfer_seconds + row.idle_seconds)
        # A difference may lie a hair before the border of a slot that the decision was made on.
        loads = clock.loads(clock.step(row.round, max(0.0, decided) + 1e-9))
        flops, links = list(loads.flops), list(loads.bandwidth[row.holder])
        if row.node is not None:
            flops[row.node] = cost.flops_per_sample * sum(row.samples) / row.compute_seconds
            if row.node != row.holder and row.transfer_seconds > 0:  # 0 where the node had the weights already
                links[row.node] = cost.model_bits / row.transfer_seconds
        return replace(row, actual=RowLoads(_finite(flops), _finite(links)))

    def _score(self, closed: CloseRound) -> Scores:
        node, record = closed.outcome.node, closed.record
        due = is_test_due(self.scenario.evaluation, record.ledger, trained=node is not None)
        if node is None or self.setting.judge is None or not due:
            return Scores()
        return self.setting.judge.scores(record.weights.digest, node, self.reached.tally.milestones.open)

    def _diverged(self, closed: CloseRound) -> bool:
        judge, trained = self.setting.judge, closed.outcome.node is not None
        return trained and judge is not None and judge.diverged(closed.record.weights.digest)


def _policy(own: Any, scenario: Scenario, labels: Sequence[str]) -> Policy:
    """The scenario's policy, or the user's own in its place."""
    settings = PolicySettings.of(scenario, labels)
    found = policy_named(scenario.policy, settings) if own is None else as_policy(own, settings)
    return guarded(_Own(found) if own is not None or is_reference(scenario.policy) else found, settings)


class _Own:
    """A policy of the user's own; what it raises becomes one sentence."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, ledger: Ledger, *rest: Any) -> Decision:
        """As the policy decides."""
        with users_code(f"round {ledger.round + 1}: the policy"):
            return self._policy.decide(ledger, *rest)


def _finite(values: Sequence[float]) -> tuple[float | None, ...]:
    """JSON has neither NaN nor infinity."""
    return tuple(value if math.isfinite(value) else None for value in values)


def _begin(scenario: Scenario, setting: Setting, rows: Sequence[Row], recorded: NodeId | None) -> Record:
    """The record to start from: w_0 at the holder, drawn unless `recorded`, or where `rows` left off."""
    nodes, labels = setting.held.shape
    holder = first_holder(scenario.seed, nodes) if recorded is None else recorded
    record = first_record(scenario.name, holder, setting.initial, (holder,), labels, numbered(nodes))
    if not rows:
        return record
    last = rows[-1]
    ledger = ledger_after(rows)
    holder = last.holder if last.node is None else last.node
    copies = (holder,) if last.copies is UNSET else last.copies
    weights = replace(record.weights, copies=copies, since=ledger.seconds)
    safe = replace(record.safe, round=ledger.round, copies=copies, ledger=ledger, since=ledger.seconds)
    return replace(record, epoch=last.epoch, holder=holder, weights=weights, safe=safe, ledger=ledger)

"""A run in which every node keeps a model: on the loads, data, budgets and record that a travelling one has.

A method of `exchange/` plans, a `Stage` keeps the variables and the clock, and the learner computes what they stand
for. A barrier round ends when the last of its steps does. An asynchronous method runs as events, and a row stands for
as many cycles as there are nodes.

What is planned does not depend on what is learnt. So a run is taken up again by playing its plan from the beginning
without training, which gives every value its name, and loading the saved ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from statistics import fmean
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from tramfl.config import ExchangeSettings, Scenario
from tramfl.draws import generator
from tramfl.exchange import MEAN, Cycle, Reading, RoundView, Step, TrainStep, Variable
from tramfl.exchange.plans import AsynchronousRule, BarrierRule
from tramfl.exchange.rules import is_asynchronous, rule_named
from tramfl.exchange.work import Combining
from tramfl.notation import BadInput, Digest, Ledger, NodeId
from tramfl.record import (
    MANY_NODES,
    SCHEMA,
    ModelScores,
    NodeTrained,
    Row,
    RowDecision,
    RowLoads,
    Scores,
    Sent,
    SentTo,
    is_test_due,
    shortened,
)
from tramfl.simulation.arena_loads import arena_loads
from tramfl.simulation.experiment import Playing, Saved, Setting
from tramfl.simulation.load_clock import LoadClock, RoundClock, SlotClock
from tramfl.simulation.loads import LoadSource
from tramfl.simulation.own_loads import checked
from tramfl.simulation.stage import Shipment, Stage

_EXCHANGE = 105
"""Keeps what methods draw apart from every other use of the seed."""
_MEAN_MODEL = "the mean of the nodes' models"
_OUTPUT_BITS = 32
"""Of one number of soft outputs."""


class Played(NamedTuple):
    """What happened in the time of a row."""

    trained: Sequence[NodeTrained]
    sent: Sequence[Shipment]
    computing: float
    sending: float
    idle: float
    reason: str
    reading: Reading | None
    """None where the round was skipped."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.computing + self.sending + self.idle


class _After(NamedTuple):
    """How things were after a row."""

    live: list[Digest]
    """The values that some variable had."""
    models: tuple[Digest, ...]
    """The consensus, or the models whose mean stands for it."""


class Arena(Playing):
    """Every node keeps a model."""

    def __init__(
        self,
        scenario: Scenario,
        setting: Setting,
        *,
        loads: LoadSource | None = None,
        done: Sequence[Row] = (),
        keep_rows: bool = True,
    ) -> None:
        super().__init__(scenario, setting, done, keep_rows)
        settings = scenario.exchange or ExchangeSettings()
        self._peers = setting.peers
        self._stage, rule = _stage(scenario, setting, settings, loads)
        plays = _Asynchronous if is_asynchronous(rule) else _Barriers
        self._rounds = plays(rule, self._stage, scenario, settings, setting).rounds()  # type: ignore[arg-type]
        self._ledger = Ledger.empty(setting.held.shape[1])
        self._reading: Reading | None = None
        self._dropped: list[Digest] = []
        """Values that variables had after the row before the last, and have no longer."""
        self._stage.notes_work = False
        self._after = {0: _After([setting.initial], (setting.initial,))}
        """How things were after each of the last two rows."""
        for row in done:
            self._take_up(row)
        self._stage.dropped()
        self._stage.notes_work = self._peers is not None

    def rounds(self) -> Iterator[Row]:
        """Play on, one row a round, until a limit or the last target is reached."""
        while not self.finished:
            row = self._as_row(next(self._rounds))
            diverged = self._work()
            row = replace(self._scored(row), diverged=diverged or UNSET)
            yield self._done(shortened(row) if self.scenario.record.rows == "short" else row, self.setting.initial)

    @property
    def weights(self) -> Digest:
        """The consensus after the last row, or the mean of the nodes' models where no place has one."""
        return self._mean(self._after[self.reached.tally.rounds].models)

    def value(self, variable: Variable) -> Digest:
        """What a variable has after the last row."""
        return self._stage.value(variable)

    @property
    def live(self) -> list[Digest]:
        """The values that some variable has after the last row: what is kept in memory and saved."""
        return self._stage.live

    def saved(self, about: dict[str, str]) -> Saved | None:
        """The consensus, and every value that a variable has after the last row."""
        if self._peers is None:
            return None
        state = self._peers.saved(self._after[self.reached.tally.rounds].live, about)
        return Saved(self._peers.delivered(self.weights, about), state)

    def _take_up(self, row: Row) -> None:
        """Play the plan of a row that is there, without the work."""
        again = self._as_row(next(self._rounds))
        if (again.node, again.samples, again.total_seconds) != (row.node, row.samples, row.total_seconds):
            raise BadInput(f"round {row.round} of the run there is not what the method plans here: it cannot go on.")

    def _work(self) -> bool:
        """Let the learner compute the row's values; whether a training diverged.

        What only the row before had is kept until the next one begins: an interrupt may go back there.
        """
        stage, peers = self._stage, self._peers
        if peers is None:
            return False
        for digest in self._dropped:
            peers.discard(digest)
        diverged = peers.do(stage.work)
        stage.work.clear()
        before = self._after[min(self._after)].live
        gone = stage.dropped()
        self._dropped = sorted(set(gone).intersection(before))
        for digest in set(gone).difference(before):
            peers.discard(digest)
        return diverged

    def _as_row(self, played: Played) -> Row:
        trained, sent, nodes = played.trained, played.sent, len(self.setting.held)
        labels = len(self._ledger.used)
        samples = tuple(map(sum, zip(*(each.samples for each in trained), strict=True))) or (0,) * labels
        loads = self._stage.loads(self._ledger.round + 1, self._ledger.seconds)
        ledger = self._ledger = self._ledger.after(samples, played.seconds)
        number = ledger.round
        self._reading = played.reading or self._reading
        models = self._after[number - 1].models if self._reading is None else self._models(self._reading)
        live = [] if self._peers is None else self._stage.live
        self._after = {number - 1: self._after[number - 1], number: _After(live, models)}
        node = trained[0].node if trained else None
        holder = next((source for source, _, _ in sent if source < nodes), node or 0)
        links = [b if math.isfinite(b) else None for b in loads.bandwidth[holder][:nodes]]
        links[holder] = None
        grouped = self.scenario.record.rows == "short" and nodes > MANY_NODES
        return Row(
            schema=SCHEMA if number == 1 else UNSET,
            round=number,
            holder=holder,
            node=node,
            samples=samples,
            loads=RowLoads(tuple([f if math.isfinite(f) else None for f in loads.flops[:nodes]]), tuple(links)),
            compute_seconds=played.computing,
            transfer_seconds=played.sending,
            idle_seconds=played.idle,
            total_seconds=ledger.seconds,
            used=ledger.used,
            label_variance=ledger.label_variance,
            decision=RowDecision(self.scenario.method_name, played.reason, played.seconds, ()),
            trained=tuple(trained),
            sent=UNSET if grouped else _one_by_one(sent),
            sent_to=_by_sender(sent) if grouped else UNSET,
            sent_bits=math.fsum(bits * len(targets) for _, targets, bits in sent),
        )

    # Testing.

    def _scored(self, row: Row) -> Row:
        """The row with the scores of the models, where a test is due."""
        peers, reading = self._peers, self._reading
        due = is_test_due(self.scenario.evaluation, self._ledger, trained=row.node is not None)
        if peers is None or reading is None or not due:
            return row
        models = [(self._stage.value(variable), variable[0]) for variable in reading.nodes]
        if reading.consensus == MEAN:
            models.append((self._mean([value for value, _ in models]), row.node or 0))
        elif isinstance(reading.consensus, tuple):
            models.append((self._stage.value(reading.consensus), row.node or 0))
        found = peers.score(models, self.reached.tally.milestones.open)
        nodes, consensus = found[: len(reading.nodes)], found[len(reading.nodes) :]
        scores = consensus[0] if reading.headline == "consensus" else _mean_of(nodes)
        budget = self.scenario.budget
        values = [each.measured(budget.metric) for each in nodes]
        known = [value for value in values if value is not None]
        return replace(
            row,
            test_accuracy=scores.test_accuracy,
            test_loss=scores.test_loss,
            validation_loss=scores.validation_loss,
            metrics=scores.metrics,
            models=ModelScores(
                headline=reading.headline,
                nodes=tuple(values),
                mean=fmean(known) if known else None,
                worst=(max if budget.lower_is_better else min)(known, default=None),
                consensus=consensus[0].measured(budget.metric) if consensus else None,
            ),
        )

    def _models(self, reading: Reading) -> tuple[Digest, ...]:
        """The consensus, or the models whose mean stands for it."""
        where = (reading.consensus,) if isinstance(reading.consensus, tuple) else reading.nodes
        return tuple(self._stage.value(variable) for variable in where)

    def _mean(self, values: Sequence[Digest]) -> Digest:
        """The mean of models, to be tested or delivered: no place has it."""
        if self._peers is None or len(values) == 1:
            return values[0]
        self._peers.do([Combining(_MEAN_MODEL, tuple(values), (1 / len(values),) * len(values))])
        return _MEAN_MODEL


def _one_by_one(sent: Sequence[Shipment]) -> tuple[Sent, ...]:
    return tuple(Sent(source, target, bits) for source, targets, bits in sent for target in targets)


def _by_sender(sent: Sequence[Shipment]) -> tuple[SentTo, ...]:
    """The same for the short rows of many nodes, which would be long with a list of all transfers."""
    found: dict[tuple[int, float], tuple[int, ...]] = {}
    for source, targets, bits in sent:
        before = found.get((source, bits))
        found[source, bits] = targets if before is None else before + targets
    return tuple(SentTo.of(source, bits, targets) for (source, bits), targets in found.items())


def _stage(
    scenario: Scenario, setting: Setting, settings: ExchangeSettings, loads: LoadSource | None
) -> tuple[Stage, BarrierRule | AsynchronousRule]:
    nodes = len(setting.held)
    if not setting.held.any():
        raise BadInput("no node has a sample to train on.")
    for key, value, plain in (
        ("transit.codec", scenario.transit.codec, "float32"),
        ("evaluation.readout", scenario.evaluation.readout, "last"),
    ):
        if value != plain:
            raise BadInput(
                f'{key} = "{value}" is for a model that travels; with {scenario.method_name} every node keeps a'
                f' model: leave it at "{plain}".'
            )
    rule = rule_named(settings, nodes)
    own = None if loads is None else checked(loads, nodes)
    source = arena_loads(scenario.loads, nodes, scenario.seed, own, server=settings.server == "beside")
    slots = scenario.loads.clock == "slot"
    clock: LoadClock = (
        SlotClock(source, setting.cost, scenario.loads.slot_seconds)
        if slots
        else RoundClock(source, setting.cost, apart=is_asynchronous(rule))
    )
    outputs = len(setting.labels) if setting.peers is None else setting.peers.outputs
    bits = float(settings.shared_samples * outputs * _OUTPUT_BITS)
    shared = settings.shared_samples
    stage = Stage(
        setting.held, setting.cost, clock, setting.initial, rule.start(), outputs_bits=bits, shared_samples=shared
    )
    return stage, rule


class _Rounds:
    """What both ways to play share: what a method knows when it plans."""

    def __init__(self, stage: Stage, scenario: Scenario, settings: ExchangeSettings, setting: Setting) -> None:
        self._stage, self._settings = stage, settings
        self._held = tuple(setting.held.sum(axis=1).tolist())
        self._samples = settings.local_steps * scenario.training.batch_size
        self._rate = scenario.training.learning_rate * settings.rate
        self._seed, self._wait = scenario.seed, scenario.wait_seconds

    def _view(self, number: int, round_: int, now: float) -> RoundView:
        """What is known at a moment; `number` is what the method counts, `round_` what the loads go by."""
        clock = self._stage.clock
        return RoundView(
            round=number,
            held=self._held,
            reporting=self._stage.loads(round_, now).reporting,
            settings=self._settings,
            samples=self._samples,
            learning_rate=self._rate,
            training_seconds=lambda node, samples, after: clock.training_seconds(
                node, (samples,), round_, now + after
            ),
            sending_to=lambda one, others, after: clock.sending_to(one, others, round_, now + after),
            draw=self._draw,
        )

    def _draw(self, *place: int) -> np.random.Generator:
        return generator(self._seed, _EXCHANGE, *place)


class _Barriers(_Rounds):
    """A method whose rounds end when the last of their steps does."""

    def __init__(
        self, rule: BarrierRule, stage: Stage, scenario: Scenario, settings: ExchangeSettings, setting: Setting
    ) -> None:
        super().__init__(stage, scenario, settings, setting)
        self._rule = rule

    def rounds(self) -> Iterator[Played]:
        """Round after round."""
        now, played, round_ = 0.0, 0, 0
        while True:
            round_ += 1
            view = self._view(played + 1, round_, now)
            plan = self._rule.plan(view)
            if plan is None:
                now += self._wait
                yield Played((), (), 0.0, 0.0, self._wait, "The nodes that the round needs did not report.", None)
                continue
            played += 1
            self._stage.begin()
            end = self._stage.run(plan.steps, round_, now)
            if not math.isfinite(end[0]):
                raise BadInput(f"round {round_} would never end: a node or a link that it needs has no load.")
            now, computing, sending = end
            trained, sent = self._stage.take_record()
            yield Played(trained, sent, computing, sending, 0.0, plan.reason, self._rule.reading(view))


class _Event(NamedTuple):
    """What is due next: the earliest first, and of those at once the one asked for first."""

    at: float
    asked: int
    node: NodeId
    steps: tuple[Step, ...] | None
    """None where the node begins its next cycle."""
    ends: bool = False
    """Whether the node's cycle is over with these steps."""


class _Asynchronous(_Rounds):
    """A method whose nodes go on by themselves: a row for as many cycles as there are nodes."""

    def __init__(
        self, rule: AsynchronousRule, stage: Stage, scenario: Scenario, settings: ExchangeSettings, setting: Setting
    ) -> None:
        super().__init__(stage, scenario, settings, setting)
        self._rule, nodes = rule, len(setting.held)
        self._cycles = [0] * nodes
        self._under_way: list[tuple[list[NodeTrained], list[Shipment], float, float]] = [([], [], 0.0, 0.0)] * nodes
        """What each node's cycle trains and sends, its seconds of computing, and when it began."""
        self._queue: list[_Event] = []
        self._asked = 0
        for node in range(nodes):
            self._ask(0.0, node, None)

    def rounds(self) -> Iterator[Played]:
        """Events in the order of time; a row as soon as N cycles have ended."""
        begun = 0.0
        while True:
            trained: list[NodeTrained] = []
            sent: list[Shipment] = []
            computing = lasted = idle = 0.0
            ended, now = 0, begun
            while ended < len(self._cycles):
                event = heappop(self._queue)
                now, node = event.at, event.node
                if event.steps is None:
                    if not self._begin(node, now):
                        idle, lasted, ended = idle + self._wait, lasted + self._wait, ended + 1
                    continue
                self._stage.run(event.steps, self._cycles[node], now)
                if event.ends:
                    more, shipped, seconds, since = self._under_way[node]
                    trained += more
                    sent += shipped
                    computing, lasted, ended = computing + seconds, lasted + now - since, ended + 1
                    self._ask(now, node, None)
            spent, begun = now - begun, now
            share = spent / lasted if lasted else 0.0
            sending = max(0.0, spent - share * (computing + idle))
            view = self._view(max(self._cycles), max(self._cycles), now)
            reading = self._rule.reading(view) if trained or sent else None
            reason = f"{len(trained)} trainings ended, each at a node of its own accord."
            yield Played(trained, sent, spent - sending - share * idle, sending, share * idle, reason, reading)

    def _begin(self, node: NodeId, now: float) -> bool:
        """Begin a node's next cycle; False where it does not report and waits."""
        self._cycles[node] += 1
        number = self._cycles[node]
        view = self._view(number, number, now)
        if node not in view.reporting:
            self._ask(now + self._wait, node, None)
            return False
        cycle: Cycle = self._rule.cycle(node, view)
        arrival, *_ = self._stage.run([s for s in cycle.begin if not isinstance(s, TrainStep)], number, now)
        end, *_ = self._stage.run([s for s in cycle.begin if isinstance(s, TrainStep)], number, now)
        if not math.isfinite(max(arrival, end)):
            raise BadInput(f"cycle {number} of node {node} would never end: a node or a link has no load.")
        self._under_way[node] = (*self._stage.take_record(), end - now, now)
        self._ask(arrival, node, cycle.arrived)
        self._ask(max(arrival, end), node, cycle.end, ends=True)
        return True

    def _ask(self, at: float, node: NodeId, steps: tuple[Step, ...] | None, *, ends: bool = False) -> None:
        self._asked += 1
        heappush(self._queue, _Event(at, self._asked, node, steps, ends))


def _mean_of(scores: Sequence[Scores]) -> Scores:
    """The mean of scores; None where one of them is missing."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    names = [set(each.metrics) if each.metrics is not UNSET else set() for each in scores]
    common = set.intersection(*names) if names else set()
    metrics = {name: fmean(each.metrics[name] for each in scores if each.metrics is not UNSET) for name in common}
    return Scores(
        mean([each.test_accuracy for each in scores]),
        mean([each.test_loss for each in scores]),
        mean([each.validation_loss for each in scores]),
        dict(sorted(metrics.items())) or UNSET,
    )

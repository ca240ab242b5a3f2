"""Tests of weights at sites: due when a simulation's are, against the same open targets, with the same results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.runtime.memory import Memory, MemoryView
from tests.runtime.sites import Log
from tramfl.circulation.custody import Record, Weights, first_record
from tramfl.config import Budget, Evaluation, Scenario
from tramfl.notation import Decision, Ledger
from tramfl.record import Milestones, Row, RowDecision, RowLoads, Scores
from tramfl.runtime.registers.contract import ABSENT
from tramfl.runtime.training.bench import _Bench
from tramfl.runtime.training.scoring import Note, Scorer, TestedRounds, with_scores
from tramfl.runtime.training.workshop import Build, Built, Job, JobResult, NewWeights, Score, Workshop
from tramfl.scheduling.load_aware import LoadAware
from tramfl.scheduling.policy import PolicySettings
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import with_training

SITES = 3
TARGETS = (0.5, 0.8)


class BenchHere(Workshop):
    """A workshop whose bench works in this process, since loading PyTorch in another takes seconds."""

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self._bench = _Bench()
        self.asked: list[tuple[float, ...]] = []

    async def _ask(self, request: Job, kind: type[Any]) -> Any:
        result: JobResult = self._bench.do(request)
        assert isinstance(result, kind), result
        if isinstance(request, Score):
            self.asked.append(request.targets)
        return result

    async def open(self) -> Built:
        built: Built = await self._ask(self._build, Built)
        return built


class Resting(LoadAware):
    """Load-aware, but nobody trains in every third round."""

    def decide(self, ledger: Ledger, *rest: Any) -> Decision:
        decision = super().decide(ledger, *rest)
        if ledger.round % 3 == 1:
            return Decision("resting", None, (0,) * len(ledger.used), 0.0, 0.0, 1.0, "A round of rest.")
        return decision


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    base = scenario_named("digits-3")
    evaluation = Evaluation(every=2, subset=40)
    return replace(base, seed=3, evaluation=evaluation, budget=Budget(targets=TARGETS, rounds=120))


@pytest.fixture(scope="module")
def simulated(scenario: Scenario) -> list[Row]:
    setting, _ = with_training(scenario, threads=1)
    return list(Experiment(scenario, setting, policy=Resting(PolicySettings.of(scenario, setting.labels))).rounds())


class Sites:
    """Three sites that carry out the rounds of a record with their own learners and one register."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.folder, self.memory, self.log = scenario, folder, Memory(), Log()
        self.shops = [BenchHere(Build(scenario, n, "abc"[n], None, None, None, 1)) for n in range(SITES)]
        self.reached: list[int] = []
        self.scorers: dict[int, Scorer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.record: Record

    async def start(self) -> None:
        """All sites, which know nothing but what the register says; those that were at work are gone."""
        await self.end()
        for node in range(SITES):
            place = self.folder / "abc"[node]
            place.mkdir(exist_ok=True)
            register = MemoryView(self.memory, "abc"[node], 1e6)
            self.scorers[node] = Scorer(
                place, self.shops[node], register, self.scenario, self.log, self._on_last_target
            )
            self._tasks.append(asyncio.create_task(self.scorers[node].work()))
        await asyncio.sleep(0)  # what a former life left to test is gone

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _on_last_target(self, run: str) -> None:
        self.reached.append(self.record.round)

    async def begin(self) -> MemoryView:
        register = MemoryView(self.memory, "abc"[0], 1e6)
        await register.join()
        for shop in self.shops:
            await shop.open()
        made = await self.shops[0].make_initial(self.folder / "w0")
        self.record = first_record("run", 0, made.digest, (0,), 10)
        self.path = self.folder / "w0"
        await register.swap(ABSENT, self.record)
        return register

    async def carry_out(self, row: Row, register: MemoryView) -> None:
        """One round: train where the row says, commit, and test where and when the site finds it due."""
        site = row.holder if row.node is None else row.node
        if row.node is not None:
            to = self.folder / f"w{row.round}"
            made: NewWeights = await self.shops[site].train(self.path, row.samples, row.round, to)
            self.path, self.record = to, replace(self.record, weights=Weights(made.digest, (site,)))
        seconds = row.total_seconds - self.record.ledger.seconds
        ledger = replace(self.record.ledger.after(row.samples, seconds), seconds=row.total_seconds)
        self.record = replace(self.record, ledger=ledger)
        plain = replace(row, test_accuracy=None, test_loss=None, validation_loss=None)
        revision = (await register.look()).versioned
        assert revision is not None
        assert await register.swap(revision.revision, self.record, msgspec.json.encode(plain)) is not None
        self.scorers[site].committed(self.record, self.path, trained=row.node is not None)
        while any(self.folder.glob("*/score-*")):
            await asyncio.sleep(0)


def test_a_run_has_the_same_tests_at_sites_as_in_simulation(
    scenario: Scenario, simulated: list[Row], tmp_path: Path
) -> None:
    tested = [row for row in simulated if row.test_accuracy is not None]
    skipped = [row for row in simulated if row.node is None]
    assert len(tested) > 4
    assert len(skipped) > 4
    assert len({row.node for row in tested}) > 1, "tests of one site alone would show nothing"
    assert simulated[-1].round < 120, "the run ends at its last target"

    async def real() -> tuple[Sites, list[Row]]:
        sites = Sites(scenario, tmp_path)
        register = await sites.begin()
        await sites.start()
        for row in simulated:
            if row.round == len(simulated) // 2:
                await sites.start()
            await sites.carry_out(row, register)
        await sites.end()
        notes = await register.notes("run", 1, 10**6)
        lines = [with_scores(line, notes) for line in await register.rows("run", 1, 10**6)]
        return sites, [msgspec.json.decode(line, type=Row) for line in lines]

    sites, rows = asyncio.run(real())
    assert rows == simulated
    assert {targets for shop in sites.shops for targets in shop.asked} == {TARGETS, TARGETS[1:]}
    assert sites.reached == [simulated[-1].round]


ROW = Row(
    round=1,
    holder=0,
    node=0,
    samples=(1,),
    loads=RowLoads((1.0,), (None,)),
    compute_seconds=1.0,
    transfer_seconds=0.0,
    idle_seconds=0.0,
    total_seconds=1.0,
    used=(1,),
    label_variance=0.0,
    decision=RowDecision("any", "So.", 1.0, ()),
)


class Kept:
    """A register with rows and notes that a test put there."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.view = MemoryView(self.memory, "abc"[0], 1e6)
        self.tested = TestedRounds(self.view)

    def row(self, round_: int, epoch: int = 1) -> None:
        self.memory.rows["run", round_] = msgspec.json.encode(replace(ROW, round=round_, epoch=epoch))

    def note(self, round_: int, accuracy: float, epoch: int = 1) -> None:
        self.memory.notes["run", round_] = msgspec.json.encode(Note(epoch, Scores(accuracy)))

    def before(self, round_: int, epoch: int = 1) -> list[tuple[int, float | None]]:
        ledger = Ledger((1,), 1.0, round_)
        record = replace(first_record("run", 0, "w0", (0,), 1), epoch=epoch, ledger=ledger)
        return [(row.round, row.test_accuracy) for row in asyncio.run(self.tested.before(record))]


def test_a_note_that_comes_late_counts_from_the_next_test_on() -> None:
    kept = Kept()
    for round_ in range(1, 500):
        kept.row(round_)
    kept.note(2, 0.2)
    assert kept.before(400) == [(2, 0.2)]
    kept.note(1, 0.1)
    kept.note(399, 0.9)
    assert kept.before(401) == [(1, 0.1), (2, 0.2), (399, 0.9)]


def test_tests_of_a_metric_that_should_fall_close_its_targets() -> None:
    kept = Kept()
    for round_, error in ((1, 0.9), (2, 0.4), (3, 0.6)):
        kept.row(round_)
        kept.memory.notes["run", round_] = msgspec.json.encode(
            Note(1, Scores(None, error**2, metrics={"mae": error}))
        )
    record = replace(first_record("run", 0, "w0", (0,), 1), ledger=Ledger((1,), 1.0, 4))
    rows = asyncio.run(kept.tested.before(record))
    assert [row.measured("mae") for row in rows] == [0.9, 0.4, 0.6]
    budget = Budget(targets=(0.5, 0.1), metric="mae", direction="lower")
    assert Milestones.of(budget, rows).open == (0.1,)


def test_the_test_of_a_round_that_was_lost_and_done_again_does_not_count() -> None:
    kept = Kept()
    for round_ in (1, 2, 3):
        kept.row(round_)
        kept.note(round_, 0.9)
    assert kept.before(4) == [(1, 0.9), (2, 0.9), (3, 0.9)]
    # Another site took over after round 1; rounds 2 and 3 are done again, and 3 is not tested yet.
    kept.row(2, epoch=2)
    kept.row(3, epoch=2)
    kept.note(2, 0.4, epoch=2)
    assert kept.before(4, epoch=2) == [(1, 0.9), (2, 0.4)]


def test_a_run_whose_last_target_was_reached_by_a_site_that_was_lost_is_ended_by_the_next_test(
    scenario: Scenario, tmp_path: Path
) -> None:
    kept, ended = Kept(), []
    kept.row(1)
    kept.note(1, 0.95)

    def reached(run: str) -> None:
        ended.append(run)

    async def work() -> None:
        shop = BenchHere(Build(scenario, 0, "a", None, None, None, 1))
        scorer = Scorer(tmp_path, shop, kept.view, scenario, Log(), reached)
        task = asyncio.create_task(scorer.work())
        await asyncio.sleep(0)
        (tmp_path / "weights").write_bytes(b"")
        record = replace(first_record("run", 0, "w0", (0,), 1), ledger=Ledger((1,), 2.0, 2))
        scorer.committed(record, tmp_path / "weights", trained=True)
        while any(tmp_path.glob("score-*")):
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(work())
    assert ended == ["run"]

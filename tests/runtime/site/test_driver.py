"""A driver that breaks writes its last events down, and they can be played again; no process, no network."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from tests.runtime.memory import Memory, MemoryView
from tests.runtime.sites import federation
from tests.runtime.training.test_scoring import BenchHere
from tramfl.circulation import commands as do
from tramfl.circulation import events as on
from tramfl.circulation.changes import SetStatus
from tramfl.circulation.custody import Entry, MemoryRegister, Record, first_record
from tramfl.circulation.machine import IllegalEvent
from tramfl.circulation.phases import Copy, Following, Left, Limits, Offer
from tramfl.cli.blackbox import blackbox
from tramfl.config import TrainingSettings
from tramfl.notation import BadInput, Decision, Habit, ModelCost, Outlook
from tramfl.record import Row
from tramfl.runtime.roster import Roster
from tramfl.runtime.site.driver import Driver, DriverEnded
from tramfl.runtime.site.tapes import KEPT_TAPES
from tramfl.runtime.training.workshop import Build, NewWeights, Workshop
from tramfl.runtime.transport import Unreachable
from tramfl.runtime.weights.store import WeightStore
from tramfl.runtime.wire import Accepted, AskLoad, Consignment, Load
from tramfl.scheduling.policy import PolicySettings, policy_named
from tramfl.simulation.scenarios import scenario_named

LONG = 60.0


class Surroundings:
    """A site that is alone: nobody reports a load."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.nudged: list[int] = []
        self.lives = 0
        self.load = Load(2e9, 3e6, (4, 5))
        """What the other site reports."""

    def own_load(self) -> float:
        return math.nan

    async def load_of(self, node: int, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        load = msgspec.msgpack.decode(msgspec.msgpack.encode(self.load), type=Load)
        return load, load.bandwidth or math.nan

    def nudge(self, to: int) -> None:
        self.nudged.append(to)

    def broken(self, error: BaseException) -> None:
        self.errors.append(error)

    def superseded(self, place: str) -> None:
        self.lives += 1


async def made(
    folder: Path,
    memory: Memory,
    surroundings: Surroundings,
    cost: ModelCost,
    sites: int,
    labels: int,
    workshop: Workshop | None,
    store: WeightStore,
) -> Driver:
    """The driver of site a, not started yet."""
    register = MemoryView(memory, "a", LONG)
    await register.join()
    return Driver(
        me=0,
        roster=Roster(federation(tuple("abc"[:sites]))),
        run="run",
        seed=0,
        labels=labels,
        limits=Limits(),
        cost=cost,
        policy=policy_named("load-aware", PolicySettings()),
        policy_name="load-aware",
        wait_seconds=1.0,
        register=register,
        store=store,
        workshop=cast(Any, workshop),
        surroundings=cast(Any, surroundings),
        clock=lambda: 1000.0,
        log=lambda event, **fields: None,
        incarnation=1,
        folder=folder,
    )


async def following(folder: Path) -> tuple[Driver, Surroundings, Memory]:
    """The driver of site a, which follows site b."""
    memory = Memory(MemoryRegister(first_record("run", 1, "w0", (1,), 2, (Entry("a"), Entry("b")))))
    surroundings, store = Surroundings(), WeightStore(folder / "runs" / "run")
    driver = await made(folder, memory, surroundings, ModelCost(1.0, 1.0), 2, 2, None, store)
    driver.start()
    while not isinstance(driver.state.phase, Following):
        await asyncio.sleep(0)
    return driver, surroundings, memory


class Alone(Surroundings):
    """A site that can train, and reaches nobody."""

    def own_load(self) -> float:
        return 1e12

    def own_outlook(self) -> None:
        return None

    async def load_of(self, node: int, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        raise Unreachable("gone")

    def trained(self, samples: int, seconds: float) -> None:
        pass

    def objection(self, made: NewWeights) -> None:
        return None

    def made(self, record: Record, command: do.Train, digest: str, rejected: str | None) -> None:
        pass

    def closed(self, command: do.CloseRound, path: Path | None) -> None:
        pass


@pytest.mark.filterwarnings("ignore:.*the training loss at node 0")
def test_the_row_of_a_round_whose_training_diverged_says_so(tmp_path: Path) -> None:
    base = scenario_named("digits-3")
    scenario = replace(base, training=TrainingSettings(learning_rate=1e30, divergence="warn"))

    async def play() -> tuple[Row, list[BaseException]]:
        shop, store, surroundings = (
            BenchHere(Build(scenario, 0, "a", None, None, None, 1)),
            WeightStore(tmp_path / "runs" / "run"),
            Alone(),
        )
        built, first = await shop.open(), store.scratch()
        digest = (await shop.make_initial(first)).digest
        store.put(first, Copy(digest, 0, 1))
        memory = Memory(MemoryRegister(first_record("run", 0, digest, (0,), 10, tuple(map(Entry, "abc")))))
        driver = await made(tmp_path, memory, surroundings, built.cost, 3, 10, shop, store)
        driver.held[0] = built.held
        driver.start()
        while ("run", 1) not in memory.rows and not surroundings.errors:
            await asyncio.sleep(0.01)
        await driver.end()
        return msgspec.json.decode(memory.rows["run", 1], type=Row), surroundings.errors

    row, errors = asyncio.run(play())
    assert errors == []
    assert (row.node, row.diverged) == (0, True)


class Chatty(Alone):
    """A site that notes when it is asked to ask another one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []
        self.committed = 0

    async def load_of(self, node: int, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        self.asked.append((ask.round, self.committed))
        return Load(1.0, 1e3, (0,) * 10), 1e3

    async def send(self, *_: object) -> None:
        raise Unreachable("it takes no copy")

    def closed(self, command: do.CloseRound, path: Path | None) -> None:
        self.committed = command.record.round


def test_a_site_that_has_trained_asks_the_others_before_the_round_is_committed_and_no_second_time(
    tmp_path: Path,
) -> None:
    scenario, chatty = scenario_named("digits-3"), Chatty()

    async def play() -> None:
        shop, store = BenchHere(Build(scenario, 0, "a", None, None, None, 1)), WeightStore(tmp_path / "runs" / "run")
        built, first = await shop.open(), store.scratch()
        digest = (await shop.make_initial(first)).digest
        store.put(first, Copy(digest, 0, 1))
        memory = Memory(MemoryRegister(first_record("run", 0, digest, (0,), 10, tuple(map(Entry, "abc")))))
        driver = await made(tmp_path, memory, chatty, built.cost, 3, 10, shop, store)
        driver.held[0] = built.held
        driver.start()
        while ("run", 2) not in memory.rows and not chatty.errors:
            await asyncio.sleep(0.01)
        await driver.end()

    asyncio.run(play())
    assert chatty.errors == []
    # The first round is asked for when it begins, the second while the first is not committed yet; of b and c each.
    assert [asked for asked in chatty.asked if asked[0] <= 2] == [(1, 0), (1, 0), (2, 0), (2, 0)]


def impossible(driver: Driver) -> on.Event:
    decision = Decision("by hand", None, (0, 0), 0.0, 0.0, 1.0, "Nobody trains.")
    return on.Decided(1001.0, driver.state.ticket + 1, decision)


def test_an_impossible_event_is_written_down_and_played_again_to_where_it_broke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play() -> Surroundings:
        driver, surroundings, _ = await following(tmp_path)
        driver.tell(impossible(driver))
        await driver.end()
        return surroundings

    surroundings = asyncio.run(play())
    (error,) = surroundings.errors
    assert isinstance(error, IllegalEvent)
    (file,) = tmp_path.glob("blackbox-*.msgpack")
    blackbox(file)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "site a, run run: 3 events before it broke with"
    assert any("Joining -> Following: RecordRead(" in line for line in lines)
    assert lines[-1].strip() == f"the machine breaks here: IllegalEvent: {error}"


def test_only_the_newest_black_boxes_are_kept(tmp_path: Path) -> None:
    for second in range(5):
        (tmp_path / f"blackbox-{second}.msgpack").touch()

    async def play() -> None:
        driver, _, _ = await following(tmp_path)
        driver.tell(impossible(driver))
        await driver.end()

    asyncio.run(play())
    kept = sorted(file.name for file in tmp_path.glob("blackbox-*"))
    assert len(kept) == KEPT_TAPES
    assert "blackbox-1000.msgpack" in kept


def test_a_black_box_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        blackbox(tmp_path / "blackbox-0.msgpack")


@pytest.mark.parametrize(("sent_at", "began"), [(990.0, 992.0), (None, 997.0), (2000.0, 997.0)])
def test_the_way_of_a_model_is_part_of_its_round_and_its_transfer_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_at: float | None, began: float
) -> None:
    async def play() -> None:
        driver, surroundings, _ = await following(tmp_path)
        monkeypatch.setattr("tramfl.runtime.site.driver.time.monotonic", lambda: 50.0)
        (staged := driver.store.scratch()).write_bytes(b"weights")
        offer = Offer(1, 0, "0" * 64, 1, None)
        # Its first message came 5 s ago, of which 2 s were the transfer; the clock says 1,000 s.
        arriving = asyncio.ensure_future(driver.arrived(1, Consignment("run", offer, 7, sent_at), staged, 2.0, 45.0))
        await asyncio.sleep(0)
        assert [model.at for model in driver.state.incoming] == [began]
        assert await arriving == Accepted()
        assert surroundings.errors == []
        await driver.end()

    asyncio.run(play())


def test_an_order_is_answered_by_the_record_and_an_ended_driver_answers_none(tmp_path: Path) -> None:
    async def play() -> None:
        driver, surroundings, memory = await following(tmp_path)
        record = await driver.order(SetStatus(0, "paused"))
        assert memory.register is not None
        assert record == memory.register.read().record
        assert record is not None
        assert record.status == "paused"
        assert surroundings.nudged == [1]
        await driver.end()
        with pytest.raises(DriverEnded):
            await driver.order(SetStatus(0, "running"))

    asyncio.run(play())


def test_a_follower_that_leaves_gives_its_lease_up_and_an_ended_driver_does_not(tmp_path: Path) -> None:
    async def play() -> None:
        driver, _, _ = await following(tmp_path)
        assert (await driver.leave()).release
        await driver.end()
        ended, _, _ = await following(tmp_path)
        await ended.end()
        assert not (await ended.leave()).release

    asyncio.run(play())


def test_a_driver_whose_site_was_started_a_second_time_changes_nothing_and_lets_the_site_end(tmp_path: Path) -> None:
    async def play() -> None:
        driver, surroundings, memory = await following(tmp_path)
        await MemoryView(memory, "a", LONG).join()
        order = asyncio.create_task(driver.order(SetStatus(0, "stopped")))
        while not surroundings.lives:
            await asyncio.sleep(0)
        assert isinstance(driver.state.phase, Left)
        await driver.end()
        with pytest.raises(DriverEnded):
            await order
        assert memory.register is not None
        assert memory.register.read().record.status == "running"

    asyncio.run(play())


HABIT = Habit(2e9, 1e9, 0.5, 0.9, 4e9)
OUTLOOK = Outlook(HABIT, (Habit(3e6, 2e6, 0.1, 0.99, 5e6), None), 2.5)


def asked(folder: Path, load: Load) -> tuple[list[on.Event], list[tuple[str, str]]]:
    """What site a makes of the load that site b reports: the events of its machine, and its log."""
    events: list[on.Event] = []
    logged: list[tuple[str, str]] = []

    async def play() -> None:
        driver, surroundings, _ = await following(folder)
        surroundings.load = load
        carrier: Any = driver
        carrier.tell = events.append
        carrier._loads._log = lambda event, **fields: logged.append((event, fields["reason"]))
        await driver._asking(do.AskLoads(1, 1, (1,)), 1)
        del carrier.tell
        await driver.end()

    asyncio.run(play())
    return events, logged


def test_what_a_site_says_of_its_past_reaches_the_machine(tmp_path: Path) -> None:
    events, logged = asked(tmp_path, Load(2e9, 3e6, (4, 5), OUTLOOK))
    assert events == [on.LoadReported(1000.0, 1, 1, 2e9, 3e6, OUTLOOK)]
    assert not logged


def test_a_site_that_says_nothing_of_its_past_sends_what_it_always_sent(tmp_path: Path) -> None:
    load = Load(2e9, 3e6, (4, 5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(load)).keys() == {"flops", "bandwidth", "held"}
    events, _ = asked(tmp_path, load)
    assert events == [on.LoadReported(1000.0, 1, 1, 2e9, 3e6, None)]


@pytest.mark.parametrize(
    "outlook",
    [
        replace(OUTLOOK, links=(HABIT,)),
        replace(OUTLOOK, step_seconds=math.nan),
        replace(OUTLOOK, step_seconds=-1.0),
        replace(OUTLOOK, step_seconds=1e-300),
        replace(OUTLOOK, step_seconds=math.inf),
        *(
            replace(OUTLOOK, **{where: habit if where == "compute" else (habit, None)})
            for where in ("compute", "links")
            for habit in (
                replace(HABIT, now=math.inf),
                replace(HABIT, mean=0.0),
                replace(HABIT, mean=-1.0),
                replace(HABIT, most=1e300),
                replace(HABIT, spread=math.nan),
                replace(HABIT, spread=-0.1),
                replace(HABIT, spread=1e6),
                replace(HABIT, persistence=1.01),
                replace(HABIT, persistence=-0.01),
                replace(HABIT, persistence=math.nan),
            )
        ),
    ],
)
def test_a_past_that_no_load_can_have_is_ignored_with_the_whole_report(outlook: Outlook, tmp_path: Path) -> None:
    events, logged = asked(tmp_path, Load(2e9, 3e6, (4, 5), outlook))
    assert events == [on.LoadMissing(1000.0, 1, 1)]
    ((event, reason),) = logged
    assert event == "load-ignored"
    assert reason.startswith("its outlook has ")

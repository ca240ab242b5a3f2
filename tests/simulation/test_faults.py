"""The search for schedules that break an invariant finds none, and finds every bug that is planted for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from tramfl.circulation import backup, changes, holding, leaving, machine, ordering, receiving, recovery, swapping
from tramfl.circulation.changes import Commit, RollBack, SetStatus, TakeOver
from tramfl.circulation.commands import Acknowledge, AnswerOrder, Depart, Discard, Store, Swap
from tramfl.circulation.custody import Record, Versioned, numbered
from tramfl.circulation.events import (
    Acknowledged,
    HolderLost,
    LoadMissing,
    LoadReported,
    ModelArrived,
    RecordRead,
    Rejected,
    Stored,
    Superseded,
    Trained,
    Woke,
)
from tramfl.circulation.machine import Rule
from tramfl.circulation.phases import (
    Assignment,
    Attempt,
    Deciding,
    Halted,
    HandingOn,
    Leaving,
    Phase,
    Sending,
    State,
    Storing,
    Training,
)
from tramfl.circulation.steps import Step
from tramfl.simulation.fault_schedules import Blackout, Crash, LostDisk, Schedule, schedule_of
from tramfl.simulation.faults import Trial, try_schedule

CHUNK = 20
SCHEDULES = 300


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_no_schedule_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert try_schedule(seed) is None, "\n".join(schedule_of(seed).describe())


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3451, id="an earlier life hears the register again after the later one has left"),
        pytest.param(5163, id="the next holder fails while a leaving node sends it the model"),
        pytest.param(8519, id="a node is asked to leave while it joins, just after the register is back"),
    ],
)
def test_a_schedule_that_once_broke_an_invariant_does_so_no_more(seed: int) -> None:
    assert try_schedule(seed) is None


def test_a_seed_stands_for_one_schedule_and_one_end() -> None:
    for seed in (11, 12, 13):
        assert schedule_of(seed) == schedule_of(seed)
        one, two = Trial(schedule_of(seed)), Trial(schedule_of(seed))
        one.play()
        two.play()
        assert one.world.register.read() == two.world.register.read()
        assert one.world.clock.now == two.world.clock.now
        assert [s.disk for s in one.world.sites] == [s.disk for s in two.world.sites]
    assert schedule_of(11) != schedule_of(12)


def test_the_schedules_have_every_kind_of_fault_and_takeovers_among_them() -> None:
    kinds = {type(fault).__name__ for seed in range(100) for fault in schedule_of(seed).faults}
    assert kinds == {
        "Crash", "Blackout", "LostDisk", "LastWords", "Cut", "RegisterOutage", "Lossy", "SlowDisk", "SlowLinks",
        "CutTransfers", "SlowTraining", "BadTraining", "Pause", "Stop", "Leave", "Twin", "Lies", "Join", "Remove",
        "Backward", "Poison",
    }  # fmt: skip
    epochs = []
    for seed in range(20):
        trial = Trial(schedule_of(seed))
        trial.play()
        epochs.append(trial.world.register.read().record.epoch)
    assert sum(epoch > 1 for epoch in epochs) >= 4
    assert max(epochs) >= 3, "a run that was taken over twice"


@pytest.mark.parametrize(
    "faults",
    [
        (Blackout(20.0, 60.0), Blackout(61.0, 100.0)),
        (Crash(10.0, 40.0, None), Crash(50.0, float("inf"), None), Crash(70.0, float("inf"), None)),
        (LostDisk(30.0, 31.0, None), LostDisk(60.0, 90.0, None)),
    ],
    ids=["everyone, twice", "one holder after another", "holders' disks"],
)
def test_a_run_survives_and_goes_on(faults: tuple[Crash | Blackout, ...]) -> None:
    for seed in range(5):
        trial = Trial(Schedule(seed, 4, "load-aware", faults))
        trial.play()
        assert trial.world.register.read().record.round > 5


# Planted bugs: each breaks one thing, and the search must see it as what it is.


NEWS: dict[Any, Any] = machine.NEWS
PHASES: dict[Any, Any] = machine.PHASES


def handle(patch: pytest.MonkeyPatch, table: dict[Any, Any], key: Any, handler: Callable[[State, Any], Step]) -> None:
    """Let another handler deal with an event; it may lead to any phase."""
    patch.setitem(table, key, machine.Rule(handler, get_args(Phase)))


def _takeover_under_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    honest = TakeOver.applied

    def applied(self: TakeOver, record: Record, me: int) -> Record | None:
        after = honest(self, record, me)
        return None if after is None else replace(after, epoch=record.epoch)

    patch.setattr(TakeOver, "applied", applied)


def _acknowledged_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    honest = NEWS[ModelArrived].handler

    def model_arrived(state: State, event: ModelArrived) -> Step:
        state, commands = honest(state, event)
        return state, (*commands, Acknowledge(event.sender, event.offer.ticket))

    handle(patch, NEWS, ModelArrived, model_arrived)


def _committed_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    honest, stored = holding.trained, holding.stored

    def trained(state: State, event: Trained) -> Step:
        state, commands = honest(state, event)
        (store, *_) = commands
        assert isinstance(store, Store)
        state, swap = stored(state, Stored(event.at, store.ticket, store.copy))
        return state, (*commands, *swap)

    handle(patch, PHASES, (Training, Trained), trained)


def _discarded_as_soon_as_newer_weights_are_seen(patch: pytest.MonkeyPatch) -> None:
    honest = recovery.noticed

    def noticed(state: State, versioned: Versioned) -> Step:
        state, commands = honest(state, versioned)
        older = tuple(c for c in state.copies if c.round < versioned.record.round)
        kept = tuple(c for c in state.copies if c not in older)
        return replace(state, copies=kept), (*commands, Discard(tuple(c.digest for c in older)))

    for module in (recovery, swapping):
        patch.setattr(module, "noticed", noticed)


def _takeover_from_safe_keeps_the_newest_ledger(patch: pytest.MonkeyPatch) -> None:
    honest = TakeOver.applied

    def applied(self: TakeOver, record: Record, me: int) -> Record | None:
        after = honest(self, record, me)
        return None if after is None else replace(after, ledger=record.ledger)

    patch.setattr(TakeOver, "applied", applied)


def _work_goes_on_from_a_parent_that_a_former_life_moved_past(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_standing", lambda record: record.epoch)


def _commit_that_landed_is_made_again(patch: pytest.MonkeyPatch) -> None:
    def fits_any_round(record: Record, me: int, epoch: int, round_: int, digest: str) -> bool:
        return record.epoch == epoch and record.holder == me

    patch.setattr(changes, "_is_mine", fits_any_round)
    patch.setattr(Commit, "landed", lambda self, record: False)


def _change_that_fits_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "_is_mine", lambda record, me, epoch, round_, digest: record.round == round_)


def _nobody_takes_over(patch: pytest.MonkeyPatch) -> None:
    def holder_lost(state: State, event: HolderLost) -> Step:
        return state, ()

    handle(patch, NEWS, HolderLost, holder_lost)


def _transfer_without_a_deadline(patch: pytest.MonkeyPatch) -> None:
    def woke(state: State, event: Woke) -> Step:
        return state, ()

    handle(patch, PHASES, (Sending, Woke), woke)


def _store_without_a_deadline(patch: pytest.MonkeyPatch) -> None:
    def woke(state: State, event: Woke) -> Step:
        return state, ()

    handle(patch, PHASES, (Storing, Woke), woke)


def _paused_run_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A holder that learns of the pause while it commits begins the next round all the same."""
    honest = holding.gather

    def gather(state: State, attempt: Attempt) -> Step:
        seen = state.seen
        assert seen is not None
        running = Versioned(replace(seen.record, status="running"), seen.revision)
        state, commands = honest(replace(state, seen=running), attempt)
        return replace(state, seen=seen), commands

    for module in (holding, recovery, swapping):
        patch.setattr(module, "gather", gather)


def _stopped_run_can_be_resumed(patch: pytest.MonkeyPatch) -> None:
    def applied(self: SetStatus, record: Record, me: int) -> Record | None:
        return None if record.status == self.status else replace(record, status=self.status)

    patch.setattr(SetStatus, "applied", applied)


def _order_answered_before_it_is_carried_out(patch: pytest.MonkeyPatch) -> None:
    honest = ordering.put

    def put(state: State, event: RecordRead) -> Step:
        state, commands = honest(state, event)
        if not any(isinstance(c, Swap) for c in commands):
            return state, commands
        order = state.orders[-1]
        seen = state.seen
        assert seen is not None
        wanted = replace(order.change, epoch=seen.record.epoch).applied(seen.record, state.me)
        answer = AnswerOrder(order.order, wanted)
        return replace(state, orders=state.orders[:-1]), (*commands, answer)

    handle(patch, machine.ORDERS, RecordRead, put)


def _nothing_is_shipped_at_rest(patch: pytest.MonkeyPatch) -> None:
    for module in (backup, holding, recovery):
        patch.setattr(module, "halt", lambda state: (replace(state, phase=Halted()), ()))
    patch.setattr(swapping, "start_backup", lambda state, assignment: (state, ()))


def _leaving_without_handing_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "leave", leaving.depart)


def _handed_on_before_it_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    honest = leaving._hand_on

    def hand_on(state: State, links: dict[int, float], tried: frozenset[int]) -> Step:
        state, commands = honest(state, links, tried)
        if not isinstance(state.phase, HandingOn):
            return state, commands
        state, swap = leaving.acknowledged(state, Acknowledged(0.0, state.phase.ticket))
        return state, (*commands, *swap)

    patch.setattr(leaving, "_hand_on", hand_on)
    for event in (LoadReported, LoadMissing, Woke):
        handle(patch, PHASES, (Leaving, event), PHASES[Leaving, event].handler)


def _lease_given_up_with_the_only_copy(patch: pytest.MonkeyPatch) -> None:
    honest = leaving.depart

    def depart(state: State, *, in_doubt: bool = False) -> Step:
        state, commands = honest(state, in_doubt=in_doubt)
        return state, tuple(replace(c, release=True) if isinstance(c, Depart) else c for c in commands)

    for module in (leaving, swapping):
        patch.setattr(module, "depart", depart)


def _earlier_life_goes_on(patch: pytest.MonkeyPatch) -> None:
    def superseded(state: State, event: Superseded) -> Step:
        return state, ()

    handle(patch, NEWS, Superseded, superseded)


def _training_outruns_the_background_copy(patch: pytest.MonkeyPatch) -> None:
    def train_on(state: State, assignment: Assignment) -> Step:
        assert isinstance(state.phase, Deciding)
        return holding.train(state, state.phase.attempt, assignment, 0.0)

    patch.setattr(holding, "hold_back", train_on)


def _rejected_weights_are_committed(patch: pytest.MonkeyPatch) -> None:
    def accepted(state: State, event: Rejected) -> Step:
        return holding.trained(state, Trained(event.at, event.ticket, event.digest, event.seconds))

    patch.setitem(PHASES, (Training, Rejected), Rule(accepted, (Storing,)))


def _assignments_are_believed_from_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiving, "_assigned", lambda state, incoming: incoming)


def _removed_node_goes_on(patch: pytest.MonkeyPatch) -> None:
    turns, commits, everybody = recovery._must_turn, Commit.applied, numbered(20)

    def applied(self: Commit, record: Record, me: int) -> Record | None:
        after = commits(self, replace(record, members=everybody), me)
        return None if after is None else replace(after, members=record.members)

    patch.setattr(recovery, "_must_turn", lambda state, record: turns(state, replace(record, members=everybody)))
    patch.setattr(Commit, "applied", applied)


def _time_at_the_sender_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holding, "_overhead", lambda state, attempt, at, working: at - attempt.began - working)


def _running_run_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    honest = RollBack.applied

    def applied(self: RollBack, record: Record, me: int) -> Record | None:
        after = honest(self, replace(record, status="paused"), me)
        return None if after is None else replace(after, status=record.status)

    patch.setattr(RollBack, "applied", applied)


def _kept_versions_are_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "kept_at", lambda record, me: set())


def _rollback_keeps_the_newest_ledger(patch: pytest.MonkeyPatch) -> None:
    honest = RollBack.applied

    def applied(self: RollBack, record: Record, me: int) -> Record | None:
        after = honest(self, record, me)
        return None if after is None else replace(after, ledger=record.ledger)

    patch.setattr(RollBack, "applied", applied)


def _refused_holder_keeps_the_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holding, "is_forsaken", lambda state: False)


BEGIN: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _work_goes_on_from_a_parent_that_a_former_life_moved_past: 179,
    _change_that_fits_any_epoch: 100,
    _store_without_a_deadline: 200,
    _paused_run_goes_on: 40,
}
"""The seeds to search from for bugs that take long to find from 0: make test has six minutes for everything."""


@pytest.mark.parametrize(
    ("plant", "number"),
    [
        (_takeover_under_the_same_epoch, 1),
        (_acknowledged_before_it_is_stored, 2),
        (_committed_before_it_is_stored, 2),
        (_discarded_as_soon_as_newer_weights_are_seen, 2),
        (_takeover_from_safe_keeps_the_newest_ledger, 3),
        (_work_goes_on_from_a_parent_that_a_former_life_moved_past, 3),
        (_commit_that_landed_is_made_again, 3),
        (_change_that_fits_any_epoch, 4),
        (_nobody_takes_over, 5),
        (_transfer_without_a_deadline, 5),
        (_store_without_a_deadline, 5),
        (_refused_holder_keeps_the_model, 5),
        (_paused_run_goes_on, 6),
        (_stopped_run_can_be_resumed, 6),
        (_order_answered_before_it_is_carried_out, 6),
        (_nothing_is_shipped_at_rest, 7),
        (_handed_on_before_it_is_acknowledged, 2),
        (_leaving_without_handing_on, 8),
        (_lease_given_up_with_the_only_copy, 8),
        (_earlier_life_goes_on, 9),
        (_training_outruns_the_background_copy, 10),
        (_rejected_weights_are_committed, 11),
        (_assignments_are_believed_from_anybody, 12),
        (_removed_node_goes_on, 13),
        (_time_at_the_sender_is_forgotten, 14),
        (_kept_versions_are_deleted, 2),
        (_rollback_keeps_the_newest_ledger, 1),
        (_running_run_is_rolled_back, 15),
    ],
)
def test_the_search_finds_a_planted_bug_within_1000_schedules_and_again_in_the_same_way(
    plant: Callable[[pytest.MonkeyPatch], None], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seeds = range(BEGIN.get(plant, 0), 1000)
    found = ((seed, broken) for seed in seeds if (broken := try_schedule(seed)) is not None)
    seed, broken = next(found, (None, ""))
    assert seed is not None, "1,000 schedules did not find it"
    print(f"{plant.__name__}: found by seed {seed}, {broken}")
    match = re.match(r"InvariantBroken: invariant (\d+)", broken)
    assert match is not None, broken
    assert int(match[1]) == number, broken
    assert try_schedule(seed) == broken
    monkeypatch.undo()
    assert try_schedule(seed) is None

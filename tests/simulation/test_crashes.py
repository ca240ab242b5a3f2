"""Crash at every prefix: whatever step a run is stopped at, it goes on from the record and the disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tramfl.notation import NodeId
from tramfl.simulation.fault_schedules import (
    Cut,
    CutTransfers,
    Fault,
    LastWords,
    Lossy,
    RegisterOutage,
    Schedule,
    SlowDisk,
)
from tramfl.simulation.faults import Trial

ROUNDS, ROUNDS_MORE = 4, 3
AWAY = {"back at once": 0.0, "missed": 7.0}
"""Seconds until who was killed is back; a lease lasts 5."""

CALM: tuple[Fault, ...] = ()
ROUGH: tuple[Fault, ...] = (
    Lossy(0.0, 100.0, loss=0.1, delay=3.0),
    SlowDisk(0.0, 100.0, node=1, seconds=2.0),
    LastWords(1.0, 100.0, delay=3.0, away=1.0),
    CutTransfers(4.0, 6.0),
)
CUT_OFF: tuple[Fault, ...] = (Cut(2.0, 20.0, frozenset({0})), RegisterOutage(25.0, 28.0))

Victims = Callable[[Trial], Iterable[NodeId]]


def everyone(trial: Trial) -> Iterable[NodeId]:
    return range(trial.schedule.nodes)


def the_holder(trial: Trial) -> Iterable[NodeId]:
    holder = trial.world.register.read().record.holder
    return () if holder is None else (holder,)


def the_receiver(trial: Trial) -> Iterable[NodeId]:
    """Whose turn it is: variance-first goes round in order."""
    return (trial.world.register.read().record.round % trial.schedule.nodes,)


def started(policy: str, faults: tuple[Fault, ...]) -> Trial:
    trial = Trial(Schedule(seed=5, nodes=3, policy=policy, faults=faults))
    trial.start()
    return trial


def step(trial: Trial, steps: int) -> None:
    for _ in range(steps):
        assert trial.world.clock.step()
        trial.stepped()


def rounds_done(trial: Trial) -> int:
    return trial.world.register.read().record.round


def length(policy: str, faults: tuple[Fault, ...]) -> int:
    """Steps of a run until it has done its rounds undisturbed."""
    trial, steps = started(policy, faults), 0
    while rounds_done(trial) < ROUNDS:
        step(trial, 1)
        steps += 1
    return steps


def crash_and_go_on(trial: Trial, victims: Iterable[NodeId], away: float) -> None:
    """Kill the victims, bring them back, and see the run go on; the trial checks every invariant on the way."""
    goal = rounds_done(trial) + ROUNDS_MORE
    for node in victims:
        trial.world.crash(node)
        trial.world.clock.after(away, trial.world.revive, node)
    trial.world.run(lambda: rounds_done(trial) >= goal)
    assert rounds_done(trial) >= goal


_CASES = [
    *((policy, CALM, everyone, away) for policy in ("variance-first", "time-first") for away in AWAY),
    ("variance-first", ROUGH, everyone, "back at once"),
    ("time-first", ROUGH, everyone, "missed"),
    ("load-aware", CUT_OFF, everyone, "back at once"),
    *(("variance-first", CALM, victims, away) for victims in (the_holder, the_receiver) for away in AWAY),
    ("time-first", CALM, the_holder, "missed"),
    ("variance-first", ROUGH, the_holder, "missed"),
    ("variance-first", ROUGH, the_receiver, "back at once"),
]


@pytest.mark.parametrize(("policy", "faults", "victims", "away"), _CASES)
def test_a_run_stopped_at_any_step_goes_on(
    policy: str, faults: tuple[Fault, ...], victims: Victims, away: str
) -> None:
    for steps in range(length(policy, faults) + 1):
        trial = started(policy, faults)
        step(trial, steps)
        crash_and_go_on(trial, victims(trial), AWAY[away])


def test_a_holder_that_is_back_before_it_is_missed_keeps_the_model() -> None:
    for steps in range(length("variance-first", CALM)):
        trial = started("variance-first", CALM)
        step(trial, steps)
        crash_and_go_on(trial, the_holder(trial), away=0.0)
        assert trial.world.register.read().record.epoch == 1


def test_a_crash_of_everyone_loses_no_committed_round() -> None:
    for steps in range(length("time-first", CALM)):
        trial = started("time-first", CALM)
        step(trial, steps)
        before = trial.world.register.read().record
        crash_and_go_on(trial, everyone(trial), away=0.0)
        after = trial.world.register.read().record
        assert after.epoch == 1
        assert after.round == before.round + ROUNDS_MORE

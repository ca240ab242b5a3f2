"""Work through slots, what nodes say of their loads, and runs in which both are used."""

from __future__ import annotations

import math
import re
import weakref
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tramfl.config import Budget, LoadModel, Noise
from tramfl.notation import ModelCost
from tramfl.record import Row, RowLoads
from tramfl.scheduling.predictors import predictor_named
from tramfl.simulation.arena_loads import arena_loads
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.foresight import Foresight
from tramfl.simulation.load_clock import LoadClock, RoundClock, SlotClock
from tramfl.simulation.loads import RoundLoads, load_source
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

COST = ModelCost(flops_per_sample=10.0, model_bits=100.0)


class Steps:
    """Rates that follow a list, the same for every node and link; past its end they are 0."""

    def __init__(self, *rates: float) -> None:
        self._rates = rates

    def at(self, round_: int) -> RoundLoads:
        rate = self._rates[round_ - 1] if round_ <= len(self._rates) else 0.0
        return RoundLoads([rate, rate], [[math.inf, rate], [rate, math.inf]])


def rows_of(policy: str, rounds: int = 40, name: str = "cifar10-3", **loads: Any) -> list[Row]:
    return list(experiment(policy, rounds, name, **loads).rounds())


def experiment(policy: str, rounds: int, name: str = "cifar10-3", done: list[Row] | None = None, **loads: Any) -> Any:
    scenario = scenario_named(name)
    scenario = replace(scenario, policy=policy, loads=LoadModel(**loads), budget=Budget(rounds=rounds))
    return Experiment(scenario, scheduling_only(scenario), done=done or [])


def test_work_runs_through_the_slots_that_it_lasts() -> None:
    clock = SlotClock(Steps(10.0, 40.0, 100.0), COST, slot_seconds=2.0)
    # From second 1: 10 bits in slot 1, 80 in slot 2, and the last 10 take a tenth of a second of slot 3.
    assert clock.sending_seconds(0, 1, 1, 1.0) == pytest.approx(1.0 + 2.0 + 0.1)
    assert clock.training_seconds(0, (5, 4), 1, 1.0) == pytest.approx(1.0 + 2.0)


def test_work_that_nothing_carries_on_never_ends() -> None:
    clock = SlotClock(Steps(10.0), COST, slot_seconds=1.0)
    assert clock.sending_seconds(0, 1, 1, 0.0) == math.inf
    there, back = np.array([0, 1]), np.array([1, 0])
    assert clock.sending_along(there, back, 1, np.zeros(2), np.array([100.0, 5.0])).tolist() == [math.inf, 0.5]


@pytest.mark.parametrize("clock", ["round", "slot"])
@pytest.mark.parametrize("kind", ["uniform", "bursts", "constant"])
@pytest.mark.parametrize("server", [False, True])
def test_many_transfers_together_take_to_the_last_digit_what_each_takes(clock: str, kind: str, server: bool) -> None:
    settings = LoadModel(kind=kind, bandwidth=50.0, flops=10.0)  # type: ignore[arg-type]
    source = arena_loads(settings, 6, 3, None, server=server)
    found: LoadClock = RoundClock(source, COST) if clock == "round" else SlotClock(source, COST, 0.25)
    rng = np.random.default_rng(0)
    one, other = np.array([(i, j) for i in range(6 + server) for j in range(6 + server) if i != j]).T
    at, bits = rng.uniform(0.0, 9.0, one.size), rng.choice([1.0, 100.0, 700.0], one.size)
    each = [
        found.sending_seconds(i, j, 2, begin, size)
        for i, j, begin, size in zip(one.tolist(), other.tolist(), at.tolist(), bits.tolist(), strict=True)
    ]
    assert found.sending_along(one, other, 2, at, bits).tolist() == each


class Counting:
    """Loads of 2,000 nodes, of which a clock can keep eight steps; which of them are there, and which were asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.there: weakref.WeakSet[RoundLoads] = weakref.WeakSet()

    def at(self, round_: int) -> RoundLoads:
        self.asked.append(round_)
        loads = Large([float(round_)] * 2000, [])
        self.there.add(loads)
        return loads


class Large(RoundLoads):
    __hash__ = object.__hash__


@pytest.mark.parametrize("slots", [True, False])
def test_a_clock_keeps_the_latest_loads_that_fit_into_memory_and_works_out_others_again(slots: bool) -> None:
    source = Counting()
    clock: LoadClock = SlotClock(source, COST, 1.0) if slots else RoundClock(source, COST, apart=True)
    for step in range(1, 51):
        assert clock.loads(step).flops[0] == step
        assert len(source.there) <= 8
        asked = len(source.asked)
        assert clock.loads(max(1, step - 3)).flops[0] == max(1, step - 3)
        assert len(source.asked) == asked, "the latest loads are kept"
    assert clock.loads(2).flops[0] == 2.0
    assert source.asked == [*range(1, 51), 2]


def test_on_the_round_clock_a_round_takes_its_load_alone() -> None:
    clock = RoundClock(Steps(10.0, 40.0), COST)
    assert clock.sending_seconds(0, 1, 2, 7.5) == 100.0 / 40.0


@pytest.mark.parametrize("policy", ["load-aware", "express"])
@pytest.mark.parametrize("kind", ["ar1", "bursts", "daily"])
def test_the_times_of_a_run_in_slots_follow_from_the_loads_alone(policy: str, kind: str) -> None:
    loads: dict[str, Any] = {"kind": kind, "clock": "slot", "slot_seconds": 0.5, "prediction": "blend"}
    source = load_source(LoadModel(**loads), 3, 0)
    every = [source.at(slot) for slot in range(1, 1500)]
    cost = scheduling_only(scenario_named("cifar10-3")).cost

    def done(rates: list[float], start: float, seconds: float) -> float:
        """Work done in `seconds` from `start` on: each slot's rate times how much of the slot lies within."""
        within = [min(start + seconds, (k + 1) * 0.5) - max(start, k * 0.5) for k in range(len(rates))]
        return sum(rate * part for rate, part in zip(rates, within, strict=True) if part > 0)

    begin = 0.0
    for row in rows_of(policy, 60, **loads):
        began, start = begin, begin + row.lost_seconds
        begin = row.total_seconds
        if row.node is None:
            continue
        if row.node != row.holder and row.transfer_seconds == 0:
            assert row.lost_seconds > 0, "it had the weights from a hop of this round, and its training was given up"
        elif row.node != row.holder:
            rates = [slot.bandwidth[row.holder][row.node] for slot in every]
            bits = done(rates, start, row.transfer_seconds)
            if f"the hop to node {row.node} was given up" in row.decision.reason:
                # Then taken up again: what had arrived was kept.
                bits += done(rates, began, row.lost_seconds)
            assert bits == pytest.approx(cost.model_bits)
        flops = [slot.flops[row.node] for slot in every]
        trained = done(flops, start + row.transfer_seconds, row.compute_seconds)
        assert trained == pytest.approx(cost.flops_per_sample * sum(row.samples))


@pytest.mark.parametrize("policy", ["load-aware", "express"])
@pytest.mark.parametrize(
    "loads",
    [
        {"kind": "ar1"},
        {"kind": "ar1", "prediction": "ar1"},
        {"kind": "ar1", "clock": "slot", "prediction": "blend"},
        {"kind": "bursts", "clock": "slot"},
        {"kind": "daily", "clock": "slot", "slot_seconds": 0.7, "prediction": 0.5},
    ],
)
def test_a_resumed_run_is_the_same_to_the_last_digit(policy: str, loads: dict[str, Any]) -> None:
    whole = rows_of(policy, 30, "mnist-5", **loads)
    for cut in (1, 7, 29):
        assert list(experiment(policy, 30, "mnist-5", whole[:cut], **loads).rounds()) == whole[cut:]


@pytest.mark.parametrize("policy", ["load-aware", "express", "random"])
@pytest.mark.parametrize(
    "loads", [{"prediction": "last"}, {"kind": "bursts", "clock": "slot", "slot_seconds": 0.5, "prediction": 2.0}]
)
def test_a_run_that_is_resumed_after_a_setback_is_the_same_to_the_last_digit(
    policy: str, loads: dict[str, Any]
) -> None:
    whole = rows_of(policy, 40, "cifar10-5", **loads)
    setbacks = [row.round for row in whole if row.lost_seconds > 0]
    assert len(setbacks) >= 2
    for cut in setbacks:
        assert list(experiment(policy, 40, "cifar10-5", whole[:cut], **loads).rounds()) == whole[cut:]


@pytest.mark.parametrize("name", ["last", "ewma", "ar1", "blend"])
def test_a_prediction_is_what_a_site_would_predict_from_the_rounds_before(name: str) -> None:
    settings = LoadModel(kind="ar1", prediction=name)  # type: ignore[arg-type]
    source = load_source(settings, 3, 5)
    clock = RoundClock(load_source(settings, 3, 5), COST)
    foresight = Foresight(clock, settings, COST, 3, 5, usual_samples=100, looks_ahead=False)
    predictor = predictor_named(name)
    for round_ in range(1, 20):
        reported, _ = foresight.reports(0, round_, 0.0)
        expected = predictor.predict()
        actual = source.at(round_)
        assert reported.flops[1] == (actual.flops[1] if expected is None else expected)
        predictor.update(actual.flops[1])


@pytest.mark.parametrize("prediction", [0.5, Noise(noise=0.5)])
def test_noise_is_what_it_was_asked_to_be(prediction: float | Noise) -> None:
    settings = LoadModel(prediction=prediction)
    clock = RoundClock(load_source(settings, 10, 1), COST)
    foresight = Foresight(clock, settings, COST, 10, 1, usual_samples=100, looks_ahead=False)
    errors = [
        math.log(reported / actual)
        for round_ in range(1, 40)
        for reported, actual in zip(
            foresight.reports(0, round_, 0.0)[0].flops, clock.loads(round_).flops, strict=True
        )
    ]
    assert np.std(errors) == pytest.approx(0.5, rel=0.15)


def test_rows_have_what_was_reported_and_what_was_so() -> None:
    rows = rows_of("load-aware", 12, kind="ar1", prediction="last")
    source = load_source(LoadModel(kind="ar1"), 3, 0)
    for row in rows[1:]:
        assert isinstance(row.actual, RowLoads)
        assert row.loads.flops == tuple(source.at(row.round - 1).flops)
        assert row.actual.flops == pytest.approx(tuple(source.at(row.round).flops))
    assert all(row.actual is msgspec.UNSET for row in rows_of("load-aware", 3, kind="ar1"))


def test_an_outlook_distinguishes_loads_that_last_from_draws() -> None:
    def persistence(**loads: Any) -> float:
        settings = LoadModel(**loads)
        clock = RoundClock(load_source(settings, 3, 0), COST)
        foresight = Foresight(clock, settings, COST, 3, 0, usual_samples=100, looks_ahead=True)
        for round_ in range(1, 150):
            _, outlooks = foresight.reports(0, round_, 0.0)
        return float(np.mean([o.compute.persistence for o in outlooks if o is not None]))

    assert persistence() < 0.25
    assert 0.75 < persistence(kind="ar1") < 0.98
    assert persistence(kind="heterogeneous") == 1.0


def test_a_hop_that_goes_much_worse_than_predicted_is_decided_again() -> None:
    rows = rows_of("load-aware", 16, kind="ar1", clock="slot", slot_seconds=0.5, prediction="blend")
    again = [row for row in rows if row.lost_seconds > 0]
    assert again
    begin = dict(zip((row.round + 1 for row in rows), (row.total_seconds for row in rows), strict=True))
    for row in again:
        spent = row.compute_seconds + row.transfer_seconds + row.idle_seconds + row.lost_seconds
        assert row.total_seconds - begin.get(row.round, 0.0) == pytest.approx(spent)


def test_a_hop_is_given_up_for_its_pace_as_a_site_would_do_it() -> None:
    loads: dict[str, Any] = {"kind": "bursts", "clock": "slot", "prediction": "blend"}
    source = load_source(LoadModel(**loads), 5, 0)
    bits = scheduling_only(scenario_named("cifar10-5")).cost.model_bits
    limit = scenario_named("cifar10-5").variance_limit
    begin, again = 0.0, 0
    for row in rows_of("express", 150, "cifar10-5", **loads):
        found = re.findall(
            r"hop to node (\d) was given up: at this pace the round takes (\S+) s more", row.decision.reason
        )
        if len(found) == 1 and row.lost_seconds < 5:  # nothing was overdue besides
            again += 1
            rate = [source.at(slot).bandwidth[row.holder][int(found[0][0])] for slot in range(1, 2000)]
            carried = np.interp([begin, begin + row.lost_seconds - 2, begin + row.lost_seconds], *summed(rate))
            left = (bits - (carried[2] - carried[0])) * 2 / (carried[2] - carried[1])
            looks = row.lost_seconds / 0.25
            assert looks == pytest.approx(round(looks)), "a sender looks every quarter of a second"
            assert float(found[0][1]) >= left * 0.99, "what is left of the hop, and the training after it"
            assert row.label_variance <= limit * (1 + 1e-9), "the labels of the slow node stay in the balance"
        begin = row.total_seconds
    assert again >= 5


def summed(rate: list[float]) -> tuple[list[int], list[float]]:
    return list(range(len(rate) + 1)), [0.0, *np.cumsum(rate).tolist()]


@pytest.mark.parametrize(
    ("policy", "changes", "gives_up"),
    [
        ("express", {}, True),
        ("express", {"give_up": "overdue"}, False),
        ("express", {"prediction": "oracle"}, False),
        ("express", {"prediction": 0.0, "give_up": "slow"}, False),
        ("express", {"clock": "round", "give_up": "slow"}, False),
        ("load-aware", {}, False),
        ("load-aware", {"give_up": "slow"}, True),
    ],
)
def test_who_gives_a_slow_hop_up(policy: str, changes: dict[str, Any], gives_up: bool) -> None:
    loads: dict[str, Any] = {"kind": "bursts", "clock": "slot", "prediction": "blend"} | changes
    assert (
        any("decided again" in row.decision.reason for row in rows_of(policy, 60, "cifar10-5", **loads)) is gives_up
    )


def test_a_round_decided_again_may_leave_the_balance_and_the_next_brings_it_back() -> None:
    run = experiment("load-aware", 15, kind="ar1", clock="slot", slot_seconds=0.5, prediction="blend")
    *before, again, after = run.rounds()
    limit = run.scenario.variance_limit * (1 + 1e-9)
    assert all(row.label_variance <= limit and not row.decision.unreachable_labels for row in (*before, after))
    assert again.lost_seconds > 0
    assert again.label_variance > limit
    # Only the node that was given up holds these.
    assert again.decision.unreachable_labels == (3, 4, 5)
    assert "labels 3, 4, 5 are left out of the balance" in again.decision.reason
    assert run.summary().largest_label_variance == again.label_variance


def test_a_trace_is_played_from_its_file_and_begins_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,node,share\n0,0,1\n2,0,0.5\n4,0,0.5\nseconds,link,share\n0,0-2,0.25\n3,2-0,0.75\n")
    settings = LoadModel(kind="trace", clock="slot", trace=str(trace), flops=10.0, bandwidth=100.0)
    source = load_source(settings, 3, 0)
    assert [source.at(slot).flops[0] for slot in range(1, 7)] == [10, 10, 5, 5, 10, 10]
    assert [source.at(slot).bandwidth[2][0] for slot in range(1, 7)] == [25, 25, 25, 75, 25, 25]
    assert source.at(1).flops[1] == 10
    assert source.at(1).bandwidth[1][2] == 100

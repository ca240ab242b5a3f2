"""The search of `benchmarks/clairvoyant.py` against plain recursion over all schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.clairvoyant import Case, Ints, RoundTimes, SlotTimes, Times, lower_bound, search, seconds_of
from tramfl.config import Budget
from tramfl.draws import first_holder
from tramfl.scheduling.water_level import largest_allotment
from tramfl.simulation.load_clock import LoadClock, RoundClock, SlotClock
from tramfl.simulation.loads import load_source
from tramfl.simulation.regimes import REGIMES
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

SAMPLES = 2200


def case_of(regime: str, seed: int) -> Case:
    scenario = replace(scenario_named("cifar10-3"), seed=seed, budget=Budget(samples=SAMPLES))
    scenario = {r.name: r for r in REGIMES}[regime].applied(scenario)
    setting = scheduling_only(scenario)
    return Case(scenario, setting.held, setting.cost, SAMPLES)


def clock_of(case: Case) -> LoadClock:
    source = load_source(case.scenario.loads, case.nodes, case.scenario.seed)
    known = [source.at(step) for step in range(1, 200)]

    class Known:
        def at(self, round_: int) -> object:
            return known[round_ - 1]

    in_slots = case.scenario.loads.clock == "slot"
    return SlotClock(Known(), case.cost, 1.0) if in_slots else RoundClock(Known(), case.cost)  # type: ignore[arg-type]


def least_of_all(case: Case, clock: LoadClock, known: float) -> float:
    """The least time of S* at any node or a wait in every round, by trying all."""
    best = known

    def go(holder: int, used: Ints, at: float, round_: int) -> None:
        nonlocal best
        if at >= best:
            return
        most = largest_allotment(used, case.held, case.scenario.variance_limit)
        need = SAMPLES - int(used.sum())
        for node in range(case.nodes):
            total = int(most.total[node])
            if total < 1 or not most.feasible[node]:
                continue
            begin = at + (0.0 if node == holder else clock.sending_seconds(holder, node, round_, at))
            end = begin + clock.training_seconds(node, (min(total, need),), round_, begin)
            if total >= need:
                best = min(best, end)
            else:
                go(node, used + most.samples[node], end, round_ + 1)
        go(holder, used, at + case.scenario.wait_seconds, round_ + 1)

    go(first_holder(case.scenario.seed, case.nodes), np.zeros(10, dtype=np.int64), 0.0, 1)
    return best


@pytest.mark.parametrize("regime", ["independent", "ar1-0.9", "slots", "bursts"])
def test_the_search_finds_the_least_time_of_all_schedules_and_the_bound_is_below_it(regime: str) -> None:
    for seed in (1, 2):
        case = case_of(regime, seed)
        known = 1.5 * min(seconds_of(case, "load-aware"), seconds_of(case, "express"))
        slots = SlotTimes(case, known) if case.scenario.loads.clock == "slot" else None
        times: Times = RoundTimes(case, known) if slots is None else slots
        found, cut = search(case, times, known, 1000, ())
        assert not cut
        assert math.isclose(found, least_of_all(case, clock_of(case), known), rel_tol=1e-9)
        assert 0 < lower_bound(case, slots, found) < found < known

"""How far express is from the best possible: schedules that know all loads to come, found by search, and a bound.

    python benchmarks/clairvoyant.py [--seeds 5] [--first-seed 0] [--width 100] [--scenarios cifar10-3=6000,...]

Every time is that of the N-th trained sample, on small cases. Printed for each kind of load, as geometric means
over the seeds:

- load-aware and express, as they run;
- **best rounds**: the least time of any schedule of the rounds that both policies choose from (S* at one node, or a
  wait of H), with all loads known beforehand. The search is a dynamic program over (holder, samples used, rounds
  gone), and drops a state only where a valid bound shows that it cannot lead to a shorter time. So this is the
  optimum: no policy of such rounds can be faster. Where the column `cut` is not 0, that many searches had to drop
  states for their number, and found a time that can be reached and no more;
- **smaller too**: a beam search that may also train a half, a quarter or one sample of S*. It is a time that can be
  reached with foresight, and no bound. In the round clock it gains from rounds that only bring a new draw;
- **bound**: no schedule is faster, whatever its rounds train. It relaxes balance to the most samples that any route
  of a number of visits may train under V (second-order cone programs, by Clarabel), and lets each visit train any of
  them. In the slot clock and with constant loads it uses the true loads; where loads are drawn by round, a schedule
  can draw as often as it likes, and the bound has every node and link idle.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from typing import Protocol

import cvxpy
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tramfl.config import Budget, Scenario
from tramfl.draws import first_holder
from tramfl.notation import Counts, ModelCost, Reals
from tramfl.scheduling.water_level import largest_allotment
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.load_clock import RoundClock, SlotClock
from tramfl.simulation.loads import load_source
from tramfl.simulation.regimes import REGIMES, Regime
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

CASES = "cifar10-3=6000,cifar10-5=5000,mnist-3=6000"
SMALLER = (0.5, 0.25, 0.0)
"""Parts of S* that the beam search may train; 0 stands for one sample."""
GRID = 4000
"""Moments of the bound's dynamic program; it errs to the safe side by two of them a hop."""
ROUNDS = 60
"""A schedule has fewer trainings than this: loads are kept for them and for the waits."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One run to schedule."""

    scenario: Scenario
    held: Counts
    cost: ModelCost
    samples: int

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.held)

    def fastest(self) -> tuple[float, float]:
        """The FLOPS and bit/s that no node and no link ever exceeds."""
        loads = self.scenario.loads
        flops = max(loads.flops) if isinstance(loads.flops, tuple) else loads.flops
        return flops * loads.compute_share[1], loads.bandwidth * loads.bandwidth_share[1]


def seconds_of(case: Case, policy: str) -> float:
    """When a policy's run has trained the N-th sample."""
    scenario = replace(case.scenario, policy=policy)
    rows = list(Experiment(scenario, scheduling_only(scenario)).rounds())
    last = rows[-1]
    assert last.node is not None
    begin = last.total_seconds - last.compute_seconds
    need = case.samples - sum(sum(row.samples) for row in rows[:-1])
    loads = scenario.loads
    source = load_source(loads, case.nodes, scenario.seed)
    clock = (
        SlotClock(source, case.cost, loads.slot_seconds) if loads.clock == "slot" else RoundClock(source, case.cost)
    )
    return begin + clock.training_seconds(last.node, (need,), last.round, begin)


class Times(Protocol):
    """When states are reached: one number a state, or one for every number of rounds gone."""

    def begin(self) -> Reals:
        """Of the first state."""
        ...

    def after(self, seconds: Reals, holder: Ints, node: Ints, samples: Ints) -> Reals:
        """Once `node` has got the model from `holder` and trained."""
        ...


class RoundTimes:
    """Loads by round. A column is the number of rounds gone: waiting brings the next column for H seconds."""

    def __init__(self, case: Case, horizon: float) -> None:
        self._cost, self._wait = case.cost, case.scenario.wait_seconds
        source = load_source(case.scenario.loads, case.nodes, case.scenario.seed)
        loads = [source.at(k) for k in range(1, math.ceil(horizon / self._wait) + ROUNDS)]
        self._compute = case.cost.flops_per_sample / np.array([each.flops for each in loads])
        self._send = case.cost.model_bits / np.array([list(each.bandwidth) for each in loads])
        self._waited = self._wait * np.arange(len(loads) + 1)

    def begin(self) -> Reals:
        """No round is gone at 0 s."""
        return np.where(self._waited > 0, math.inf, 0.0)[None, :]

    def after(self, seconds: Reals, holder: Ints, node: Ints, samples: Ints) -> Reals:
        """In the round after, or after any number of waits."""
        ready = np.minimum.accumulate(seconds - self._waited, axis=1) + self._waited
        found = np.full_like(seconds, math.inf)
        found[:, 1:] = ready[:, :-1] + self._send[:, holder, node].T + self._compute[:, node].T * samples[:, None]
        return found


class SlotTimes:
    """Loads by time. Work that begins earlier never ends later, so a state's earliest time is all that counts."""

    def __init__(self, case: Case, horizon: float) -> None:
        loads, slot = case.scenario.loads, case.scenario.loads.slot_seconds
        source = load_source(loads, case.nodes, case.scenario.seed)
        # Constant loads by round are constant in time too.
        steps = [source.at(k) for k in range(1, math.ceil(horizon / slot) + 2)]
        self._cost = case.cost
        self.borders = slot * np.arange(len(steps) + 1)
        self.flops = _summed(np.array([each.flops for each in steps]) * slot)
        links = np.array([list(each.bandwidth) for each in steps]) * slot
        self.bits = _summed(np.where(np.isfinite(links), links, 0.0))

    def begin(self) -> Reals:
        """At 0 s."""
        return np.zeros((1, 1))

    def after(self, seconds: Reals, holder: Ints, node: Ints, samples: Ints) -> Reals:
        """At once: waiting never helps."""
        found = np.full_like(seconds, math.inf)
        for one, other in set(zip(holder.tolist(), node.tolist(), strict=True)):
            which = (holder == one) & (node == other)
            arrived = self.arrival(seconds[which, 0], one, other)
            work = self._cost.flops_per_sample * samples[which]
            found[which, 0] = self._done(arrived, self.flops[:, other], work)
        return found

    def arrival(self, at: Reals, one: int, other: int) -> Reals:
        """When a model that is sent at `at` is there."""
        return at if one == other else self._done(at, self.bits[:, one, other], self._cost.model_bits)

    def _done(self, at: Reals, given: Reals, work: float | Reals) -> Reals:
        target = np.interp(at, self.borders, given, right=math.inf) + work
        done: Reals = np.interp(target, given, self.borders, right=math.inf)
        return done


def _summed(steps: Reals) -> Reals:
    total: Reals = np.concatenate([np.zeros_like(steps[:1]), steps.cumsum(axis=0)])
    return total


@cache
def most_trained(name: str, visits: int, from_start: bool) -> float:
    """The most samples that consecutive visits of any nodes may train under V, at the start of a run or anywhere."""
    scenario = scenario_named(name)
    held = scheduling_only(scenario).held
    nodes, labels = held.shape
    spread = math.sqrt(scenario.variance_limit * labels)
    best = 0.0
    for route in product(range(nodes), repeat=visits):
        if any(one == other for one, other in pairwise(route)):
            continue
        used = np.zeros(labels) if from_start else cvxpy.Variable(labels)
        rules = [] if from_start else [cvxpy.sum(used) == 0, cvxpy.norm(used) <= spread]
        trained = cvxpy.Variable((visits, labels), nonneg=True)
        for k, node in enumerate(route):
            rules.append(trained[k] <= held[node])
            used = used + trained[k]
            rules.append(cvxpy.norm(used - cvxpy.sum(used) / labels) <= spread)
        problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(trained)), rules)
        best = max(best, float(problem.solve(solver=cvxpy.CLARABEL)))
    return best + 1.0  # more than the solver's error


def caps(name: str, samples: int, windows: int, from_start: bool) -> list[float]:
    """For 0, 1, 2, ... visits: samples that they cannot exceed, until `samples` are reached; routes put together."""
    found = [0.0]
    while found[-1] < samples:
        visits = len(found)
        if visits <= windows:
            found.append(most_trained(name, visits, from_start))
        else:
            found.append(min(found[visits - k] + most_trained(name, k, False) for k in range(1, windows + 1)))
    return found


def windows(nodes: int) -> int:
    """The length up to which all routes are tried."""
    return 5 if nodes <= 3 else 3


def time_left(case: Case, samples: Ints) -> Reals:
    """At least the seconds that this many more samples take: all idle, and with the hops that V asks for."""
    flops, bits = case.fastest()
    limits = np.array(caps(case.scenario.name, case.samples, windows(case.nodes), False))
    hops = np.maximum(np.searchsorted(limits, samples) - 1, 0)
    left: Reals = case.cost.flops_per_sample * samples / flops + hops * case.cost.model_bits / bits
    return left


@dataclass(frozen=True)
class States:
    """Where schedules have got to: a row each."""

    holder: Ints
    used: Ints
    seconds: Reals

    def merged(self) -> States:
        """Equal holder and samples made one state, with the earliest times."""
        key = np.column_stack([self.holder, self.used])
        rows, place = np.unique(key, axis=0, return_inverse=True)
        seconds = np.full((len(rows), self.seconds.shape[1]), math.inf)
        np.minimum.at(seconds, place.ravel(), self.seconds)
        return States(rows[:, 0], rows[:, 1:], seconds)

    def taken(self, which: Ints | NDArray[np.bool_]) -> States:
        """Some of the states."""
        return States(self.holder[which], self.used[which], self.seconds[which])


def search(case: Case, times: Times, known: float, width: int, parts: tuple[float, ...]) -> tuple[float, bool]:
    """The least time found, at most `known`, and whether states were dropped for their number."""
    labels = case.held.shape[1]
    holder = first_holder(case.scenario.seed, case.nodes)
    states = States(np.array([holder]), np.zeros((1, labels), dtype=np.int64), times.begin())
    best, cut = known, False
    while len(states.holder):
        children = []
        for some in _chunks(states, 500):
            done, open_ = _step(case, times, some, parts)
            best = min(best, done)
            children.append(open_)
        states = States(
            *(np.concatenate([getattr(c, name) for c in children]) for name in ("holder", "used", "seconds"))
        )
        if not len(states.holder):
            break
        reached = states.seconds.min(axis=1) + time_left(case, case.samples - states.used.sum(axis=1))
        states = states.taken(reached < best * (1 - 1e-9)).merged()
        if len(states.holder) > width:
            cut = True
            missing = case.samples - states.used.sum(axis=1)
            promise = states.seconds.min(axis=1) + missing * best / case.samples
            states = states.taken(np.argsort(promise, kind="stable")[:width])
    return best, cut


def _chunks(states: States, size: int) -> Iterator[States]:
    for begin in range(0, len(states.holder), size):
        yield states.taken(np.arange(begin, min(begin + size, len(states.holder))))


def _step(case: Case, times: Times, states: States, parts: tuple[float, ...]) -> tuple[float, States]:
    """One more training of every state: the earliest end of a run among them, and those that go on."""
    limit, count = case.scenario.variance_limit, len(states.holder)
    most = largest_allotment(np.repeat(states.used, case.nodes, axis=0), np.tile(case.held, (count, 1)), limit)
    rows = [np.where(most.feasible[:, None], most.samples, 0)]
    rows += [_part(rows[0], part) for part in parts]
    samples = np.concatenate(rows)
    parent = np.tile(np.repeat(np.arange(count), case.nodes), len(rows))
    node = np.tile(np.arange(case.nodes), count * len(rows))
    used = states.used[parent] + samples
    able = (samples.sum(axis=1) >= 1) & (used.var(axis=1) <= limit * (1 + 1e-9))
    samples, parent, node, used = samples[able], parent[able], node[able], used[able]
    need = case.samples - states.used[parent].sum(axis=1)
    total = samples.sum(axis=1)
    seconds = times.after(states.seconds[parent], states.holder[parent], node, np.minimum(total, need))
    ends = total >= need
    done = float(seconds[ends].min()) if ends.any() else math.inf
    return done, States(node[~ends], used[~ends], seconds[~ends])


def _part(samples: Ints, part: float) -> Ints:
    """A part of every allotment; for part 0 one sample, of the label that has most."""
    if part > 0:
        some: Ints = np.floor(part * samples).astype(np.int64)
        return some
    one = np.zeros_like(samples)
    one[np.arange(len(samples)), samples.argmax(axis=1)] = samples.max(axis=1) > 1
    return one


def lower_bound(case: Case, times: SlotTimes | None, known: float) -> float:
    """No schedule is faster: balance relaxed to the most samples that a number of visits may train."""
    limits = caps(case.scenario.name, case.samples, windows(case.nodes), True)
    flops, bits = case.fastest()
    idle = case.cost.flops_per_sample * case.samples / flops + (len(limits) - 2) * case.cost.model_bits / bits
    if times is None:
        return idle
    tick = known / GRID
    moments: Reals = tick * np.arange(GRID + 2, dtype=np.float64)
    trained = np.array([np.interp(moments, times.borders, times.flops[:, i]) for i in range(case.nodes)])
    trained /= case.cost.flops_per_sample
    arrived = np.full((case.nodes, len(moments)), -math.inf)
    arrived[first_holder(case.scenario.seed, case.nodes), 0] = 0.0
    best, visit = known, 0
    passed = np.full_like(arrived, -math.inf)
    while np.isfinite(arrived).any():
        visit += 1
        so_far = np.minimum(
            trained + np.maximum.accumulate(arrived - trained, axis=1), limits[min(visit, len(limits) - 1)]
        )
        enough = (so_far >= case.samples).any(axis=0)
        if enough.any():
            best = min(best, float(moments[max(0, int(enough.argmax()) - 1)]))
        arrived = np.full_like(arrived, -math.inf)
        for one, other in product(range(case.nodes), repeat=2):
            if one != other:
                # Sent between two moments: as early as the first, with what is trained by the second.
                there = np.floor(times.arrival(moments[:-1], one, other) / tick)
                fits = there < len(moments)
                np.maximum.at(arrived[other], there[fits].astype(np.int64), so_far[one, 1:][fits])
        if visit >= len(limits) - 1:
            # From here on more visits allow no more samples: what an earlier visit had as well leads no further.
            passed = np.maximum(passed, so_far)
            arrived[arrived <= passed] = -math.inf
    return max(best, idle)


@dataclass(frozen=True)
class Found:
    """The times of one case."""

    load_aware: float
    express: float
    rounds: float
    smaller: float
    bound: float
    cut: bool


def solve(name: str, samples: int, regime: Regime, seed: int, width: int) -> Found:
    """All times of one case; a search that finds more than a policy or less than the bound is wrong."""
    scenario = regime.applied(replace(scenario_named(name), seed=seed, budget=Budget(samples=samples)))
    setting = scheduling_only(scenario)
    case = Case(scenario, setting.held, setting.cost, samples)
    load_aware, express = seconds_of(case, "load-aware"), seconds_of(case, "express")
    known = min(load_aware, express) * (1 + 1e-9)
    in_slots = scenario.loads.clock == "slot"
    slots = SlotTimes(case, known) if in_slots or scenario.loads.kind == "heterogeneous" else None
    times: Times = slots if in_slots and slots is not None else RoundTimes(case, known)
    rounds, cut = search(case, times, known, 200 * width, ())
    smaller, _ = search(case, times, rounds, width, SMALLER)
    bound = lower_bound(case, slots, smaller)
    assert bound <= smaller <= rounds <= known, (name, regime.name, seed)
    return Found(load_aware, express, rounds, smaller, bound, cut)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=100, help="states that the beam search keeps")
    parser.add_argument("--scenarios", default=CASES, help="names and samples to train")
    options = parser.parse_args()
    heads = (
        "load-aware",
        "express",
        "best rounds",
        "smaller too",
        "bound",
        "ex/la",
        "best/la",
        "ex/best",
        "ex/bound",
    )
    print(f"{'':11}{'':15}", *(f"{head:>11}" for head in heads), f"{'cut':>5}", flush=True)
    rows: list[tuple[bool, tuple[float, ...]]] = []
    for case in options.scenarios.split(","):
        name, _, samples = case.partition("=")
        for regime in REGIMES:
            found = [
                solve(name, int(samples), regime, seed, options.width)
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            ]
            la, ex, best, small, bound = (
                math.exp(float(np.mean(np.log([getattr(f, field) for f in found]))))
                for field in ("load_aware", "express", "rounds", "smaller", "bound")
            )
            ratios = (ex / la, best / la, ex / best, ex / bound)
            rows.append((regime.lasting, ratios))
            times = (la, ex, best, small, bound)
            cut = sum(f.cut for f in found)
            print(f"{name:11}{regime.name:15}", *(f"{x:11.2f}" for x in (*times, *ratios)), f"{cut:5}", flush=True)
    for what, some in (("loads last", [r for lasting, r in rows if lasting]), ("all", [r for _, r in rows])):
        print(f"{'mean, ' + what:26}", " " * 59, *(f"{x:11.3f}" for x in np.mean(some, axis=0)))


if __name__ == "__main__":
    main()

"""P4 by four solvers in one run: time of a whole decision, violation of V, distance from the optimum.

    python benchmarks/solvers.py [--quick]

Every time is processor time, the least of several repeats, and every goal a ratio of two times of this run. Exit code
1 says that a goal is missed.
"""

from __future__ import annotations

import os

# Before NumPy loads: one core for everybody.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1"))

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import cvxpy
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, minimize

from tramfl.scheduling import largest_allotment

Reals = NDArray[np.float64]
NODES, LABELS, VARIANCE_LIMIT = 10, 10, 10_000.0
MNIST = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
"""Training samples per label."""
WORTH_JUDGING = 100.0
"""Of nodes that may train fewer samples the gap is not judged: there, whole samples alone are far from fractions."""


@dataclass(frozen=True)
class State:
    """What one decision is taken from."""

    name: str
    used: NDArray[np.int64]
    held: NDArray[np.int64]


def states(number: int) -> list[State]:
    """MNIST on ten nodes, evenly and unevenly split, after histories that real decisions led to."""
    rng = np.random.default_rng(2)
    even = np.tile(MNIST // NODES, (NODES, 1))
    two_labels = np.zeros((NODES, LABELS), dtype=np.int64)
    for node in range(NODES):
        two_labels[node, [node, (node + 1) % LABELS]] = MNIST[[node, (node + 1) % LABELS]] // 2
    shares = rng.dirichlet(np.full(NODES, 0.5), LABELS)
    skewed = np.floor(shares * MNIST[:, None]).astype(np.int64).T
    layouts = {"even": even, "two labels": two_labels, "Dirichlet 0.5": skewed}
    made: list[State] = []
    for rounds in (0, 12, 60, 250):
        for layout, held in layouts.items():
            used = np.zeros(LABELS, dtype=np.int64)
            for _ in range(rounds):
                used += largest_allotment(used, held[rng.integers(NODES)], VARIANCE_LIMIT).samples.astype(np.int64)
            made.append(State(f"{layout}, round {rounds}", used, held))
    order = [4, 8, 6, 2, 10, 5, 7, 3, 11, 9, 1, 0]  # the quick run takes a mixture too
    return [made[i] for i in order[:number]]


# The rivals: each gets one node's problem and returns s_c.


def cobyqa(used: Reals, held: Reals) -> Reals:
    """As the paper has it: x_c in [0, 1] for every label, the variance as a nonlinear constraint, default options."""
    found = minimize(
        lambda x: -float(held @ x),
        np.zeros(used.size),
        bounds=[(0.0, 1.0)] * used.size,
        constraints=NonlinearConstraint(lambda x: float(np.var(used + x * held)), -np.inf, VARIANCE_LIMIT),
        method="COBYQA",
    )
    return np.asarray(np.clip(found.x, 0.0, 1.0) * held)


def slsqp(used: Reals, held: Reals) -> Reals:
    """Gradients given; samples in units of sqrt(V), which makes objective and constraint of order one.

    Labels that the node does not hold are no variables, and the start is the history itself, which meets V.
    """
    unit = math.sqrt(VARIANCE_LIMIT)
    here = held.nonzero()[0]
    base, upper = (used - used.mean()) / unit, held[here] / unit
    labels = used.size

    def room(z: Reals) -> float:
        y = base.copy()
        y[here] += z
        y -= y.sum() / labels
        return float(1.0 - y @ y / labels)

    def room_gradient(z: Reals) -> Reals:
        y = base.copy()
        y[here] += z
        y -= y.sum() / labels
        return np.asarray(-2.0 / labels * y[here])

    downhill = np.full(here.size, -1.0)
    found = minimize(
        lambda z: -z.sum(),
        np.zeros(here.size),
        jac=lambda _: downhill,
        bounds=[(0.0, u) for u in upper],
        constraints={"type": "ineq", "fun": room, "jac": room_gradient},
        method="SLSQP",
    )
    samples = np.zeros(labels)
    samples[here] = np.clip(found.x, 0.0, upper) * unit
    return samples


class Clarabel:
    """cvxpy with parameters, compiled once; scaled like SLSQP's problem."""

    def __init__(self) -> None:
        self.unit = math.sqrt(VARIANCE_LIMIT)
        self.z = cvxpy.Variable(LABELS)
        self.base = cvxpy.Parameter(LABELS)
        self.upper = cvxpy.Parameter(LABELS, nonneg=True)
        centring = np.eye(LABELS) - 1.0 / LABELS
        within = cvxpy.norm(centring @ (self.base + self.z)) <= math.sqrt(LABELS)
        self.problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(self.z)), [within, self.z >= 0, self.z <= self.upper])
        assert self.problem.is_dcp(dpp=True)
        self(np.zeros(LABELS), np.ones(LABELS))  # compiles

    def __call__(self, used: Reals, held: Reals) -> Reals:
        """One node's allotment; nothing where the solver gives up."""
        self.base.value = (used - used.mean()) / self.unit
        self.upper.value = held / self.unit
        self.problem.solve(solver=cvxpy.CLARABEL, warm_start=True)
        if self.z.value is None:
            return np.zeros(LABELS)
        return np.asarray(np.clip(self.z.value * self.unit, 0.0, held))


# Measuring.


def least_seconds(work: Callable[[], object], repeats: int) -> float:
    best = math.inf
    for _ in range(repeats):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


@dataclass
class Score:
    """One solver over many states: seconds of each decision beside ours of the same, and its worst answers."""

    name: str
    goal: float | None = None
    seconds: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    violation: float = 0.0
    gap: float = 0.0

    def judge(self, used: Reals, samples: Reals, optimum: float) -> None:
        """Keep the worst: V exceeded, relative to V; a total short of the optimum, relative to that."""
        self.violation = max(self.violation, float(np.var(used + samples)) / VARIANCE_LIMIT - 1.0)
        if optimum >= WORTH_JUDGING:
            self.gap = max(self.gap, 1.0 - float(samples.sum()) / optimum)


def decisions(number: int, for_cobyqa: list[int]) -> list[Score]:
    """Every solver on whole decisions: all ten nodes of a state. COBYQA gets only the states in its list."""
    ours, fractions = Score("largest_allotment"), Score("  the same, whole=False")
    rivals: list[tuple[Score, Callable[[Reals, Reals], Reals]]] = [
        (Score("COBYQA, as in the paper", 20_000.0), cobyqa),
        (Score("cvxpy + Clarabel, DPP", 100.0), Clarabel()),
        (Score("SLSQP, scaled, gradients", 40.0), slsqp),
    ]
    for k, state in enumerate(states(number)):
        used, held = state.used.astype(np.float64), state.held.astype(np.float64)
        exact = largest_allotment(state.used, state.held, VARIANCE_LIMIT, whole=False)
        assert exact.feasible.all(), state.name
        for score, whole in ((fractions, False), (ours, True)):
            seconds = least_seconds(
                lambda s=state, w=whole: largest_allotment(s.used, s.held, VARIANCE_LIMIT, whole=w),  # type: ignore[misc]
                300,
            )
            score.seconds.append(seconds)
            answers = largest_allotment(state.used, state.held, VARIANCE_LIMIT, whole=whole).samples
            for samples, optimum in zip(answers, exact.total, strict=True):
                score.judge(used, samples, float(optimum))
        fractions.ours.append(ours.seconds[-1])
        ours.ours.append(ours.seconds[-1])
        for score, rival in rivals:
            if rival is cobyqa and k not in for_cobyqa:
                continue
            decision: list[Reals] = []

            def decide(into: list[Reals], solve: Callable[[Reals, Reals], Reals], used: Reals, held: Reals) -> None:
                into[:] = [solve(used, row) for row in held]

            score.seconds.append(
                least_seconds(
                    lambda d=decision, r=rival, u=used, h=held: decide(d, r, u, h),  # type: ignore[misc]
                    1 if rival is cobyqa else 4,
                )
            )
            score.ours.append(ours.seconds[-1])
            for samples, optimum in zip(decision, exact.total, strict=True):
                score.judge(used, samples, float(optimum))
    return [ours, fractions, *(score for score, _ in rivals)]


def against_sort(labels: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds of ours and of numpy.sort at 1,000 nodes, for a feasible and an infeasible history."""
    rng = np.random.default_rng(labels)
    held = rng.integers(0, 6000, (1000, labels))
    times: dict[str, tuple[float, float]] = {}
    for kind, spread in (("feasible", 300), ("infeasible", 60_000)):
        used = rng.integers(0, spread, labels)
        answer = largest_allotment(used, held, VARIANCE_LIMIT)
        assert answer.feasible.all() if kind == "feasible" else not answer.feasible.any()
        solve, sort = math.inf, math.inf
        for _ in range(repeats):  # turn by turn, so that a busy machine hits both
            sort = min(sort, least_seconds(lambda: np.sort(held, axis=1), 1))
            solve = min(solve, least_seconds(lambda used=used: largest_allotment(used, held, VARIANCE_LIMIT), 1))  # type: ignore[misc]
        times[kind] = solve, sort
    return times


def verdict(met: bool, goal: str, missed: list[str], what: str) -> str:
    if not met:
        missed.append(f"{what}: {goal}")
    return f"{goal}: {'met' if met else 'MISSED'}"


def main() -> int:
    parser = argparse.ArgumentParser(description="P4: ours against COBYQA, Clarabel, SLSQP and numpy.sort.")
    parser.add_argument("--quick", action="store_true", help="fewer states; ends in about 20 seconds")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    missed: list[str] = []

    # COBYQA is spared the nodes of two labels: with l_c = 0 for the others it takes minutes.
    scores = decisions(4 if quick else 12, for_cobyqa=[2] if quick else [1, 2, 3, 11])
    print(f"One decision, {NODES} nodes x {LABELS} labels, V = {VARIANCE_LIMIT:,.0f}: means over the states\n")
    print(f"{'solver':<25}{'states':>7}{'ms':>12}{'x ours':>10}{'(least)':>10}{'violation':>11}{'gap':>10}  goal")
    for score in scores:
        ratio = sum(score.seconds) / sum(score.ours)
        least = min(theirs / ours for theirs, ours in zip(score.seconds, score.ours, strict=True))
        goal = ""
        if score.goal is not None:
            goal = verdict(ratio >= score.goal, f"at least {score.goal:,.0f} x", missed, score.name)
        print(
            f"{score.name:<25}{len(score.seconds):>7}{np.mean(score.seconds) * 1e3:>12,.3f}{ratio:>10,.1f}"
            f"{least:>10,.1f}{score.violation:>11.1e}{score.gap:>10.1e}  {goal}"
        )
    print(
        "\nleast: the ratio in the state where it is smallest. violation: worst Var / V - 1, 0 where V is met.\n"
        f"gap: worst shortfall from the exact continuous optimum, where this is {WORTH_JUDGING:.0f} or more.\n"
        "Ours are whole samples: their gap is what being whole costs.\n"
    )

    print("1,000 nodes, against numpy.sort of the same matrix\n")
    print(f"{'labels':>7}  {'history':<12}{'ours, ms':>10}{'sort, ms':>10}{'x sort':>8}  {'growth':<8}goal")
    sizes = (10, 100, 1000)
    repeats = 7 if quick else 15
    table = {labels: against_sort(labels, repeats) for labels in sizes}
    for kind in ("feasible", "infeasible"):
        first = table[sizes[0]][kind][0] / (sizes[0] * math.log(sizes[0]))
        for labels in sizes:
            solve, sort = table[labels][kind]
            growth = solve / (labels * math.log(labels)) / first
            goals = []
            if labels == sizes[-1]:
                what = f"{labels} labels, {kind}"
                goals.append(verdict(solve < 20 * sort, "under 20 x sort", missed, what))
                goals.append(verdict(growth <= 1.0, "growth at most 1", missed, what))
            print(
                f"{labels:>7}  {kind:<12}{solve * 1e3:>10.2f}{sort * 1e3:>10.2f}{solve / sort:>8.1f}"
                f"  {growth:<8.2f}{'; '.join(goals)}"
            )
    print("\ngrowth: time / (C log C), relative to 10 labels.")
    for miss in missed:
        print(f"goal missed: {miss}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

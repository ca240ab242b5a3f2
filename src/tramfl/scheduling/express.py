"""Express: load-aware's candidates and exact allotments, and a rule for waiting and moving that knows how loads last.

With g the run's samples per second, a round that trains S samples in T seconds is worth S - g T: what it brings
beyond what the run usually trains in that time. The paper waits where the best round is worth less than -g H, the
price of one wait. That is the optimal stopping rule where every round's loads are a new draw, since what follows a
wait is then worth nothing on average. Where loads last, one wait changes little. Express does three things about it.

**The price of waiting grows with the persistence phi of the loads:** price = g H (1 + phi / (4 (1 - phi))). At
phi = 0 that is the paper's rule; at phi = 1 nobody waits, since nothing would change. In between it follows the
optimal stopping of a hop whose loads are AR(1), found by dynamic programming: `benchmarks/stopping.py` prints both.

**Where loads change while the work runs** (`Outlook.step_seconds`), nobody waits as long as there is something to
train: a transfer that starts now speeds up with the link, so starting late never ends earlier.

**A look at the next round:** training at a node also moves the model there. Express adds half of what the round
after is expected to be worth, F, or the part phi of it where phi is below a half: nothing is known of a new draw. F
comes from the samples that are left to train then and from loads drawn around what each node expects: the present
decays towards the mean as fast as the persistence says, and the rest is spread.

Without an outlook from the nodes, express takes the loads as lasting and looks one round ahead only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import Candidate, Decision, Habit, Ledger, NodeId, Reals
from tramfl.scheduling.load_aware import closest_to_balance
from tramfl.scheduling.weighing import BasePolicy, Round, counted, stuck_by_balance, who

DRAWS = 8
"""Draws of the loads of the round after."""
AHEAD = 0.5
"""The most that the round after counts, as it is decided with other loads than those drawn here."""
SLOWNESS = 0.25
"""How the price of a wait grows with phi / (1 - phi)."""


class Express(BasePolicy):
    """The round worth most with the one after it; a wait where another draw of the loads is worth more."""

    name = "express"
    looks_ahead = True
    gives_up_slow_hops = True

    def stuck(self, ledger: Ledger, held: NDArray[np.int64]) -> str | None:
        """V may keep every node from training."""
        return stuck_by_balance(ledger, held, self.settings)

    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """The node with the highest worth, or nobody where waiting is worth more."""
        allotment = now.allot(now.nodes)
        candidates = now.weigh(now.nodes, allotment.samples, allotment.variance)
        able = [
            (c, row) for c, row in zip(candidates, allotment.samples, strict=True) if c.feasible and c.samples >= 1
        ]
        if not any(c.feasible for c in candidates):
            return closest_to_balance(now, candidates, allotment.samples)
        if not able:
            return now.skip(
                "Nobody trains: no reporting node can add a sample with the label variance"
                f" within V = {self.settings.variance_limit:,.6g}.",
                candidates,
            )
        rate = max((now.ledger.samples + c.samples) / (now.ledger.seconds + _seconds(c)) for c, _ in able)
        future = _Future.of(now)
        price = rate * self.settings.wait_seconds * future.waits if future.waits < math.inf else math.inf
        worth = np.array([c.samples - rate * _seconds(c) for c, _ in able])
        if future.known:
            after = now.used + np.array([row for _, row in able])
            ahead = min(AHEAD, sum(future.persistence) / 2)
            worth += ahead * _worth_of_next(now, [c for c, _ in able], after, future, rate, price, rng)
        order = sorted(range(len(able)), key=lambda i: (-worth[i], able[i][0].node != now.holder, able[i][0].node))
        best = order[0]
        if worth[best] < -price:
            return now.skip(_why_wait(able[best][0], -worth[best] - price, self.settings.wait_seconds), candidates)
        rival = (able[order[1]][0].node, float(worth[order[1]])) if len(order) > 1 else None
        reason = _why(able[best][0], float(worth[best]), rival, rate, now.holder, future.known)
        return now.train(able[best][0], able[best][1], candidates, reason)


@dataclass(frozen=True)
class _Future:
    """What the nodes' outlooks say, as logarithms: row 0 is compute, then come the links from each node."""

    known: bool
    waits: float
    """How many times the cost of one wait it takes until loads have changed; infinite where waiting never helps."""
    now: Reals
    """(nodes + 1, nodes)."""
    mean: Reals
    spread: Reals
    most: Reals
    persistence: tuple[float, float]
    """Of compute and of links, over all nodes: one node's own few observations say too little."""
    step_seconds: float

    @classmethod
    def of(cls, now: Round) -> _Future:
        """From the reports of the nodes that may be chosen."""
        outlooks = [now.loads.outlook[node] for node in now.nodes] if now.loads.outlook else []
        none = np.empty((0, 0))
        if not outlooks or any(outlook is None for outlook in outlooks):
            return cls(False, math.inf, none, none, none, none, (1.0, 1.0), 0.0)
        known = [outlook for outlook in outlooks if outlook is not None]
        rows: list[list[Habit | None]] = [[o.compute for o in known]]
        rows += [[o.links[node] for node in now.nodes] for o in known]
        links = [habit for row in rows[1:] for habit in row if habit is not None]
        usual = _usual(links) if links else Habit(1.0, 1.0, 0.0, 1.0, 1.0)  # one node alone: no link counts
        table = np.array([[_row(habit or usual) for habit in row] for row in rows])
        logs = np.log(table[..., [0, 1, 3]])
        of_compute = sum(o.compute.persistence for o in known) / len(known)
        of_links = sum(h.persistence for h in links) / len(links) if links else of_compute
        step = max(o.step_seconds for o in known)
        phi = (of_compute + of_links) / 2
        waits = math.inf if step > 0 or phi >= 1 else 1 + SLOWNESS * phi / (1 - phi)
        return cls(True, waits, logs[..., 0], logs[..., 1], table[..., 2], logs[..., 2], (of_compute, of_links), step)

    def drawn(self, which: NDArray[np.intp], keep: Reals, noise: Reals) -> Reals:
        """Loads after the present has decayed to the part `keep`; shape (draws, *keep, nodes)."""
        part = keep[:, None]
        expected = self.mean[which] + part * (self.now[which] - self.mean[which])
        logs = expected + self.spread[which] * np.sqrt(1.0 - part * part) * noise
        drawn: Reals = np.exp(np.minimum(logs, self.most[which]))
        return drawn


def _row(habit: Habit) -> tuple[float, float, float, float]:
    return habit.now, habit.mean, habit.spread, habit.most


def _usual(links: list[Habit]) -> Habit:
    """What is assumed of a link that nobody knows: the mean of those that are known."""
    rows = np.array([(*_row(habit), habit.persistence) for habit in links])
    mean = np.exp(np.log(rows[:, :2]).mean(axis=0))
    return Habit(float(mean[0]), float(mean[1]), float(rows[:, 2].mean()), float(rows[:, 4].mean()), rows[:, 3].max())


def _seconds(candidate: Candidate) -> float:
    return candidate.compute_seconds + candidate.transfer_seconds


def _worth_of_next(
    now: Round,
    candidates: list[Candidate],
    used: NDArray[np.int64],
    future: _Future,
    rate: float,
    price: float,
    rng: np.random.Generator,
) -> Reals:
    """F: what the round after is expected to be worth, once each candidate has trained and has the model."""
    nodes = len(now.nodes)
    left = now.allot(list(now.nodes) * len(candidates), np.repeat(used, nodes, axis=0), whole=False)
    samples = np.where(left.feasible, left.total, 0.0).reshape(len(candidates), nodes)
    seconds = np.array([_seconds(c) for c in candidates])
    steps = seconds / future.step_seconds if future.step_seconds > 0 else np.ones(len(candidates))
    of_compute, of_links = future.persistence
    noise = rng.standard_normal((DRAWS, 2, 1, nodes))
    place = {node: i for i, node in enumerate(now.nodes)}
    here = np.array([place[c.node] for c in candidates])
    compute = future.drawn(np.zeros(len(candidates), dtype=np.intp), of_compute**steps, noise[:, 0])
    links = future.drawn(here + 1, of_links**steps, noise[:, 1])
    links[:, np.arange(len(candidates)), here] = math.inf
    took = now.cost.flops_per_sample * samples / compute + now.cost.model_bits / links
    worth = np.where(samples >= 1, samples - rate * took, -math.inf).max(axis=2)
    # Where the round after is bad, it may be left out at the price of waiting.
    floor = price if price < math.inf else np.maximum(-worth, rate * now.settings.wait_seconds)
    floor = np.where(np.isfinite(floor), floor, rate * now.settings.wait_seconds)
    expected: Reals = np.maximum(worth, -floor).mean(axis=0)
    return expected


def _why(
    best: Candidate, worth: float, rival: tuple[NodeId, float] | None, rate: float, holder: NodeId, ahead: bool
) -> str:
    against = f", against {rival[1]:+,.0f} at node {rival[0]}" if rival else ""
    scope = "with the round expected after it, " if ahead else ""
    return (
        f"{who(best.node, holder)} trains {counted(best.samples)} in {_seconds(best):.4g} s, in which the run usually"
        f" trains {rate * _seconds(best):,.0f}: {scope}worth {worth:+,.0f} samples{against}."
    )


def _why_wait(best: Candidate, gain: float, seconds: float) -> str:
    return (
        f"Nobody trains: waits {seconds:g} s, as another draw is expected to bring {gain:,.0f} samples more than it"
        f" costs, compared with node {best.node}, the best now."
    )

"""Load-aware Tram-FL, the paper's policy (P2 and P3).

For every node solve P4 for S*, compare O3(S*) with O3(0), and take the node with the highest value. Where
the history cannot be brought under V at any node, take the allotment that comes closest, so that the run
works its way back.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import Candidate, Decision, Ledger, NodeId
from tramfl.scheduling.objective import worth_training
from tramfl.scheduling.policy import PolicySettings
from tramfl.scheduling.weighing import BasePolicy, Round, counted, stuck_by_balance, who


class LoadAware(BasePolicy):
    """The most samples per second of the whole run, with the labels' variance within V."""

    name = "load-aware"

    def stuck(self, ledger: Ledger, held: NDArray[np.int64]) -> str | None:
        """V may keep every node from training."""
        return stuck_by_balance(ledger, held, self.settings)

    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """The node with the highest O3, or nobody where waiting scores higher."""
        holder = now.holder
        allotment = now.allot(now.nodes)
        candidates = now.weigh(now.nodes, allotment.samples, allotment.variance)

        # Ties favour the present holder: staying costs no transfer.
        within = [c for c in candidates if c.feasible]
        if within:
            able = [c for c in within if c.samples >= 1]
            highest = max([c.score for c in able], default=0.0)
            tied = [c for c in able if c.score == highest]
            best = max(tied, key=lambda c: (c.node == holder, -c.node), default=None)
            if best and worth_training(best.samples, best.score, best.score_of_waiting):
                return now.train(
                    best, allotment.samples[now.nodes.index(best.node)], candidates, _why(best, able, holder)
                )
            return now.skip(_why_nobody(best, self.settings), candidates)
        return closest_to_balance(now, candidates, allotment.samples)


def closest_to_balance(now: Round, candidates: tuple[Candidate, ...], samples: NDArray[np.int64]) -> Decision:
    """Where no node can bring the label variance within V: the one that comes closest, so that the run works back."""
    limit = f"{now.settings.variance_limit:,.6g}"
    closest = min(candidates, key=lambda c: (c.label_variance, -c.score, c.node != now.holder, c.node))
    if closest.samples == 0:
        return now.skip(
            f"Nobody trains: the label variance is {closest.label_variance:,.6g}, above V ="
            f" {limit}, and no reporting node can lower it.",
            candidates,
        )
    return now.train(
        closest,
        samples[now.nodes.index(closest.node)],
        candidates,
        f"No node can bring the label variance within V = {limit};"
        f" {who(closest.node, now.holder).lower()} trains {counted(closest.samples)}"
        f" and comes closest, to {closest.label_variance:,.6g}.",
    )


def _why(best: Candidate, able: list[Candidate], holder: NodeId) -> str:
    second = max([c for c in able if c is not best], key=attrgetter("score"), default=None)
    rival = f"{second.score:,.6g} at node {second.node} and " if second else ""
    return (
        f"{who(best.node, holder)} trains {counted(best.samples)}: {best.score:,.6g} samples/s over the whole run,"
        f" against {rival}{best.score_of_waiting:,.6g} if nobody trained."
    )


def _why_nobody(best: Candidate | None, settings: PolicySettings) -> str:
    if best is None:
        return (
            "Nobody trains: no reporting node can add a sample with the label variance"
            f" within V = {settings.variance_limit:,.6g}."
        )
    return (
        f"Nobody trains: the best, node {best.node}, would bring {best.score:,.6g} samples/s over the whole run,"
        f" and waiting for {settings.wait_seconds:g} s brings {best.score_of_waiting:,.6g}."
    )

"""What Load-aware Tram-FL is compared with: the paper's three baselines, and Tram-FL's own routing.

Each ignores something: Random the loads and the labels, Time-first the labels, Variance-first and Tram
the loads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import Candidate, Decision, Ledger
from tramfl.scheduling.weighing import BasePolicy, Round, counted, stuck_by_balance, stuck_by_share, who

SHARE = 0.1
"""x: the part of its data that a node uses in a round, where the policy fixes it."""


class RandomSelection(BasePolicy):
    """A node drawn uniformly; of each label a part x_c drawn from U[0, 0.1]."""

    name = "random"

    def stuck(self, ledger: Ledger, held: NDArray[np.int64]) -> str | None:
        """A tenth of what any node holds may be less than a sample, and no part that is drawn is larger."""
        return stuck_by_share(held, SHARE)

    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """Draw the node, then the parts."""
        node = now.nodes[int(rng.integers(len(now.nodes)))]
        parts = rng.uniform(0.0, SHARE, size=now.reachable.size)[now.reachable]
        samples = now.thinned(np.rint(parts * now.stock([node])).astype(np.int64))
        candidates = now.weigh([node], samples)
        if candidates[0].samples == 0:
            return now.skip(
                f"Nobody trains: node {node} was drawn, and its parts come to no whole sample.", candidates
            )
        return now.train(
            candidates[0],
            samples[0],
            candidates,
            f"{who(node, now.holder)} was drawn and trains {counted(candidates[0].samples)}.",
        )


class _Tenth(BasePolicy):
    """Every node would train x = 0.1 of each label; a subclass says which node does, and why."""

    def stuck(self, ledger: Ledger, held: NDArray[np.int64]) -> str | None:
        """A tenth of what any node holds may be less than a sample."""
        return stuck_by_share(held, SHARE)

    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """The best of those that have something to train; ties favour the holder."""
        samples = now.thinned(np.rint(SHARE * now.stock(now.nodes)).astype(np.int64))
        candidates = now.weigh(now.nodes, samples)
        able = [(c, row) for c, row in zip(candidates, samples, strict=True) if c.samples >= 1]
        if not able:
            return now.skip("Nobody trains: a tenth of what any node holds is less than one sample.", candidates)
        best, row = min(able, key=lambda pair: (self.drawback(pair[0]), pair[0].node != now.holder, pair[0].node))
        reason = f"{who(best.node, now.holder)} trains {counted(best.samples)}{self.merit(best)}."
        return now.train(best, row, candidates, reason)

    def drawback(self, candidate: Candidate) -> float:
        """What is to be least."""
        raise NotImplementedError

    def merit(self, candidate: Candidate) -> str:
        """Why the best candidate was chosen: the end of a sentence."""
        raise NotImplementedError


class TimeFirst(_Tenth):
    """The node with the least T_round, at x = 0.1 of every label."""

    name = "time-first"

    def drawback(self, candidate: Candidate) -> float:
        """T_round."""
        return candidate.compute_seconds + candidate.transfer_seconds

    def merit(self, candidate: Candidate) -> str:
        """Its time."""
        return f", the quickest round at {self.drawback(candidate):.6g} s"


class VarianceFirst(BasePolicy):
    """The next node in cyclic order, on the most samples that keep the labels' variance within V."""

    name = "variance-first"

    def stuck(self, ledger: Ledger, held: NDArray[np.int64]) -> str | None:
        """V may keep every node from training."""
        return stuck_by_balance(ledger, held, self.settings)

    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """The order follows the round's number, so that a node with nothing to add does not stop the cycle."""
        turn = now.ledger.round % len(now.loads.flops)
        node = min(now.nodes, key=lambda n: (n - turn) % len(now.loads.flops))
        allotment = now.allot([node])
        candidates = now.weigh([node], allotment.samples, allotment.variance)
        limit = f"{self.settings.variance_limit:,.6g}"
        if candidates[0].samples == 0:
            return now.skip(
                f"Nobody trains: it is node {node}'s turn, and it can add no sample towards a label variance"
                f" within V = {limit}.",
                candidates,
            )
        reach = f"within V = {limit}" if candidates[0].feasible else f"as near to V = {limit} as it can"
        return now.train(
            candidates[0],
            allotment.samples[0],
            candidates,
            f"{who(node, now.holder)} has its turn and trains {counted(candidates[0].samples)},"
            f" the label variance {reach}.",
        )


class Tram(_Tenth):
    """Tram-FL's dynamic routing: the node whose next interval, x = 0.1, leaves the least label variance."""

    name = "tram"

    def drawback(self, candidate: Candidate) -> float:
        """The label variance after the round."""
        return candidate.label_variance

    def merit(self, candidate: Candidate) -> str:
        """Its label variance."""
        return f" and leaves the least label variance, {candidate.label_variance:,.6g}"

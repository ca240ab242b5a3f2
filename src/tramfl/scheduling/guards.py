"""What an operator may ask of every policy: limits of a round, and a visit to every node now and then.

`guarded` wraps a policy where one of them is set. The mix of labels to aim for is no guard: it is part of the
balance itself, `Round.allot`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tramfl.notation import Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import Policy, PolicySettings
from tramfl.scheduling.weighing import Round, counted, most_samples, thinned, who


def guarded(policy: Policy, settings: PolicySettings) -> Policy:
    """The policy with the guards that the settings ask for; itself where they ask for none."""
    if settings.max_samples is None and settings.visit_every is None and settings.max_hops is None:
        return policy
    return Guarded(policy, settings)


class Guarded:
    """A policy under guard."""

    def __init__(self, policy: Policy, settings: PolicySettings) -> None:
        self._policy, self._settings = policy, settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)  # name, stuck, looks_ahead, ...: those of the policy itself

    def decide(
        self,
        ledger: Ledger,
        loads: Loads,
        held: NDArray[np.int64],
        holder: NodeId,
        cost: ModelCost,
        rng: np.random.Generator,
    ) -> Decision:
        """A visit where one is due, otherwise what the policy decides, cut to the most samples of a round."""
        node = self._due(ledger, loads, held)
        if node is not None:
            name = str(getattr(self._policy, "name", type(self._policy).__name__))
            return self._visit(node, Round.of(name, self._settings, ledger, loads, held, holder, cost))
        decision = self._policy.decide(ledger, loads, held, holder, cost, rng)
        most, total = most_samples(self._settings, loads, holder, cost), sum(decision.samples)
        if most is None or total <= most:
            return decision
        samples = thinned(np.array([decision.samples], dtype=np.int64), most)[0]
        seconds = decision.compute_seconds * most / total
        return replace(decision, samples=tuple(samples.tolist()), compute_seconds=seconds)

    def _due(self, ledger: Ledger, loads: Loads, held: NDArray[np.int64]) -> NodeId | None:
        """The node whose turn for a visit it is; None where it is no node's.

        The turns follow from the round's number, so every node that decides finds the same. In `visit_every` rounds
        every node has one turn; with more nodes than that, one node a round is all there can be.
        """
        every, nodes = self._settings.visit_every, len(loads.flops)
        if every is None:
            return None
        every = max(every, nodes)
        place = ledger.round % every
        node = next((n for n in range(nodes) if n * every // nodes == place), None)
        return node if node is not None and loads.has(node) and held[node].any() else None

    def _visit(self, node: NodeId, now: Round) -> Decision:
        """The node trains what the balance allows; where that is nothing, as many samples as rounds usually have.

        Otherwise a label that only one node has would keep all other nodes from ever training.
        """
        allotment = now.allot([node])
        samples = allotment.samples
        if not (allotment.feasible[0] and allotment.total[0] >= 1):
            rounds = now.ledger.trained
            usual = now.ledger.samples // rounds if rounds else int(now.stock([node]).sum()) // 10
            samples = now.filled(node, max(1, usual))[np.newaxis, :]
        candidates = now.weigh([node], samples)
        reason = (
            f"{who(node, now.holder)} trains {counted(candidates[0].samples)}: its visit is due, one in"
            f" {self._settings.visit_every} rounds."
        )
        return now.train(candidates[0], samples[0], candidates, reason)

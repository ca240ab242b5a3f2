"""Gossip SGD (D-PSGD): nodes train, then mix their models with their neighbours'.

    every node i:  K steps  w_i <- w_i - mu g_i(w_i), then  w_i <- sum over j of W_ij w_j

W has Metropolis-Hastings weights on the round's graph: all nodes (`full`; then W_ij = 1/N, which is averaging with
equal weights without a server), a `ring`, or pairs drawn anew in every round (`matching`). A round takes, for every
node, its training and then its transfers, and ends with the slowest. With `wait_for` below 1 the first m of n nodes
to end their training mix among themselves; the others drop what they trained. Bits a round: N (N - 1) D_M on a full
mesh, 2 N D_M on a ring, N D_M with pairs.

Source: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms? (NeurIPS 2017); the weights are
Metropolis-Hastings's as usually given. Written from the equations.
"""

from __future__ import annotations

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import MEAN, Mix, Reading, RoundPlan, RoundView, TrainStep, Variable
from tramfl.exchange.topology import mixing

_PAIRS = 2
"""What is drawn: who exchanges with whom in a round."""


class Gossip:
    """Nodes train, then mix their models with their neighbours'."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        self._topology = settings.topology

    def start(self) -> tuple[Variable, ...]:
        """Nothing beside w."""
        return ()

    def plan(self, view: RoundView) -> RoundPlan | None:
        """Train, send to the neighbours, mix."""
        chosen = view.first(lambda node: view.training_seconds(node, view.samples, 0.0), view.trainers)
        if not chosen:
            return None
        mix = Mix(mixing(self._topology, chosen, view.draw(_PAIRS, view.round)), "w", "w")
        return RoundPlan(
            (*(TrainStep(node, view.samples) for node in chosen), mix),
            f"{len(chosen)} nodes train and mix ({self._topology}).",
        )

    def reading(self, view: RoundView) -> Reading:
        """Every node's model."""
        return Reading(tuple((node, "w") for node in range(view.nodes)), MEAN, "nodes")

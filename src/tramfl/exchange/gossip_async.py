"""Asynchronous gossip (AD-PSGD): every node trains and averages with a random neighbour, and waits for nobody.

    cycle of node i:  s_i <- w_i and s_j <- w_j for a neighbour j that is drawn;
                      K steps from s_i give t_i; meanwhile s_i and s_j cross the link
                      w_i <- w_i + (s_j - s_i) / 2 and w_j <- w_j + (s_i - s_j) / 2 when they have arrived
                      w_i <- w_i + (t_i - s_i) when the training has ended, too

Where nothing else happens to the two nodes meanwhile, that is the paper's: average with a neighbour, then apply the
gradient found at the model before. Adding half of the difference, rather than setting the average, keeps the sum of
all models exact where several averages overlap; the paper locks both nodes instead. A node has one training at a
time and answers neighbours while it trains. A row stands for N cycles that have ended. Bits a cycle: 2 D_M.

With `loads.clock = "round"` the n-th cycle of a node has the loads of round n for its training and its link.

Source: Lian et al., Asynchronous Decentralized Parallel SGD (ICML 2018), abstract and usual description.
"""

from __future__ import annotations

from collections.abc import Sequence

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import MEAN, Combine, Cycle, Forget, Reading, RoundView, Step, Trade, TrainStep, Variable
from tramfl.exchange.topology import neighbours
from tramfl.notation import NodeId

_PARTNER = 3
"""What is drawn: whom a node averages with in a cycle."""


class AsynchronousGossip:
    """Every node trains and averages with a random neighbour, and waits for nobody."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        self._links = neighbours("ring" if settings.topology == "ring" else "full", range(nodes))

    def start(self) -> tuple[Variable, ...]:
        """Nothing beside w."""
        return ()

    def cycle(self, node: NodeId, view: RoundView) -> Cycle:
        """Train from a snapshot while snapshots cross the link to a neighbour."""
        rng = view.draw(_PARTNER, node, view.round)
        others: Sequence[NodeId] = self._links[node]
        if len(view.reporting) < view.nodes:
            others = sorted(set(others).intersection(view.reporting))
        mine, theirs = notes = (f"mine/{node}", f"theirs/{node}")
        begin: tuple[Step, ...]
        arrived: tuple[Step, ...]
        if others:
            other = others[int(rng.integers(len(others)))]
            begin = (Trade(node, other, "w", notes),)
            arrived = (
                Combine(node, "w", (("w", 1.0), (theirs, 0.5), (mine, -0.5))),
                Combine(other, "w", (("w", 1.0), (mine, 0.5), (theirs, -0.5))),
                Forget(other, notes),
            )
        else:
            begin, arrived = (Combine(node, mine, (("w", 1.0),)),), ()
        noted = notes if others else (mine,)
        if not view.held[node]:
            return Cycle(begin, arrived, (Forget(node, noted),))
        return Cycle(
            (*begin, TrainStep(node, view.samples, mine, "trained")),
            arrived,
            (
                Combine(node, "w", (("w", 1.0), ("trained", 1.0), (mine, -1.0))),
                Forget(node, (*noted, "trained")),
            ),
        )

    def reading(self, view: RoundView) -> Reading:
        """Every node's model."""
        return Reading(tuple((node, "w") for node in range(view.nodes)), MEAN, "nodes")

"""Every node trains, then averages its model with that of the node before it on a ring.

    every node i:  K steps  w_i <- w_i - mu g_i(w_i), then  w_i <- (w_i + w_{i-1}) / 2

Bits a round: N D_M.
"""

from __future__ import annotations

from tramfl.config import ExchangeSettings
from tramfl.exchange import MEAN, Combine, Reading, RoundPlan, RoundView, Send, TrainStep, Variable
from tramfl.methods import Method


class PassOn:
    """A ring in which models go one way."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        pass

    def start(self) -> tuple[Variable, ...]:
        """Nothing beside every node's own model, `w`."""
        return ()

    def plan(self, view: RoundView) -> RoundPlan | None:
        """Train, send, average."""
        nodes = view.trainers
        if len(nodes) < 2:
            return None
        trains = [TrainStep(node, view.samples) for node in nodes]
        sends = [Send(nodes[at - 1], node, "w", "before") for at, node in enumerate(nodes)]
        averages = [Combine(node, "w", (("w", 0.5), ("before", 0.5))) for node in nodes]
        return RoundPlan((*trains, *sends, *averages), f"{len(nodes)} nodes train and pass their models on.")

    def reading(self, view: RoundView) -> Reading:
        """Every node's model is tested, and the mean of all."""
        return Reading(tuple((node, "w") for node in range(view.nodes)), MEAN, "nodes")


METHOD = Method(
    "pass-on",
    "Nodes train, then average with the node before them on a ring.",
    {"exchange.rule": "own_method:PassOn", "exchange.local_steps": 8},
)

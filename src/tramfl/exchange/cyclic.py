"""Cyclical weight transfer: one model visits the nodes in turn.

    visit k at node i:  K steps  w <- w - mu g_i(w), then w is sent to the next node

Every cycle visits each node that has samples once, in an order that is drawn for the cycle. A round is one visit: the
transfer from the node before, then the training. Where the node whose turn it is does not report, the round is
skipped and the visit is tried again. Bits a round: D_M. This is the plain way for a model to travel: it looks at
neither loads nor labels.

Source: Chang et al., Distributed deep learning networks among institutions for medical imaging (JAMIA 2018), as
sequential federated learning is usually described. Written from the description.
"""

from __future__ import annotations

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import Reading, RoundPlan, RoundView, Send, Step, TrainStep, Variable
from tramfl.notation import NodeId

_ORDER = 1
"""What is drawn: the order of a cycle."""


class Cyclic:
    """One model visits the nodes in turn."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        pass

    def start(self) -> tuple[Variable, ...]:
        """Nothing beside w."""
        return ()

    def plan(self, view: RoundView) -> RoundPlan | None:
        """The transfer from the node before, then the training."""
        node, before = _at(view.round, view), _at(view.round - 1, view)
        if node not in view.reporting or before not in view.reporting:
            return None
        arrival: list[Step] = [] if node == before else [Send(before, node, "w", "w")]
        return RoundPlan(
            (*arrival, TrainStep(node, view.samples)), f"The model visits node {node}, whose turn it is."
        )

    def reading(self, view: RoundView) -> Reading:
        """The model that travels."""
        return Reading((), (_at(view.round, view), "w"), "consensus")


def _at(visit: int, view: RoundView) -> NodeId:
    """The node of a visit; before the first one the model is where the first one is."""
    nodes = [node for node, samples in enumerate(view.held) if samples]
    cycle, place = divmod(max(1, visit) - 1, len(nodes))
    return nodes[int(view.draw(_ORDER, cycle).permutation(len(nodes))[place])]

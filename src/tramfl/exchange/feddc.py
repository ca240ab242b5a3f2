"""FedDC: every node trains a model, the models change places, and now and then they are averaged.

    every round:  w_i <- w_i - mu g_i(w_i), K steps at every node
    every `permute_every` rounds:  the model of node i moves to node p(i), a permutation without a fixed point
    every `average_every` rounds:  w_i <- mean of all w_j instead, by way of one node that is drawn

`matching = "random"` draws p; "load-aware" takes the permutation whose slowest transfer is as quick as can be (a
bottleneck assignment), which is our addition. Bits: N D_M for a permutation, 2 (N - 1) D_M for an average.

Source: Kamp, Fischer, Vreeken: Federated Learning from Small Datasets (ICLR 2023), abstract and usual description.
Averaging goes from node to node here, without a server.
"""

from __future__ import annotations

import numpy as np

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import (
    MEAN,
    Combine,
    Forget,
    Reading,
    RoundPlan,
    RoundView,
    Send,
    Step,
    TrainStep,
    Variable,
)
from tramfl.exchange.topology import quickest_permutation
from tramfl.notation import NodeId

_PLACES = 4
"""What is drawn: the permutation of a round, or who averages."""


class FedDC:
    """Every node trains a model, the models change places, and now and then they are averaged."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        self._settings = settings

    def start(self) -> tuple[Variable, ...]:
        """Nothing beside w."""
        return ()

    def plan(self, view: RoundView) -> RoundPlan | None:
        """Train, then permute or average where it is due."""
        chosen = view.first(lambda node: view.training_seconds(node, view.samples, 0.0), view.trainers)
        if not chosen:
            return None
        steps: list[Step] = [TrainStep(node, view.samples) for node in chosen]
        count, what = len(chosen), "keep their models"
        if count > 1 and view.round % self._settings.average_every == 0:
            steps += self._average(chosen, view)
            what = "average their models"
        elif count > 1 and view.round % self._settings.permute_every == 0:
            steps += self._permute(chosen, view)
            what = "pass their models on"
        return RoundPlan(tuple(steps), f"{count} nodes train and {what}.")

    def _average(self, chosen: tuple[NodeId, ...], view: RoundView) -> list[Step]:
        middle = chosen[int(view.draw(_PLACES, view.round).integers(len(chosen)))]
        others = [node for node in chosen if node != middle]
        parts = tuple(("w" if node == middle else f"w/{node}", 1 / len(chosen)) for node in chosen)
        gathered: list[Step] = [Send(node, middle, "w", f"w/{node}") for node in others]
        averaged = (Combine(middle, "w", parts), Forget(middle, tuple(f"w/{node}" for node in others)))
        return [*gathered, *averaged, *(Send(middle, node, "w", "w") for node in others)]

    def _permute(self, chosen: tuple[NodeId, ...], view: RoundView) -> list[Step]:
        if self._settings.matching == "random":
            order = view.draw(_PLACES, view.round).permutation(len(chosen)).tolist()
            # A cycle through a random order: every model moves, and to any other node with equal chance.
            target = {chosen[one]: chosen[other] for one, other in zip(order, [*order[1:], order[0]], strict=True)}
        else:
            ready = [view.training_seconds(node, view.samples, 0.0) for node in chosen]
            sending = [view.sending_to(node, chosen, after) for node, after in zip(chosen, ready, strict=True)]
            target = quickest_permutation(chosen, np.array(ready)[:, None] + np.array(sending))
        sent: list[Step] = [Send(one, other, "w", "next") for one, other in target.items()]
        return [*sent, *(Combine(node, "w", (("next", 1.0),)) for node in chosen)]

    def reading(self, view: RoundView) -> Reading:
        """Every node's model."""
        return Reading(tuple((node, "w") for node in range(view.nodes)), MEAN, "nodes")

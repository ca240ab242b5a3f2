"""Stay while the labels keep their balance here; else go where the link is fastest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import Decision, Ledger, Loads, ModelCost, NodeId
from tramfl.scheduling.policy import PolicySettings
from tramfl.scheduling.timing import compute_seconds, transfer_seconds
from tramfl.scheduling.water_level import largest_allotment


class StayOrNearest:
    """Takes as much as V allows from the nearest node that can give anything; the holder is nearest to itself."""

    name = "stay-or-nearest"

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings

    def decide(
        self,
        ledger: Ledger,
        loads: Loads,
        held: NDArray[np.int64],
        holder: NodeId,
        cost: ModelCost,
        rng: np.random.Generator,
    ) -> Decision:
        """One round; only nodes that reported may be chosen."""
        found = largest_allotment(np.array(ledger.used), held, self._settings.variance_limit)
        for node in sorted(loads.reporting, key=lambda n: -loads.bandwidth[n]):
            samples = tuple(int(s) for s in found.samples[node])
            if any(samples):
                where = "stays" if node == holder else f"goes to node {node} over the fastest link that helps"
                return Decision(
                    policy=self.name,
                    node=node,
                    samples=samples,
                    compute_seconds=compute_seconds(sum(samples), cost, loads.flops[node]),
                    transfer_seconds=0.0 if node == holder else transfer_seconds(cost, loads.bandwidth[node]),
                    idle_seconds=0.0,
                    reason=f"The model {where} and trains {sum(samples)} samples.",
                )
        wait = self._settings.wait_seconds
        return Decision(self.name, None, (0,) * held.shape[1], 0.0, 0.0, wait, "No node has anything to train on.")

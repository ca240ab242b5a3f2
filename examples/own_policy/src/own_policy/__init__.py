"""Stay while the labels keep their balance here; else go where the link is fastest."""

from __future__ import annotations

import numpy as np

from tramfl.notation import Decision
from tramfl.scheduling import BasePolicy, Round, largest_allotment


class StayOrNearest(BasePolicy):
    """Takes as much as V allows from the nearest node that can give anything; the holder is nearest to itself."""

    name = "stay-or-nearest"

    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """One round; `now` has only nodes that reported, and only labels that one of them holds."""
        allotment = largest_allotment(now.used, now.stock(now.nodes), self.settings.variance_limit)
        candidates = now.weigh(now.nodes, allotment.samples)
        nearest_first = sorted(range(len(now.nodes)), key=lambda place: -now.loads.bandwidth[now.nodes[place]])
        for place in nearest_first:
            chosen = candidates[place]
            if chosen.samples:
                stays = chosen.node == now.holder
                where = "stays" if stays else f"goes to node {chosen.node} over the fastest link that helps"
                reason = f"The model {where} and trains {chosen.samples} samples."
                return now.train(chosen, allotment.samples[place], candidates, reason)
        return now.skip("Nobody trains: no node has anything that keeps the balance.", candidates)

"""Which samples a node trains on next: each label's in a random order, without replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tramfl.draws import generator
from tramfl.learning.chance import Purpose
from tramfl.learning.data.partitioners import Indices
from tramfl.notation import Counts, NodeId


class LabelPools:
    """The order in which one node uses up its samples of each label.

    A label's samples are drawn without replacement until none is left, then reshuffled. The i-th draw is a function
    of (seed, node, label, i), so the number of samples drawn is enough to know which come next.
    """

    def __init__(self, pools: Sequence[Indices], *, seed: int, node: NodeId) -> None:
        self._pools = [np.asarray(pool, dtype=np.int64) for pool in pools]
        self._seed = seed
        self._node = node
        self._latest: dict[int, tuple[int, Indices]] = {}

    @property
    def held(self) -> tuple[int, ...]:
        """l_ic: samples of each label."""
        return tuple(len(pool) for pool in self._pools)

    def draw(self, label: int, start: int, count: int) -> Indices:
        """The draws `start` to `start + count` of a label."""
        size = len(self._pools[label])
        if count and not size:
            raise ValueError(f"node {self._node} holds no sample of label {label}, and {count} were asked for")
        pieces = []
        while count > 0:
            turn, place = divmod(start, size)
            taken = min(count, size - place)
            pieces.append(self._order(label, turn)[place : place + taken])
            start, count = start + taken, count - taken
        return _joined(pieces)

    def allotment(self, samples: Sequence[int], round_: int, drawn: Sequence[int] | Counts) -> Indices:
        """The next `samples` of each label after `drawn` of them, shuffled for one round of training."""
        draws = [self.draw(c, int(drawn[c]), n) for c, n in enumerate(samples) if n]
        return generator(self._seed, Purpose.ORDER, round_, self._node).permutation(_joined(draws))

    def _order(self, label: int, turn: int) -> Indices:
        known = self._latest.get(label)
        if known is None or known[0] != turn:
            rng = generator(self._seed, Purpose.POOL, self._node, label, turn)
            known = self._latest[label] = (turn, rng.permutation(self._pools[label]))
        return known[1]


def _joined(pieces: Sequence[Indices]) -> Indices:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

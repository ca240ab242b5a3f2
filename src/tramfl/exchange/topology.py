"""Who exchanges with whom, with which weights, and which permutation of the nodes is the quickest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import NodeId, Reals

Neighbours = Mapping[NodeId, tuple[NodeId, ...]]


def neighbours(topology: str, nodes: Sequence[NodeId], rng: np.random.Generator | None = None) -> Neighbours:
    """The neighbours of each of `nodes`: all others, the two beside it on a ring, or one that `rng` draws."""
    if topology == "full":
        return {node: tuple(other for other in nodes if other != node) for node in nodes}
    if topology == "ring":
        count = len(nodes)
        found = ({nodes[(at - 1) % count], nodes[(at + 1) % count]} - {node} for at, node in enumerate(nodes))
        return dict(zip(nodes, map(tuple, map(sorted, found)), strict=True))
    assert rng is not None, "pairs are drawn"
    order = rng.permutation(len(nodes)).tolist()
    pairs = [(nodes[one], nodes[other]) for one, other in zip(order[::2], order[1::2], strict=False)]
    partner = {one: (other,) for pair in pairs for one, other in (pair, pair[::-1])}
    return {node: partner.get(node, ()) for node in nodes}


def mixing(
    topology: str, nodes: tuple[NodeId, ...], rng: np.random.Generator
) -> Mapping[NodeId, dict[NodeId, float]]:
    """Metropolis-Hastings weights of a round among `nodes`; pairs are drawn, other graphs are always the same."""
    return metropolis(neighbours(topology, nodes, rng)) if topology == "matching" else _fixed_mixing(topology, nodes)


@lru_cache(maxsize=4)
def _fixed_mixing(topology: str, nodes: tuple[NodeId, ...]) -> Mapping[NodeId, dict[NodeId, float]]:
    return metropolis(neighbours(topology, nodes))


def metropolis(graph: Neighbours) -> dict[NodeId, dict[NodeId, float]]:
    """Metropolis-Hastings weights, a node's own first: W_ij = 1 / (1 + max(d_i, d_j)), W_ii what is left to 1.

    W is symmetric and doubly stochastic, so mixing keeps the mean of the models.
    """
    found: dict[NodeId, dict[NodeId, float]] = {}
    degree = {node: len(others) for node, others in graph.items()}
    for node, others in graph.items():
        own = degree[node]
        weights = {other: 1 / (1 + max(own, degree[other])) for other in others}
        found[node] = {node: 1 - math.fsum(weights.values()), **weights}
    return found


def quickest_permutation(nodes: Sequence[NodeId], seconds: Reals) -> dict[NodeId, NodeId]:
    """The permutation without a fixed point whose slowest transfer is as quick as can be.

    `seconds[a, b]` is the transfer from `nodes[a]` to `nodes[b]`. A bottleneck assignment: the least limit under
    which every node can be given another one. The search begins at what every node needs at least: its own quickest
    transfer, and the quickest one to it.
    """
    others = ~np.eye(len(nodes), dtype=bool)
    least = max(np.where(others, seconds, math.inf).min(axis=axis).max() for axis in (0, 1))
    limits = np.unique(seconds[others & (seconds >= least)])
    low, high, reach = 0, len(limits), 1
    found: dict[int, int] | None = None
    while low < high:
        # The least limit is mostly near its lower bound: look close to it first, then ever further up.
        middle = min(low + reach - 1, (low + high) // 2)
        assigned = _assigned(others & (seconds <= limits[middle]))
        if assigned is None:
            low, reach = middle + 1, 2 * reach
        else:
            high, found = middle, assigned
    assert found is not None, "every node can be given another one where no transfer is too slow"
    return {nodes[one]: nodes[other] for one, other in found.items()}


def _assigned(allowed: NDArray[np.bool_]) -> dict[int, int] | None:
    """A permutation of allowed transfers; None where there is none. Augmenting paths over rows of bits."""
    rows = [int.from_bytes(row.tobytes(), "little") for row in np.packbits(allowed, axis=1, bitorder="little")]
    sender: dict[int, int] = {}
    untried = 0

    def place(one: int) -> bool:
        nonlocal untried
        while choice := rows[one] & untried:
            bit = choice & -choice
            untried ^= bit
            other = bit.bit_length() - 1
            if other not in sender or place(sender[other]):
                sender[other] = one
                return True
        return False

    for one in range(len(rows)):
        untried = (1 << len(rows)) - 1
        if not place(one):
            return None
    return {one: other for other, one in sender.items()}

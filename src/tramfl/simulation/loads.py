"""What the nodes can spare, round by round: the paper's draws, and others.

A source is a function of the round: asked twice, by whomever, it gives the same loads. That is what makes a run
repeatable, and a retried round the same round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tramfl.config import LoadModel
from tramfl.draws import generator
from tramfl.notation import BadInput, NodeId, Reals
from tramfl.record import Row, read_rows

_STREAM = 101
"""Keeps the draws of loads apart from every other use of the seed."""


@dataclass(frozen=True)
class Took:
    """What a recorded round really took: it holds again if the same node trains the same samples."""

    node: NodeId
    samples: tuple[int, ...]
    transfer_seconds: float
    compute_seconds: float
    """With what failed attempts had cost: their time has passed, too."""


@dataclass(frozen=True)
class RoundLoads:
    """The loads of one round, for every node and every link."""

    flops: list[float]
    """r_i^k; NaN where the node does not report."""
    bandwidth: list[list[float]]
    """b_ij^k; infinite from a node to itself."""
    took: Took | None = None
    """Known only of rounds that were recorded."""
    holder: NodeId | None = None
    """Who held the model before the round; known only of rounds that were recorded."""


class LoadSource(Protocol):
    """Where a simulation takes its loads from."""

    def at(self, round_: int) -> RoundLoads:
        """The loads of round k = 1, 2, ..."""
        ...


def load_source(settings: LoadModel, nodes: int, seed: int) -> LoadSource:
    """The source that a scenario's `[loads]` describe."""
    capacity = _capacity(settings, nodes)
    for name, (low, high) in (
        ("compute_share", settings.compute_share),
        ("bandwidth_share", settings.bandwidth_share),
    ):
        if low > high:
            raise BadInput(f"key `loads.{name}`: the lower end {low} is above the upper end {high}.")
    if settings.kind == "replay":
        if settings.trace is None:
            raise BadInput("key `loads.trace` is missing: replay needs the rounds.jsonl to take the loads from.")
        return ReplayedLoads(list(read_rows(Path(settings.trace))), nodes)
    if settings.kind == "constant":
        return ConstantLoads(capacity, settings.bandwidth)
    if settings.kind == "ar1":
        return PersistentLoads(settings, capacity, seed)
    return UniformLoads(settings, capacity, seed)


def _capacity(settings: LoadModel, nodes: int) -> Reals:
    if isinstance(settings.flops, tuple):
        if len(settings.flops) != nodes:
            raise BadInput(f"key `loads.flops` has {len(settings.flops)} numbers; there are {nodes} nodes.")
        return np.array(settings.flops)
    return np.full(nodes, settings.flops)


class ConstantLoads:
    """Nothing else runs anywhere: every node gives all it has, in every round."""

    def __init__(self, capacity: Reals, bandwidth: float) -> None:
        links = np.full((capacity.size, capacity.size), bandwidth)
        self._loads = _round_loads(capacity, links)

    def at(self, round_: int) -> RoundLoads:
        """The same loads in every round."""
        return self._loads


class UniformLoads:
    """The paper's draws: u_i ~ U[0.01, 1], u_ij ~ U[0.005, 1], anew each round, one per unordered pair."""

    def __init__(self, settings: LoadModel, capacity: Reals, seed: int) -> None:
        self._shares, self._seed = _Shares(settings, capacity), seed

    def at(self, round_: int) -> RoundLoads:
        """Drawn from the seed and the round's number alone."""
        draws = generator(self._seed, _STREAM, round_).random(self._shares.count)
        return self._shares.loads(draws)


class PersistentLoads:
    """A load that lasts: an AR(1) process whose every round alone looks like the paper's draws.

    x_k = phi x_{k-1} + sqrt(1 - phi^2) e_k with normal e_k, and u the quantile of x_k among normal numbers.
    """

    def __init__(self, settings: LoadModel, capacity: Reals, seed: int) -> None:
        self._shares, self._seed = _Shares(settings, capacity), seed
        self._memory = settings.memory
        self._round = 0
        self._x = self._noise(0)

    def _noise(self, round_: int) -> Reals:
        return generator(self._seed, _STREAM, round_).standard_normal(self._shares.count)

    def at(self, round_: int) -> RoundLoads:
        """The process is carried forward from the last round asked for, or from its beginning."""
        if round_ < self._round:
            self._round, self._x = 0, self._noise(0)
        phi = self._memory
        while self._round < round_:
            self._round += 1
            self._x = phi * self._x + math.sqrt(1.0 - phi * phi) * self._noise(self._round)
        quantiles = np.array([0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) for x in self._x.tolist()])
        return self._shares.loads(quantiles)


class ReplayedLoads:
    """The loads of a recorded run, over and over, and the times that its rounds took.

    A record knows the links of that round's holder alone; another link has the value it was last seen with,
    or the mean of all that were seen.
    """

    def __init__(self, rows: Sequence[Row], nodes: int) -> None:
        if not rows:
            raise BadInput("the trace to replay has no rounds.")
        if len(rows[0].loads.flops) != nodes:
            raise BadInput(f"the trace to replay has {len(rows[0].loads.flops)} nodes; the scenario has {nodes}.")
        loads = [row.loads.in_full for row in rows]
        seen = [b for each in loads for b in each.bandwidth if b is not None]
        links = np.full((nodes, nodes), float(np.mean(seen)) if seen else math.inf)
        self._rounds: list[RoundLoads] = []
        for row, recorded in zip(rows, loads, strict=True):
            for node, bandwidth in enumerate(recorded.bandwidth):
                if bandwidth is not None:
                    links[row.holder, node] = links[node, row.holder] = bandwidth
            flops = np.array([math.nan if f is None else f for f in recorded.flops])
            self._rounds.append(replace(_round_loads(flops, links.copy()), took=_took(row), holder=row.holder))

    def at(self, round_: int) -> RoundLoads:
        """Round k of the trace; past its end it begins again."""
        return self._rounds[(round_ - 1) % len(self._rounds)]


def _took(row: Row) -> Took | None:
    if row.node is None:
        return None
    return Took(row.node, row.samples, row.transfer_seconds, row.compute_seconds + row.lost_seconds)


class _Shares:
    """Loads from numbers in [0, 1]: first one per node, then one per pair."""

    def __init__(self, settings: LoadModel, capacity: Reals) -> None:
        self._settings, self._capacity = settings, capacity
        one, other = np.triu_indices(capacity.size, k=1)
        self.count: int = capacity.size + one.size
        """How many numbers that takes."""
        # Which of the pairs each link is; the last, past all pairs, is the one to oneself.
        self._pair = np.full((capacity.size, capacity.size), one.size)
        self._pair[one, other] = self._pair[other, one] = np.arange(one.size)

    def loads(self, draws: Reals) -> RoundLoads:
        """The loads."""
        nodes = self._capacity.size
        low, high = self._settings.compute_share
        flops = self._capacity * (low + (high - low) * draws[:nodes])
        low, high = self._settings.bandwidth_share
        links = np.empty(self.count - nodes + 1)
        links[:-1] = self._settings.bandwidth * (low + (high - low) * draws[nodes:])
        links[-1] = math.inf
        return RoundLoads(flops.tolist(), links.take(self._pair).tolist())


def _round_loads(flops: Reals, links: Reals) -> RoundLoads:
    np.fill_diagonal(links, math.inf)
    return RoundLoads(flops.tolist(), links.tolist())

"""What the nodes can spare, step by step: the paper's draws, and others. A step is a round, or a slot of time.

A source is a function of the step: asked twice, it gives the same loads. That makes a run repeatable, and a retried
round the same round.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from tramfl.config import LoadModel
from tramfl.draws import generator
from tramfl.notation import BadInput, NodeId, Reals
from tramfl.record import Row, read_rows
from tramfl.simulation.processes import STREAM, Autoregressive, Bursts, DayAndNight, LoadProcess
from tramfl.simulation.traces import Trace, read_trace

Places = NDArray[np.intp]


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
    bandwidth: Sequence[list[float]]
    """b_ij^k; infinite from a node to itself."""
    took: Took | None = None
    """Known only of rounds that were recorded."""
    holder: NodeId | None = None
    """Who held the model before the round; known only of rounds that were recorded."""
    overhead_seconds: float = 0.0
    """What gathering, deciding, the register and the disk took; known only of rounds that real sites did."""

    @cached_property
    def reporting(self) -> tuple[NodeId, ...]:
        """The nodes that can train."""
        return tuple([node for node, flops in enumerate(self.flops) if flops > 0])  # a NaN is not

    def link(self, one: NodeId, other: NodeId) -> float:
        """b_ij of one link."""
        links = self.bandwidth
        return links.link(one, other) if isinstance(links, Links) else links[one][other]

    def along(self, one: Places, other: Places) -> Reals:
        """b_ij of many links, each from a node of `one` to that of `other`."""
        links = self.bandwidth
        if isinstance(links, Links):
            return links.along(one, other)
        return np.array([links[i][j] for i, j in zip(one.tolist(), other.tolist(), strict=True)])


class Links(Sequence[list[float]]):
    """b_ij of every link, that need not be turned into lists to be looked up."""

    @abstractmethod
    def link(self, one: NodeId, other: NodeId) -> float:
        """b_ij of one link."""

    @abstractmethod
    def along(self, one: Places, other: Places) -> Reals:
        """b_ij of many links."""


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
    if settings.kind == "heterogeneous":
        return HeterogeneousLoads(settings, capacity, seed)
    if settings.kind == "uniform":
        return UniformLoads(settings, capacity, seed)
    if settings.kind == "trace":
        return traced(settings, capacity)
    return ProcessLoads(settings, capacity, _process(settings, nodes * (nodes + 1) // 2, seed))


def _process(settings: LoadModel, count: int, seed: int) -> LoadProcess:
    slot = settings.slot_seconds if settings.clock == "slot" else 1.0
    if settings.kind == "ar1":
        return Autoregressive(count, seed, settings.memory)
    if settings.kind == "bursts":
        return Bursts(count, seed, settings.burst_length / slot, settings.burst_pause / slot)
    return DayAndNight(count, seed, settings.period / slot)


def traced(settings: LoadModel, capacity: Reals) -> LoadSource:
    """The loads of a CSV trace, which says what is free at which second."""
    if settings.trace is None:
        raise BadInput("key `loads.trace` is missing: kind trace needs the CSV file to take the loads from.")
    if settings.clock != "slot":
        raise BadInput("key `loads.clock` is round; a trace is a matter of time and needs `loads.clock` = slot.")
    return TracedLoads(read_trace(Path(settings.trace), capacity.size), settings, capacity)


class TracedLoads:
    """Loads from a trace, slot by slot; past its end it begins again."""

    def __init__(self, trace: Trace, settings: LoadModel, capacity: Reals) -> None:
        self._trace, self._capacity = trace, capacity
        self._bandwidth, self._slot, self._offset = settings.bandwidth, settings.slot_seconds, settings.trace_offset

    def at(self, round_: int) -> RoundLoads:
        """The loads at the begin of slot 1, 2, ..."""
        nodes, links = self._trace.at(self._offset + (round_ - 1) * self._slot)
        return _round_loads(self._capacity * nodes, self._bandwidth * links)


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
        draws = generator(self._seed, STREAM, round_).random(self._shares.count)
        return self._shares.loads(draws)


class ProcessLoads:
    """Shares of what each node has, as a process says."""

    def __init__(self, settings: LoadModel, capacity: Reals, process: LoadProcess) -> None:
        self._shares, self._process = _Shares(settings, capacity), process

    def at(self, round_: int) -> RoundLoads:
        """The loads at one step of the process."""
        return self._shares.loads(self._process.at(round_))


class HeterogeneousLoads:
    """Constant loads that differ: every node and every link has the share that the paper would draw in round 1."""

    def __init__(self, settings: LoadModel, capacity: Reals, seed: int) -> None:
        self._loads = UniformLoads(settings, capacity, seed).at(1)

    def at(self, round_: int) -> RoundLoads:
        """The same loads in every round."""
        return self._loads


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
        self.has_overhead = any(row.overhead > 0 for row in rows)
        """Whether real sites did the rounds, so that what passed between their steps counts."""
        self._rounds: list[RoundLoads] = []
        for row, recorded in zip(rows, loads, strict=True):
            for node, bandwidth in enumerate(recorded.bandwidth):
                if bandwidth is not None:
                    links[row.holder, node] = links[node, row.holder] = bandwidth
            flops = np.array([math.nan if f is None else f for f in recorded.flops])
            met = links.copy()
            # A node that reported without a link had the weights already.
            met[
                row.holder,
                [b is None and f is not None for f, b in zip(recorded.flops, recorded.bandwidth, strict=True)],
            ] = math.inf
            self._rounds.append(
                replace(_round_loads(flops, met), took=_took(row), holder=row.holder, overhead_seconds=row.overhead)
            )

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
        return RoundLoads(flops.tolist(), _DrawnLinks(draws[nodes:], self._pair, self._settings))


class _DrawnLinks(Links):
    """The links of every node, worked out for the nodes that are asked for: a round needs one of them."""

    def __init__(self, draws: Reals, pair: Places, settings: LoadModel) -> None:
        """`pair` has, for every link, its place in `draws`; one to oneself has a place past their end."""
        self._draws, self._pair, self._settings = draws, pair, settings

    def __len__(self) -> int:
        return len(self._pair)

    @overload
    def __getitem__(self, node: int) -> list[float]: ...
    @overload
    def __getitem__(self, node: slice) -> list[list[float]]: ...
    def __getitem__(self, node: int | slice) -> list[float] | list[list[float]]:
        found: list[Any] = self._at(self._pair[node]).tolist()
        return found

    def link(self, one: NodeId, other: NodeId) -> float:
        """b_ij of one link."""
        place = self._pair.item(one, other)
        if place == self._draws.size:
            return math.inf
        low, high = self._settings.bandwidth_share
        return self._settings.bandwidth * (low + (high - low) * self._draws.item(place))

    def along(self, one: Places, other: Places) -> Reals:
        """b_ij of many links."""
        return self._at(self._pair[one, other])

    def _at(self, pair: Places) -> Reals:
        low, high = self._settings.bandwidth_share
        shares = self._draws.take(pair, mode="clip") if self._draws.size else np.ones(pair.shape)  # a single node
        links: Reals = self._settings.bandwidth * (low + (high - low) * shares)
        links[pair == self._draws.size] = math.inf
        return links

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _round_loads(flops: Reals, links: Reals) -> RoundLoads:
    np.fill_diagonal(links, math.inf)
    return RoundLoads(flops.tolist(), links.tolist())

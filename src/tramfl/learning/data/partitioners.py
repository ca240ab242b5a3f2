"""Partitioners with the names and arguments that users know from flwr-datasets, on an array of labels.

`partition(labels)` gives one array of sample indices per node, disjoint, and the same for the same seed.
`partition_by` names a column there; here there is only one, so it is accepted and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import BadInput

Indices = NDArray[np.int64]

_DRAWS = 1000
"""How often a Dirichlet division is drawn anew before its smallest part is deemed impossible."""


class Partitioner(Protocol):
    """Divides samples among nodes by their labels."""

    def partition(self, labels: NDArray[np.int64]) -> list[Indices]:
        """The samples of each node."""
        ...


@dataclass(frozen=True)
class IidPartitioner:
    """Equal parts drawn at random, so that every node sees every label alike."""

    num_partitions: int
    seed: int | None = 42

    def partition(self, labels: NDArray[np.int64]) -> list[Indices]:
        """The samples of each node."""
        _check_parts(self.num_partitions, len(labels))
        # By label first: how many of each a node gets then depends on their counts alone, not on the samples' order.
        by_label = np.argsort(labels, kind="stable")
        order = by_label[np.random.default_rng(self.seed).permutation(len(labels))]
        return list(np.array_split(order, self.num_partitions))


@dataclass(frozen=True)
class DirichletPartitioner:
    """Each label is divided by shares drawn from a Dirichlet distribution (arXiv:1905.12022)."""

    num_partitions: int
    partition_by: str = "label"
    alpha: float | Sequence[float] = 0.5
    """Concentration: small means uneven; one number, or one per node."""
    min_partition_size: int = 10
    self_balancing: bool = False
    """Give no more to a node that already has its even share of all samples."""
    shuffle: bool = True
    seed: int | None = 42

    def partition(self, labels: NDArray[np.int64]) -> list[Indices]:
        """The samples of each node; drawn anew until the smallest part is large enough."""
        _check_parts(self.num_partitions, len(labels))
        if self.min_partition_size * self.num_partitions > len(labels):
            raise BadInput(
                f"min_partition_size = {self.min_partition_size}: {self.num_partitions} nodes of that size need "
                f"more than the {len(labels)} samples there are."
            )
        alpha = self._alpha()
        rng = np.random.default_rng(self.seed)
        for _ in range(_DRAWS):
            parts = self._draw(labels, alpha, rng)
            if min(len(part) for part in parts) >= self.min_partition_size:
                return _shuffled(parts, rng) if self.shuffle else parts
        raise BadInput(
            f"alpha = {self.alpha}: no draw gave every one of {self.num_partitions} nodes "
            f"{self.min_partition_size} samples; raise alpha or lower min_partition_size."
        )

    def _alpha(self) -> NDArray[np.float64]:
        alpha = np.asarray(self.alpha, dtype=np.float64)
        if alpha.ndim == 0:
            alpha = np.full(self.num_partitions, alpha)
        if alpha.shape != (self.num_partitions,) or not (alpha > 0).all():
            raise BadInput(f"alpha = {self.alpha}: give a number above 0, or {self.num_partitions} of them.")
        return alpha

    def _draw(self, labels: NDArray[np.int64], alpha: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
        even = len(labels) / self.num_partitions
        parts: list[list[Indices]] = [[] for _ in range(self.num_partitions)]
        sizes = np.zeros(self.num_partitions, dtype=np.int64)
        for label in np.unique(labels):
            samples = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(alpha)
            if self.self_balancing:
                open_shares = np.where(sizes < even, shares, 0.0)
                # All shares of a small alpha may fall to nodes that are full: then the rest share evenly.
                shares = open_shares if open_shares.sum() > 0 else (sizes < even).astype(np.float64)
                shares /= shares.sum()
            cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
            for part, piece in zip(parts, np.split(samples, cuts), strict=True):
                part.append(piece)
            sizes = np.array([sum(map(len, part)) for part in parts])
        return [np.concatenate(part) for part in parts]


@dataclass(frozen=True)
class ShardPartitioner:
    """Samples sorted by label, cut into shards, and shards dealt at random (arXiv:1602.05629)."""

    num_partitions: int
    partition_by: str = "label"
    num_shards_per_partition: int | None = None
    """How many shards each node gets; without it, all shards of `shard_size` are dealt out."""
    shard_size: int | None = None
    """Samples a shard; without it, as many as `num_shards_per_partition` leaves."""
    keep_incomplete_shard: bool = False
    """Whether a last shard that is not full is dealt out too."""
    shuffle: bool = True
    seed: int | None = 42

    def partition(self, labels: NDArray[np.int64]) -> list[Indices]:
        """The samples of each node."""
        _check_parts(self.num_partitions, len(labels))
        size = self._size(len(labels))
        by_label = np.argsort(labels, kind="stable")
        shards = [by_label[start : start + size] for start in range(0, len(labels), size)]
        if len(shards[-1]) < size and not self.keep_incomplete_shard:
            shards.pop()
        rng = np.random.default_rng(self.seed)
        dealt = rng.permutation(len(shards))
        if self.num_shards_per_partition is not None:
            needed = self.num_partitions * self.num_shards_per_partition
            if len(shards) < needed:
                raise BadInput(
                    f"shard_size = {size}: {self.num_partitions} nodes of {self.num_shards_per_partition} "
                    f"shards need {needed} shards, and {len(labels)} samples give {len(shards)}."
                )
            dealt = dealt[:needed]
        elif len(shards) < self.num_partitions:
            raise BadInput(
                f"shard_size = {size}: {len(labels)} samples give {len(shards)} shards, fewer than "
                f"{self.num_partitions} nodes."
            )
        hands = np.array_split(dealt, self.num_partitions)
        parts = [np.concatenate([shards[int(i)] for i in hand]) for hand in hands]
        return _shuffled(parts, rng) if self.shuffle else parts

    def _size(self, samples: int) -> int:
        if self.num_shards_per_partition is not None and self.num_shards_per_partition < 1:
            raise BadInput(f"num_shards_per_partition = {self.num_shards_per_partition}: give 1 or more.")
        if self.shard_size is not None:
            if self.shard_size < 1:
                raise BadInput(f"shard_size = {self.shard_size}: give 1 or more.")
            return self.shard_size
        if self.num_shards_per_partition is None:
            raise BadInput("ShardPartitioner needs num_shards_per_partition, shard_size or both.")
        size = samples // (self.num_partitions * self.num_shards_per_partition)
        if size == 0:
            raise BadInput(
                f"num_shards_per_partition = {self.num_shards_per_partition}: {samples} samples are too few "
                f"for {self.num_partitions} nodes."
            )
        return size


@dataclass(frozen=True)
class PathologicalPartitioner:
    """Each node has a given number of labels; a label's holders share it evenly (arXiv:2102.02079)."""

    num_partitions: int
    partition_by: str = "label"
    num_classes_per_partition: int = 2
    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] = "random"
    """deterministic: consecutive labels from the node's own number; first-deterministic: only the first."""
    shuffle: bool = True
    seed: int | None = 42

    def partition(self, labels: NDArray[np.int64]) -> list[Indices]:
        """The samples of each node; a label that no node was assigned goes to none."""
        _check_parts(self.num_partitions, len(labels))
        classes = np.unique(labels)
        rng = np.random.default_rng(self.seed)
        assigned = self._assign(len(classes), rng)
        parts: list[list[Indices]] = [[] for _ in range(self.num_partitions)]
        for place, label in enumerate(classes):
            holders = [node for node, places in enumerate(assigned) if place in places]
            samples = np.flatnonzero(labels == label)
            if len(holders) > len(samples):
                raise BadInput(f"label {label} has {len(samples)} samples, too few for its {len(holders)} nodes.")
            if holders:
                pieces = np.array_split(rng.permutation(samples), len(holders))
                for node, piece in zip(holders, pieces, strict=True):
                    parts[node].append(piece)
        whole = [np.concatenate(part) for part in parts]
        return _shuffled(whole, rng) if self.shuffle else whole

    def _assign(self, classes: int, rng: np.random.Generator) -> list[set[int]]:
        count, mode = self.num_classes_per_partition, self.class_assignment_mode
        if not 1 <= count <= classes:
            raise BadInput(f"num_classes_per_partition = {count}: there are {classes} labels; give 1 to {classes}.")
        nodes = range(self.num_partitions)
        if mode == "deterministic":
            return [{(node + i) % classes for i in range(count)} for node in nodes]
        if mode == "random":
            return [{int(c) for c in rng.choice(classes, count, replace=False)} for _ in nodes]
        if mode == "first-deterministic":
            others = [[c for c in range(classes) if c != node % classes] for node in nodes]
            return [
                {node % classes, *(int(c) for c in rng.choice(others[node], count - 1, replace=False))}
                for node in nodes
            ]
        raise BadInput(f"class_assignment_mode = {mode!r}: use random, deterministic or first-deterministic.")


def _check_parts(parts: int, samples: int) -> None:
    if not 1 <= parts <= samples:
        raise BadInput(f"num_partitions = {parts}: give 1 to {samples}, the number of samples.")


def _shuffled(parts: list[Indices], rng: np.random.Generator) -> list[Indices]:
    return [rng.permutation(part) for part in parts]

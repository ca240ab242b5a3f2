"""Who holds which samples: the paper's layouts, the partitioners by name, the user's own split, and each node's
validation samples.

For the paper's layouts the counts follow from the label counts alone (`held_counts`), so that schedules can be
planned and tested without a single data file; `divide` deals out the samples themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tramfl.config import Partition
from tramfl.learning.data.partitioners import (
    DirichletPartitioner,
    IidPartitioner,
    Indices,
    Partitioner,
    PathologicalPartitioner,
    ShardPartitioner,
)
from tramfl.notation import BadInput, Counts

PAPER_LAYOUTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "3": ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9)),
    "5": tuple(tuple(sorted((2 * i + k) % 10 for k in range(4))) for i in range(5)),
    "10": tuple(tuple(sorted((i + k) % 10 for k in range(3))) for i in range(10)),
    "5-uneven": ((0, 1, 2, 3, 4, 5, 6, 7, 8), (3, 4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 4), (5, 6, 7), (9,)),
}
"""Labels of each node, as docs/design.md reads the paper's figure."""

OWN_LAYOUT = "own"
"""The data, or a file, says which node has each sample."""
OTHER_LAYOUTS = ("iid", "dirichlet", "shard", "pathological", OWN_LAYOUT)

LABEL_COUNTS: dict[str, tuple[int, ...]] = {
    "digits": (143, 146, 142, 147, 145, 146, 145, 144, 140, 144),
    "mnist": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "fashion-mnist": (6000,) * 10,
    "cifar10": (5000,) * 10,
}
"""Training samples of each label, known without the files."""


@dataclass(frozen=True, eq=False)
class NodeShare:
    """The samples of one node, as indices into the training data."""

    train: Indices
    validation: Indices
    """Kept aside to measure the node's local loss; never trained on."""


def node_count(partition: Partition) -> int:
    """N: how many nodes a partition has."""
    if partition.layout in PAPER_LAYOUTS:
        nodes = len(PAPER_LAYOUTS[partition.layout])
        if partition.nodes not in (None, nodes):
            raise BadInput(
                f"partition.nodes = {partition.nodes}: the layout {partition.layout!r} has {nodes} nodes; "
                "leave the key out."
            )
        return nodes
    _check_layout(partition.layout)
    if partition.nodes is None and partition.layout == OWN_LAYOUT and partition.node_of_sample is not None:
        return int(_read_nodes(Path(partition.node_of_sample).expanduser()).max(initial=0)) + 1
    if partition.nodes is None:
        raise BadInput(f"partition.nodes is missing: the layout {partition.layout!r} needs a number of nodes.")
    return partition.nodes


def held_counts(label_counts: Sequence[int] | Counts, partition: Partition) -> Counts:
    """l_ic: training samples per node and label in one of the paper's layouts, validation taken off."""
    if partition.layout not in PAPER_LAYOUTS:
        _check_layout(partition.layout)
        raise BadInput(f"partition.layout = {partition.layout!r}: its counts are known only once data is divided.")
    owned = _owned_counts(np.asarray(label_counts, dtype=np.int64), partition)
    kept = [[_validation_count(int(n), partition.validation_share) for n in row] for row in owned]
    return owned - np.array(kept, dtype=np.int64)


def divide(
    labels: NDArray[np.int64],
    partition: Partition,
    rng: np.random.Generator,
    node_of_sample: NDArray[np.int64] | None = None,
) -> tuple[NodeShare, ...]:
    """Deal the samples with these labels out to the nodes, each label's validation samples first.

    `node_of_sample` is what the data says of its own split.
    """
    if node_of_sample is not None and partition.layout != OWN_LAYOUT:
        raise BadInput(
            f"partition.layout = {partition.layout!r}, but the data says which node has each sample: set"
            ' partition.layout = "own", or leave node_of_sample out.'
        )
    if partition.layout == OWN_LAYOUT:
        parts = _own_split(len(labels), partition, node_of_sample)
    elif partition.layout in PAPER_LAYOUTS:
        parts = _deal(labels, _owned_counts(np.bincount(labels).astype(np.int64), partition), rng)
    else:
        parts = _partitioner(partition, seed=int(rng.integers(2**63))).partition(labels)
    return tuple(_share(part, labels, partition.validation_share) for part in parts)


def whole_share(labels: NDArray[np.int64], partition: Partition) -> NodeShare:
    """The share of a node that owns all of these samples."""
    return _share(np.arange(len(labels), dtype=np.int64), labels, partition.validation_share)


def share_counts(shares: Sequence[NodeShare], labels: NDArray[np.int64], classes: int) -> Counts:
    """l_ic of shares as dealt: training samples per node and label."""
    return np.stack([np.bincount(labels[share.train], minlength=classes) for share in shares]).astype(np.int64)


def label_rows(held: Counts, classes: Sequence[str] | None = None) -> list[tuple[str, ...]]:
    """The table of samples per node and label, ready to print: heading, nodes, total."""
    names = tuple(classes) if classes is not None else tuple(str(c) for c in range(held.shape[1]))
    rows = [("node", *names, "total")]
    rows += [
        (str(node), *(str(n) if n else "-" for n in row), str(sum(row))) for node, row in enumerate(held.tolist())
    ]
    return [*rows, ("total", *(str(n) for n in held.sum(axis=0).tolist()), str(int(held.sum())))]


def _owned_counts(label_counts: Counts, partition: Partition) -> Counts:
    """Samples per node and label before validation: a label is split evenly among its nodes."""
    layout = PAPER_LAYOUTS[partition.layout]
    owned = np.zeros((node_count(partition), len(label_counts)), dtype=np.int64)
    if len(label_counts) != 10:
        raise BadInput(
            f"partition.layout = {partition.layout!r} divides 10 labels, and the data has "
            f"{len(label_counts)}; use {', '.join(OTHER_LAYOUTS)}."
        )
    for label, count in enumerate(label_counts.tolist()):
        holders = [node for node, held in enumerate(layout) if label in held]
        share, left = divmod(count, len(holders))
        for place, node in enumerate(holders):
            owned[node, label] = share + (place < left)
    return owned


def _deal(labels: NDArray[np.int64], owned: Counts, rng: np.random.Generator) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in owned]
    for label in range(owned.shape[1]):
        samples = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.split(samples, np.cumsum(owned[:-1, label]))
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _own_split(samples: int, partition: Partition, node_of_sample: NDArray[np.int64] | None) -> list[Indices]:
    if partition.node_of_sample is not None:
        source = partition.node_of_sample
        node_of_sample = _read_nodes(Path(source).expanduser())
    elif node_of_sample is not None:
        source = "the data"
    else:
        raise BadInput(
            'partition.layout = "own" needs the number of the node that has each sample: give it in the data as'
            " node_of_sample, or name a file with partition.node_of_sample."
        )
    if len(node_of_sample) != samples:
        raise BadInput(f"{source} has a node for {len(node_of_sample)} samples, and the data has {samples}.")
    nodes = int(node_of_sample.max(initial=0)) + 1
    if partition.nodes is not None and partition.nodes < nodes:
        raise BadInput(f"partition.nodes = {partition.nodes}: {source} has a node {nodes - 1}; give {nodes} or more.")
    return [np.flatnonzero(node_of_sample == node) for node in range(partition.nodes or nodes)]


def _read_nodes(path: Path) -> NDArray[np.int64]:
    """Whole numbers from a .npy file, or from a text file with one on each line."""
    try:
        found = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
    except OSError as error:
        # NumPy's reader of text files does not pass on why the system could not open one.
        why = error.strerror or ("No such file or directory" if not path.exists() else str(error))
        raise BadInput(f"partition.node_of_sample: {path} cannot be read: {why}.") from None
    except ValueError as error:
        raise BadInput(f"partition.node_of_sample: {path} must have one whole number a line ({error}).") from None
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.min(initial=0) < 0:
        raise BadInput(f"partition.node_of_sample: {path} must have one whole number from 0 for each sample.")
    return found.astype(np.int64)


def _share(part: Indices, labels: NDArray[np.int64], validation_share: float) -> NodeShare:
    nothing = np.zeros(0, dtype=np.int64)
    train, validation = [nothing], [nothing]
    for label in np.unique(labels[part]):
        samples = part[labels[part] == label]
        kept = _validation_count(len(samples), validation_share)
        validation.append(samples[:kept])
        train.append(samples[kept:])
    return NodeShare(np.concatenate(train), np.concatenate(validation))


def _validation_count(samples: int, share: float) -> int:
    """How many of a label's samples are kept aside: rounded, at least one, never all."""
    if share == 0 or samples < 2:
        return 0
    return min(max(math.floor(samples * share + 0.5), 1), samples - 1)


def _partitioner(partition: Partition, seed: int) -> Partitioner:
    nodes = node_count(partition)
    match partition.layout:
        case "iid":
            return IidPartitioner(nodes, seed=seed)
        case "dirichlet":
            return DirichletPartitioner(
                nodes,
                alpha=partition.alpha,
                min_partition_size=partition.min_partition_size,
                self_balancing=partition.self_balancing,
                seed=seed,
            )
        case "shard":
            return ShardPartitioner(
                nodes, num_shards_per_partition=partition.shards_per_node, shard_size=partition.shard_size, seed=seed
            )
        case _:
            return PathologicalPartitioner(
                nodes,
                num_classes_per_partition=partition.classes_per_node,
                # With at least as many nodes as labels, first-deterministic leaves no label without a node.
                class_assignment_mode=partition.class_assignment,
                seed=seed,
            )


def _check_layout(layout: str) -> None:
    if layout not in PAPER_LAYOUTS and layout not in OTHER_LAYOUTS:
        known = ", ".join((*PAPER_LAYOUTS, *OTHER_LAYOUTS))
        raise BadInput(f"partition.layout = {layout!r}: use one of {known}.")

from __future__ import annotations

import numpy as np
import pytest

from tramfl.learning.data.partitioners import (
    DirichletPartitioner,
    IidPartitioner,
    Partitioner,
    PathologicalPartitioner,
    ShardPartitioner,
)
from tramfl.notation import BadInput

LABELS = np.random.default_rng(5).integers(0, 10, 2000).astype(np.int64)

EVERY = [
    IidPartitioner(num_partitions=7),
    DirichletPartitioner(num_partitions=7, partition_by="label", alpha=0.3),
    DirichletPartitioner(num_partitions=7, alpha=0.1, self_balancing=True),
    DirichletPartitioner(num_partitions=3, alpha=[0.2, 1.0, 3.0], shuffle=False),
    ShardPartitioner(num_partitions=7, partition_by="label", num_shards_per_partition=2),
    ShardPartitioner(num_partitions=7, shard_size=90, keep_incomplete_shard=True),
    ShardPartitioner(num_partitions=7, num_shards_per_partition=3, shard_size=50),
    PathologicalPartitioner(num_partitions=7, partition_by="label", num_classes_per_partition=3),
    PathologicalPartitioner(10, num_classes_per_partition=2, class_assignment_mode="first-deterministic"),
    PathologicalPartitioner(10, num_classes_per_partition=2, class_assignment_mode="deterministic"),
]


@pytest.mark.parametrize("partitioner", EVERY, ids=repr)
def test_no_sample_lies_at_two_nodes_and_the_seed_decides(partitioner: Partitioner) -> None:
    parts, again = partitioner.partition(LABELS), partitioner.partition(LABELS)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < len(LABELS)
    for part, same in zip(parts, again, strict=True):
        np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize("partitioner", EVERY, ids=repr)
def test_how_many_of_each_label_a_node_gets_does_not_depend_on_the_order_of_the_samples(
    partitioner: Partitioner,
) -> None:
    for labels in (np.sort(LABELS), LABELS[::-1].copy()):
        for part, other in zip(partitioner.partition(LABELS), partitioner.partition(labels), strict=True):
            np.testing.assert_array_equal(np.bincount(LABELS[part]), np.bincount(labels[other]))


def test_iid_parts_are_equal_and_use_everything() -> None:
    sizes = [len(part) for part in IidPartitioner(7).partition(LABELS)]
    assert sum(sizes) == len(LABELS)
    assert max(sizes) - min(sizes) <= 1


def test_a_small_alpha_is_more_uneven_than_a_large_one() -> None:
    def unevenness(alpha: float) -> float:
        parts = DirichletPartitioner(5, alpha=alpha).partition(LABELS)
        return float(np.std([np.bincount(LABELS[part], minlength=10) for part in parts]))

    assert unevenness(0.1) > 2 * unevenness(100.0)


def test_dirichlet_uses_everything_and_honours_the_smallest_part() -> None:
    parts = DirichletPartitioner(6, alpha=0.3, min_partition_size=60).partition(LABELS)
    assert sum(map(len, parts)) == len(LABELS)
    assert min(map(len, parts)) >= 60


def test_self_balancing_evens_the_sizes_out() -> None:
    loose = [len(p) for p in DirichletPartitioner(5, alpha=0.1, seed=1).partition(LABELS)]
    tight = [len(p) for p in DirichletPartitioner(5, alpha=0.1, seed=1, self_balancing=True).partition(LABELS)]
    assert np.std(tight) < np.std(loose)


def test_shards_of_one_size_leave_few_labels_to_a_node() -> None:
    parts = ShardPartitioner(10, num_shards_per_partition=2).partition(np.repeat(np.arange(10), 200))
    assert all(len(part) == 200 for part in parts)
    assert all(len(np.unique(part // 200)) <= 2 for part in parts)


def test_an_incomplete_shard_is_kept_only_if_asked_for() -> None:
    kept = ShardPartitioner(3, shard_size=300, keep_incomplete_shard=True).partition(LABELS)
    dropped = ShardPartitioner(3, shard_size=300).partition(LABELS)
    assert sum(map(len, kept)) == 2000
    assert sum(map(len, dropped)) == 1800


@pytest.mark.parametrize("mode", ["random", "deterministic", "first-deterministic"])
def test_a_pathological_node_has_exactly_its_number_of_labels(mode: str) -> None:
    parts = PathologicalPartitioner(
        12,
        num_classes_per_partition=3,
        class_assignment_mode=mode,  # type: ignore[arg-type]
    ).partition(LABELS)
    held = [set(LABELS[part]) for part in parts]
    assert all(len(labels) == 3 for labels in held)
    if mode != "random":
        assert all(node % 10 in labels for node, labels in enumerate(held))
        assert sum(map(len, parts)) == len(LABELS)


@pytest.mark.parametrize(
    ("partitioner", "complaint"),
    [
        (IidPartitioner(0), "num_partitions = 0: give 1 to 2000"),
        (IidPartitioner(3000), "num_partitions = 3000"),
        (DirichletPartitioner(5, alpha=0), "alpha = 0"),
        (DirichletPartitioner(5, alpha=[1.0, 2.0]), "or 5 of them"),
        (DirichletPartitioner(5, min_partition_size=1000), "min_partition_size = 1000"),
        (DirichletPartitioner(5, alpha=0.001, min_partition_size=390), "raise alpha or lower"),
        (ShardPartitioner(5), "needs num_shards_per_partition, shard_size or both"),
        (ShardPartitioner(5, num_shards_per_partition=0), "num_shards_per_partition = 0"),
        (ShardPartitioner(5, shard_size=0), "shard_size = 0"),
        (ShardPartitioner(5, num_shards_per_partition=1000), "too few"),
        (ShardPartitioner(5, num_shards_per_partition=9, shard_size=100), "need 45 shards"),
        (ShardPartitioner(5, shard_size=900), "2 shards, fewer than 5 nodes"),
        (PathologicalPartitioner(5, num_classes_per_partition=11), "give 1 to 10"),
        (PathologicalPartitioner(5, class_assignment_mode="odd"), "'odd': use random"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_arguments_are_named(partitioner: Partitioner, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        partitioner.partition(LABELS)


def test_a_label_too_rare_for_its_nodes_is_named() -> None:
    labels = np.array([0, 1] * 50 + [2], dtype=np.int64)
    with pytest.raises(BadInput, match="label 2 has 1 samples, too few for its 4 nodes"):
        PathologicalPartitioner(4, num_classes_per_partition=3).partition(labels)

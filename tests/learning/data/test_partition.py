from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tramfl.config import Partition
from tramfl.learning.data.partition import (
    LABEL_COUNTS,
    PAPER_LAYOUTS,
    divide,
    held_counts,
    label_rows,
    node_count,
    share_counts,
)
from tramfl.notation import BadInput

PAPER = sorted(PAPER_LAYOUTS)


def labels_of(counts: tuple[int, ...] | list[int], seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)


def test_the_layouts_are_those_of_the_design() -> None:
    assert PAPER_LAYOUTS["3"] == ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
    assert PAPER_LAYOUTS["5"][4] == (0, 1, 8, 9)
    assert PAPER_LAYOUTS["10"][9] == (0, 1, 9)
    assert [len(labels) for labels in PAPER_LAYOUTS["5-uneven"]] == [9, 7, 5, 3, 1]


@pytest.mark.parametrize("layout", PAPER)
@pytest.mark.parametrize("name", sorted(LABEL_COUNTS))
def test_every_layout_leaves_every_label_to_somebody(layout: str, name: str) -> None:
    held = held_counts(LABEL_COUNTS[name], Partition(layout=layout, validation_share=0))
    assert held.shape == (node_count(Partition(layout=layout)), 10)
    assert tuple(held.sum(axis=0)) == LABEL_COUNTS[name]


def test_more_labels_mean_more_data_in_the_uneven_layout() -> None:
    totals = held_counts(LABEL_COUNTS["mnist"], Partition(layout="5-uneven")).sum(axis=1)
    assert list(totals) == sorted(totals, reverse=True)


@given(
    layout=st.sampled_from(PAPER),
    counts=st.lists(st.integers(20, 60), min_size=10, max_size=10),
    share=st.floats(0, 0.9),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_dealt_samples_agree_with_the_counts_planned_without_them(
    layout: str, counts: list[int], share: float, seed: int
) -> None:
    labels = labels_of(counts)
    partition = Partition(layout=layout, validation_share=share)
    shares = divide(labels, partition, np.random.default_rng(seed))
    np.testing.assert_array_equal(share_counts(shares, labels, 10), held_counts(counts, partition))
    everything = np.concatenate([np.concatenate([s.train, s.validation]) for s in shares])
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(labels)))


@pytest.mark.parametrize(
    "partition",
    [
        Partition(layout="5-uneven"),
        Partition(layout="iid", nodes=4),
        Partition(layout="dirichlet", nodes=4, alpha=0.3),
        Partition(layout="shard", nodes=4, shards_per_node=3),
        Partition(layout="pathological", nodes=10, classes_per_node=3),
    ],
    ids=lambda partition: partition.layout,
)
def test_every_node_keeps_a_validation_split_of_each_of_its_labels(partition: Partition) -> None:
    labels = labels_of([200] * 10)
    shares = divide(labels, partition, np.random.default_rng(3))
    again = divide(labels, partition, np.random.default_rng(3))
    assert len(shares) == node_count(partition)
    for share, same in zip(shares, again, strict=True):
        np.testing.assert_array_equal(share.train, same.train)
        assert not set(share.train) & set(share.validation)
        trained = np.bincount(labels[share.train], minlength=10)
        kept = np.bincount(labels[share.validation], minlength=10)
        # A label of which the node has one single sample is trained on, not kept aside.
        assert ((kept > 0) == (trained + kept > 1)).all()
        whole = trained + kept
        assert (np.abs(kept - 0.1 * whole)[whole > 10] <= 0.5).all()


def test_no_share_for_validation_keeps_nothing() -> None:
    shares = divide(labels_of([20] * 10), Partition(layout="3", validation_share=0), np.random.default_rng(0))
    assert sum(len(share.validation) for share in shares) == 0
    assert sum(len(share.train) for share in shares) == 200


@pytest.mark.parametrize(
    ("partition", "complaint"),
    [
        (Partition(layout="7"), r"partition\.layout = '7': use one of 3, 5, 10, 5-uneven, iid"),
        (Partition(layout="5", nodes=4), r"partition\.nodes = 4: the layout '5' has 5 nodes"),
        (Partition(layout="iid"), r"partition\.nodes is missing"),
    ],
)
def test_a_wrong_partition_is_named_by_its_key(partition: Partition, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        divide(labels_of([20] * 10), partition, np.random.default_rng(0))


def test_the_papers_layouts_want_ten_labels() -> None:
    with pytest.raises(BadInput, match="divides 10 labels, and the data has 4"):
        held_counts([5, 5, 5, 5], Partition(layout="3"))
    with pytest.raises(BadInput, match="only once data is divided"):
        held_counts([5] * 10, Partition(layout="iid", nodes=2))


def test_the_table_has_a_row_per_node_between_heading_and_total() -> None:
    rows = label_rows(np.array([[3, 0], [1, 2]], dtype=np.int64), ("cat", "dog"))
    assert rows == [
        ("node", "cat", "dog", "total"),
        ("0", "3", "-", "3"),
        ("1", "1", "2", "3"),
        ("total", "4", "2", "6"),
    ]

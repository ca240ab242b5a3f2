from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tramfl.config import TrainingSettings
from tramfl.learning.model.networks import build_network
from tramfl.learning.model.weights import to_bytes
from tramfl.learning.training.evaluation import Evaluator, measure
from tramfl.learning.training.pools import LabelPools
from tramfl.learning.training.samples import ImageSamples, choose_device
from tramfl.learning.training.task import Task
from tramfl.learning.training.trainer import NodeTrainer
from tramfl.notation import BadInput

CPU = torch.device("cpu")
TASK = Task(TrainingSettings())
RNG = np.random.default_rng(11)


def some_samples(count: int = 90, side: int = 8, classes: int = 3) -> ImageSamples:
    labels = (np.arange(count) % classes).astype(np.int64)
    images = (RNG.random((count, 1, side, side)) + labels[:, None, None, None]).astype(np.float32)
    return ImageSamples(images, labels, mean=(1.5,), std=(0.9,), device=CPU)


def a_site(
    samples: ImageSamples, training: TrainingSettings | None = None, seed: int = 3, node: int = 1
) -> NodeTrainer:
    labels = samples.labels.numpy()
    pools = [np.flatnonzero(labels == label) for label in range(3)]
    return NodeTrainer(
        samples, LabelPools(pools, seed=seed, node=node), training or TrainingSettings(), seed=seed, node=node
    )


# ---- pools


@given(
    size=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 20), max_size=6),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=50)
def test_a_pool_continues_from_counts_alone_and_uses_each_sample_once_a_turn(
    size: int, cuts: list[int], seed: int
) -> None:
    pool = np.arange(100, 100 + size)
    whole = LabelPools([pool], seed=seed, node=0).draw(0, 0, sum(cuts))
    pieces, start = [np.zeros(0, dtype=np.int64)], 0
    for cut in cuts:
        # A new object each time, as after a restart.
        pieces.append(LabelPools([pool], seed=seed, node=0).draw(0, start, cut))
        start += cut
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    for turn in range(0, len(whole) - size + 1, size):
        assert sorted(whole[turn : turn + size]) == list(pool)


def test_nodes_labels_and_turns_are_shuffled_differently() -> None:
    pool = np.arange(50)
    pools = LabelPools([pool, pool], seed=1, node=0)
    orders = [
        pools.draw(0, 0, 50),
        pools.draw(0, 50, 50),
        pools.draw(1, 0, 50),
        LabelPools([pool], seed=1, node=1).draw(0, 0, 50),
        LabelPools([pool], seed=2, node=0).draw(0, 0, 50),
    ]
    assert len({tuple(order) for order in orders}) == 5


def test_a_label_the_node_does_not_hold_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="node 4 holds no sample of label 0"):
        LabelPools([np.zeros(0, dtype=np.int64)], seed=0, node=4).draw(0, 0, 1)


# ---- samples


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17, 90])
def test_batches_cover_the_order_once_and_a_lone_last_sample_joins_its_neighbours(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tramfl.learning.training.samples._GATHERED_BYTES", 3 * 8 * 4 * 64)
    samples = some_samples()
    order = torch.randperm(90)[:count]
    batches = list(samples.batches(order, 8))
    sizes = [len(labels) for _, labels in batches]
    assert sum(sizes) == count
    assert all(8 <= size <= 9 for size in sizes[:-1])
    assert 1 not in sizes or count == 1
    if count:
        assert torch.equal(torch.cat([labels for _, labels in batches]), samples.labels[order])


def test_images_prepared_at_once_and_batch_by_batch_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images = RNG.integers(0, 256, (10, 3, 8, 8), dtype=np.uint8)
    labels = np.zeros(10, dtype=np.int64)

    def batch() -> torch.Tensor:
        samples = ImageSamples(images, labels, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), image_size=12, device=CPU)
        assert samples.shape == (3, 12, 12)
        return next(iter(samples.batches(torch.arange(10), 10)))[0]

    at_once = batch()
    monkeypatch.setattr("tramfl.learning.training.samples._PREPARED_BYTES", 0)
    torch.testing.assert_close(batch(), at_once)
    assert at_once.shape == (10, 3, 12, 12)


@pytest.mark.parametrize("size", [12, 6, 8])
def test_images_that_are_not_square_become_so_even_where_one_side_fits(size: int) -> None:
    images = RNG.random((4, 1, 6, 12)).astype(np.float32)
    samples = ImageSamples(images, np.zeros(4, dtype=np.int64), mean=(0.5,), std=(0.5,), image_size=size, device=CPU)
    assert samples.shape == (1, size, size)
    assert next(iter(samples.batches(torch.arange(4), 4)))[0].shape == (4, 1, size, size)


def test_bytes_are_normalised_on_a_scale_from_0_to_1() -> None:
    images = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
    samples = ImageSamples(images, np.zeros(2, dtype=np.int64), mean=(0.5,), std=(0.25,), device=CPU)
    pixels = next(iter(samples.batches(torch.arange(2), 2)))[0].flatten()
    torch.testing.assert_close(pixels, torch.tensor([-2.0, 2.0]))


# ---- training


def test_training_is_sgd_with_momentum_over_the_allotment_in_one_pass() -> None:
    samples = some_samples()
    training = TrainingSettings(batch_size=8, learning_rate=0.05, momentum=0.9)
    site = a_site(samples, training)
    network = build_network("digits-mlp", classes=3, input_shape=(1, 8, 8), seed=0)
    twin = build_network("digits-mlp", classes=3, input_shape=(1, 8, 8), seed=0)
    order = torch.from_numpy(site._pools.allotment((10, 0, 11), 5, (0, 0, 0)))
    assert sorted(samples.labels[order].tolist()) == [0] * 10 + [2] * 11
    site.train(network, (10, 0, 11), round=5, drawn=(0, 0, 0))
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for images, labels in samples.batches(order, 8):
        optimiser.zero_grad()
        functional.cross_entropy(twin(images), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    for own, expected in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


class TwoBiases(nn.Module):
    """Both biases have one and the same tensor for a gradient; the last weight has none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 3, bias=False)
        self.one, self.other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(images.flatten(1)) + (self.one + self.other)
        return logits


def test_weights_that_share_a_gradient_or_have_none_move_as_they_would_with_torchs_own_sgd() -> None:
    samples = some_samples()
    training = TrainingSettings(batch_size=8, learning_rate=0.05, momentum=0.9, carry_optimizer=True)
    site = a_site(samples, training)
    torch.manual_seed(0)
    network = TwoBiases()
    twin = copy.deepcopy(network)
    momentum = site.train(network, (10, 10, 11), round=5, drawn=(0, 0, 0)).optimizer
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for images, labels in samples.batches(torch.from_numpy(site._pools.allotment((10, 10, 11), 5, (0, 0, 0))), 8):
        optimiser.zero_grad()
        functional.cross_entropy(twin(images), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    for own, expected in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, expected)
    assert momentum["optimizer/0/unused/momentum_buffer"].tolist() == [0.0, 0.0]
    assert len({v.data_ptr() for v in momentum.values()}) == 4


class Recomputing(TwoBiases):
    """Computes its activations a second time on the way back, to keep none of them."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = checkpoint(super().forward, images.requires_grad_(), use_reentrant=True)
        return logits


def test_a_network_that_recomputes_its_activations_trains_as_one_that_keeps_them() -> None:
    samples = some_samples()
    torch.manual_seed(0)
    plain, recomputing = TwoBiases(), Recomputing()
    recomputing.load_state_dict(plain.state_dict())
    for weight in recomputing.parameters():
        weight.grad = torch.ones_like(weight)  # left from a training of the user's own
    for network in (plain, recomputing):
        a_site(samples).train(network, (10, 10, 11), round=5, drawn=(0, 0, 0))
    assert to_bytes(plain.state_dict()) == to_bytes(recomputing.state_dict())


def test_the_same_seed_gives_the_same_bits_dropout_included() -> None:
    samples = some_samples()

    def trained(seed: int = 3, round: int = 1, node: int = 1) -> bytes:
        network = build_network("mnist-cnn", classes=3, input_shape=(1, 8, 8), seed=0)
        torch.rand(int(RNG.integers(1, 9)))  # What others draw from torch must not matter.
        a_site(samples, seed=seed, node=node).train(network, (9, 9, 9), round=round, drawn=(0, 0, 0))
        return to_bytes(network.state_dict())

    assert trained() == trained()
    assert len({trained(), trained(seed=4), trained(round=2), trained(node=2)}) == 4


def test_training_leaves_torchs_own_draws_alone() -> None:
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    network = build_network("mnist-cnn", classes=3, input_shape=(1, 8, 8), seed=0)
    a_site(some_samples()).train(network, (9, 9, 9), round=1, drawn=(0, 0, 0))
    assert torch.equal(torch.rand(3), expected)


CARRYING = [
    TrainingSettings(carry_momentum=True),
    TrainingSettings(carry_optimizer=True, optimizer="adam"),
    TrainingSettings(carry_optimizer=True, optimizer="adamw", weight_decay=0.1),
    TrainingSettings(carry_optimizer=True, clip_norm=0.5, weight_decay=0.01),
]


@pytest.mark.parametrize("training", CARRYING)
def test_the_optimiser_starts_fresh_unless_its_state_is_given(training: TrainingSettings) -> None:
    samples = some_samples()

    def trained(carried: dict[str, torch.Tensor] | None) -> tuple[bytes, dict[str, torch.Tensor]]:
        network = build_network("digits-mlp", classes=3, input_shape=(1, 8, 8), seed=0)
        after = a_site(samples, training).train(network, (9, 9, 9), round=1, drawn=(0, 0, 0), carried=carried)
        return to_bytes(network.state_dict()), after.optimizer

    fresh, state = trained(None)
    untouched = {name: tensor.clone() for name, tensor in state.items()}
    carried, _ = trained(state)
    zero, _ = trained({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    assert carried != fresh
    assert zero == fresh
    assert all(torch.equal(state[name], untouched[name]) for name in state)


@pytest.mark.parametrize("training", CARRYING)
def test_training_in_two_rounds_with_carried_state_is_one_run_of_torchs_optimiser(training: TrainingSettings) -> None:
    samples = some_samples()
    network, twin = (build_network("digits-mlp", classes=3, input_shape=(1, 8, 8), seed=0) for _ in range(2))
    site = a_site(samples, training)
    first = site.train(network, (9, 9, 9), round=1, drawn=(0, 0, 0))
    site.train(network, (9, 9, 9), round=2, drawn=(9, 9, 9), carried=first.optimizer)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    settings: dict[str, float] = {"momentum": 0.9} if training.optimizer == "sgd" else {}
    settings["weight_decay"] = training.weight_decay
    optimiser = kinds[training.optimizer](twin.parameters(), lr=0.001, **settings)
    for round, drawn in ((1, (0, 0, 0)), (2, (9, 9, 9))):
        for images, labels in samples.batches(torch.from_numpy(site._pools.allotment((9, 9, 9), round, drawn)), 32):
            optimiser.zero_grad()
            functional.cross_entropy(twin(images), labels).backward()  # type: ignore[no-untyped-call]
            if training.clip_norm:
                torch.nn.utils.clip_grad_norm_(twin.parameters(), training.clip_norm)
            optimiser.step()
    for own, expected in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def test_an_empty_allotment_changes_nothing() -> None:
    network = build_network("digits-mlp", classes=3, input_shape=(1, 8, 8), seed=0)
    before = to_bytes(network.state_dict())
    training = TrainingSettings(carry_optimizer=True)
    state = a_site(some_samples(), training).train(network, (0, 0, 0), round=1, drawn=(0, 0, 0)).optimizer
    assert to_bytes(network.state_dict()) == before
    assert len(state) == 4
    assert not any(v.any() for v in state.values())


@pytest.mark.parametrize("count", [1, 33])
def test_batch_norm_survives_a_single_sample(count: int) -> None:
    samples = some_samples(side=32)
    network = build_network("resnet18", classes=3, input_shape=(1, 32, 32), seed=0)
    a_site(samples).train(network, (count, 0, 0), round=1, drawn=(0, 0, 0))
    assert all(torch.isfinite(tensor).all() for tensor in network.state_dict().values())


def test_a_frozen_layer_stays_frozen() -> None:
    first, last = nn.Linear(64, 5), nn.Linear(5, 3)
    first.weight.requires_grad_(False)
    frozen, moved = first.weight.clone(), last.weight.clone()
    a_site(some_samples()).train(nn.Sequential(nn.Flatten(), first, last), (9, 9, 9), round=1, drawn=(0, 0, 0))
    assert torch.equal(first.weight, frozen)
    assert not torch.equal(last.weight, moved)


# ---- evaluation


class Oracle(nn.Module):
    """Knows the label from the first pixel, and gets the first `wrong` of every hundred wrong."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.wrong = wrong
        self.seen = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        number = images[:, 0, 0, 0].round().long()
        label = number % 10
        return functional.one_hot(torch.where(number % 100 < self.wrong, (label + 1) % 10, label), 10).float()


def numbered(count: int = 10_000) -> ImageSamples:
    images = np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1)
    labels = (np.arange(count) % 10).astype(np.int64)
    return ImageSamples(images, labels, mean=(0.0,), std=(1.0,), device=CPU)


def test_a_subset_is_enough_while_the_target_is_far() -> None:
    oracle = Oracle(wrong=30)
    score = Evaluator(numbered(), subset=1000, task=TASK).test(oracle, (0.9,))
    assert score.samples == oracle.seen == 1000
    assert score.accuracy == pytest.approx(0.7, abs=0.05)


@pytest.mark.parametrize("wrong", [0, 5, 10])
def test_the_full_test_set_confirms_a_target(wrong: int) -> None:
    score = Evaluator(numbered(), subset=1000, task=TASK).test(Oracle(wrong), (0.9, 0.99))
    assert score.samples == 10_000
    assert score.accuracy == 1 - wrong / 100


def test_a_plateau_just_below_a_target_does_not_cost_the_full_test_set() -> None:
    score = Evaluator(numbered(), subset=1000, task=TASK).test(Oracle(wrong=13), (0.9,))
    assert 1000 <= score.samples <= 4000


def test_without_a_target_the_subset_is_all_there_is_and_a_small_test_set_is_used_up() -> None:
    assert Evaluator(numbered(), subset=1000, task=TASK).test(Oracle(0)).samples == 1000
    assert Evaluator(numbered(300), subset=1000, task=TASK).test(Oracle(0)).samples == 300


def test_measuring_is_in_evaluation_mode_and_leaves_the_weights_alone() -> None:
    network = build_network("resnet18", classes=10, input_shape=(1, 32, 32), seed=0).train()
    before = to_bytes(network.state_dict())
    samples = some_samples(side=32)
    first = measure(network, samples, torch.arange(40), TASK)
    assert first == measure(network, samples, torch.arange(40), TASK)
    assert to_bytes(network.state_dict()) == before
    with torch.no_grad():
        logits = network.eval()(samples._gather(torch.arange(40)))
    expected = functional.cross_entropy(logits, samples.labels[:40], reduction="sum")
    assert math.isclose(first[1] or 0.0, float(expected), rel_tol=1e-4)


def test_a_device_that_is_not_there_is_named() -> None:
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(BadInput, match=r"training\.device = 'abacus' cannot be used here"):
        choose_device("abacus")

"""All nodes of a simulated run in one process: one network, its weights by name, one trainer per node.

Weights stay in memory under a name that says how they came about: the hash of the parent's name, round,
node and samples. Training is a function of just these, so the name is as good as a hash of the bytes, and
hashing those would cost 4 % of a digits round. SHA-256 of the bytes themselves is for weights that leave
(`weights.digest`). Imports notation, config, torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tramfl.config import Scenario
from tramfl.draws import generator, whole_seed
from tramfl.learning.chance import Purpose
from tramfl.learning.data.datasets import Dataset, data_folder, load_dataset
from tramfl.learning.data.download import Report
from tramfl.learning.data.partition import NodeShare, divide
from tramfl.learning.model.cost import flops_per_sample, model_bits
from tramfl.learning.model.networks import (
    build_network,
    check_output,
    load_pretrained,
    network_for,
    own_network,
    seeded,
)
from tramfl.learning.model.weights import check_fit, from_bytes, to_bytes
from tramfl.learning.training.trainer import Evaluator, LabelPools, Samples, SiteTrainer, choose_device, measure
from tramfl.notation import BadInput, Counts, Digest, ModelCost, NodeId

MOMENTUM_PREFIX = "momentum/"
"""Before the names of carried momentum among serialised weights."""


@dataclass(frozen=True)
class TestScores:
    """How good a model is."""

    test_accuracy: float
    test_loss: float
    validation_loss: float | None
    """On the samples the node keeps aside; None where it keeps none."""
    test_samples: int
    """How many test samples were looked at."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """A model between rounds."""

    state: list[Tensor]
    """In the order of the network's state dict."""
    momentum: list[Tensor] | None
    drawn: Counts
    """Samples per node and label used on the way to this model."""


class Learner:
    """Trains, keeps and scores models for every node of a simulated run."""

    def __init__(
        self,
        scenario: Scenario,
        dataset: Dataset,
        network: nn.Module,
        shares: Sequence[NodeShare] | None = None,
    ) -> None:
        self._scenario = scenario
        self.classes = dataset.classes
        training = scenario.training
        device = choose_device(training.device)
        self._train_samples = _on_device(dataset, dataset.train_images, dataset.train_labels, scenario, device)
        order = generator(0, Purpose.TEST_SUBSET).permutation(len(dataset.test_labels))
        kept = np.sort(order[: scenario.evaluation.test_samples])
        test = _on_device(dataset, dataset.test_images[kept], dataset.test_labels[kept], scenario, device)
        self._evaluator = Evaluator(test, subset=scenario.evaluation.subset)
        if shares is None:
            shares = divide(dataset.train_labels, scenario.partition, generator(scenario.seed, Purpose.DIVIDE))
        self._sites = [self._site(share, dataset.train_labels, node) for node, share in enumerate(shares)]
        self._validation = [self._validation_order(share) for share in shares]
        self.held: Counts = np.array([site.held for site in self._sites], dtype=np.int64)
        """l_ic: training samples per node and label."""
        self.cost = ModelCost(
            # Counting takes a second, most of it to load what torch counts with: not where it is told.
            scenario.cost.flops_per_sample or flops_per_sample(network, self._train_samples.shape),
            scenario.cost.model_bits or model_bits(network, carry_momentum=training.carry_momentum),
        )
        """M and D_M, as computed from the network unless the scenario says otherwise."""
        self._network = network.to(device)
        self._names = list(self._network.state_dict())
        self._tensors = list(self._network.state_dict().values())
        self._trained_names = [name for name, weight in network.named_parameters() if weight.requires_grad]
        self._kept: dict[Digest, _Kept] = {}
        self._loaded: Digest | None = None
        self._initial = _name("initial", scenario.seed)
        self._keep(self._initial, np.zeros_like(self.held), None)

    def initial(self) -> Digest:
        """The model before the first round; it needs no discarding and cannot be lost."""
        return self._initial

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round: int) -> Digest:
        """Step 4: `node` trains the parent's weights on so many samples of each label."""
        child = _name(parent, round, node, *samples)
        if child in self._kept:
            return child
        before = self._load(parent)
        self._loaded = None
        momentum = self._sites[node].train(
            self._network, samples, round=round, drawn=before.drawn[node], momentum=before.momentum
        )
        drawn = before.drawn.copy()
        drawn[node] += samples
        self._keep(child, drawn, momentum if self._scenario.training.carry_momentum else None)
        return child

    def discard(self, digest: Digest) -> None:
        """Forget a model; an unknown one, or the initial one, is left as it is."""
        if digest != self._initial:
            self._kept.pop(digest, None)

    def drawn(self, digest: Digest) -> Counts:
        """Samples per node and label used on the way to a model: with `weights`, all that `restore` needs."""
        return self._find(digest).drawn.copy()

    def weights(self, digest: Digest, *, with_momentum: bool = True, about: Mapping[str, str] | None = None) -> bytes:
        """A model as safetensors, with the momentum that travels along if the run carries it."""
        kept = self._find(digest)
        state = dict(zip(self._names, kept.state, strict=True))
        if kept.momentum is not None and with_momentum:
            names = [MOMENTUM_PREFIX + name for name in self._trained_names]
            state.update(zip(names, kept.momentum, strict=True))
        return to_bytes(state, about)

    def restore(
        self, content: bytes, drawn: Sequence[Sequence[int]] | Counts, *, name: Digest | None = None
    ) -> Digest:
        """Take up a model that `weights` gave; `name` is what it was called, if training is to go on the same."""
        state = from_bytes(content, "the saved model")
        prefix = MOMENTUM_PREFIX
        momentum = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
        check_fit(self._network, state, "the saved model")
        used = np.asarray(drawn, dtype=np.int64)
        if used.shape != self.held.shape:
            raise BadInput(f"the saved model: drawn counts are {used.shape}, and the run has {self.held.shape}.")
        carried = None
        if self._scenario.training.carry_momentum and momentum:
            carried = [momentum[key].to(self._tensors[0].device) for key in self._trained_names]
        digest = name or hashlib.sha256(content).hexdigest()
        device = self._tensors[0].device
        self._kept[digest] = _Kept([state[key].to(device) for key in self._names], carried, used)
        return digest

    def scores(self, digest: Digest, node: NodeId, targets: Sequence[float] = ()) -> TestScores:
        """Test accuracy and loss, and the loss on what `node` keeps aside; `targets` are those still to reach."""
        self._load(digest)
        test = self._evaluator.test(self._network, targets)
        chosen = self._validation[node]
        loss = measure(self._network, self._train_samples, chosen)[1] / len(chosen) if len(chosen) else None
        return TestScores(test.accuracy, test.loss, loss, test.samples)

    def _site(self, share: NodeShare, labels: NDArray[np.int64], node: NodeId) -> SiteTrainer:
        seed = self._scenario.seed
        pools = [share.train[labels[share.train] == label] for label in range(len(self.classes))]
        ordered = LabelPools(pools, seed=seed, node=node)
        return SiteTrainer(self._train_samples, ordered, self._scenario.training, seed=seed, node=node)

    def _validation_order(self, share: NodeShare) -> Tensor:
        order = generator(0, Purpose.TEST_ORDER).permutation(share.validation)
        return torch.from_numpy(order[: self._scenario.evaluation.subset]).to(self._train_samples.device)

    def _find(self, digest: Digest) -> _Kept:
        try:
            return self._kept[digest]
        except KeyError:
            raise KeyError(f"model {digest} was discarded or never trained") from None

    def _load(self, digest: Digest) -> _Kept:
        """Put a kept model into the network, unless it is the one there already."""
        kept = self._find(digest)
        if self._loaded != digest:
            with torch.no_grad():
                for tensor, value in zip(self._tensors, kept.state, strict=True):
                    tensor.copy_(value)
            self._loaded = digest
        return kept

    def _keep(self, digest: Digest, drawn: Counts, momentum: list[Tensor] | None) -> None:
        self._kept[digest] = _Kept([tensor.clone() for tensor in self._tensors], momentum, drawn)
        self._loaded = digest


def build_learner(
    scenario: Scenario,
    data_dir: Path | None = None,
    *,
    dataset: Dataset | None = None,
    network: nn.Module | Callable[..., nn.Module] | None = None,
    shares: Sequence[NodeShare] | None = None,
    download: bool = True,
    report: Report | None = None,
) -> Learner:
    """The learner of a scenario; `dataset`, `network` and `shares` take the place of what the scenario says."""
    data = dataset or load_dataset(scenario.dataset, data_folder(data_dir), download=download, report=report)
    training = scenario.training
    channels, height, width = data.input_shape
    side = training.image_size
    shape = (channels, side or height, side or width)
    seed = whole_seed(scenario.seed, Purpose.INITIAL)
    weights = Path(training.weights).expanduser() if training.weights else None
    if network is not None:
        with seeded(seed):
            module = own_network(network, len(data.classes), shape, training.network)
        if weights is not None:
            load_pretrained(module, weights)
        check_output(module, training.network, len(data.classes), shape)
    else:
        name = network_for(data.name, shape) if training.network == "auto" else training.network
        module = build_network(name, classes=len(data.classes), input_shape=shape, weights=weights, seed=seed)
    return Learner(scenario, data, module, shares)


def use_threads(threads: int) -> None:
    """Train on so many cores; results are bit-equal only between runs with the same number."""
    torch.set_num_threads(threads)


@contextmanager
def threads_as_they_were() -> Iterator[None]:
    """Whatever a run sets inside, the process goes on with the threads it had."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_device(
    dataset: Dataset,
    images: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    scenario: Scenario,
    device: torch.device,
) -> Samples:
    return Samples(
        images, labels, mean=dataset.mean, std=dataset.std, image_size=scenario.training.image_size, device=device
    )


def _name(*how: object) -> Digest:
    return hashlib.sha256("/".join(map(str, how)).encode()).hexdigest()

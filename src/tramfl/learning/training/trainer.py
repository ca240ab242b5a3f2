"""Step 4 of a round: one node trains the model on its allotment; and how good the model is then.

The data of a process lies on the device as one tensor; a batch is one gather. Every draw is a function of
the seed and the place in the run (`chance`), so the same seed gives the same weights, bit for bit, on the
same machine with the same number of threads. Imports notation, config, torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from tramfl.config import TrainingSettings
from tramfl.draws import generator, whole_seed
from tramfl.learning.chance import Purpose
from tramfl.learning.data.datasets import Pixels
from tramfl.learning.data.partitioners import Indices
from tramfl.learning.model.networks import seeded
from tramfl.notation import BadInput, Counts, NodeId

_PREPARED_BYTES = 1 << 28
"""Images up to this size are scaled and normalised once; larger sets batch by batch, at about 1 % of a step."""
_GATHERED_BYTES = 1 << 24
"""Batches are gathered together up to this size: fewer, larger reads."""
_TEST_BATCH = 250


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; auto is CUDA, else Apple's MPS, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(f"training.device = {name!r} cannot be used here ({first}).") from None
    return device


class Samples:
    """Images and labels on the device, ready to be gathered as normalised batches."""

    def __init__(
        self,
        images: Pixels,
        labels: NDArray[np.int64],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int | None = None,
        device: torch.device,
    ) -> None:
        self.device = device
        self.labels = torch.from_numpy(labels).to(device)
        self._side = image_size if images.shape[2:] != (image_size, image_size) else None
        side_y, side_x = (image_size, image_size) if image_size else images.shape[2:]
        self.shape: tuple[int, int, int] = (images.shape[1], side_y, side_x)
        unit = 255.0 if images.dtype == np.uint8 else 1.0
        # (pixel / unit - mean) / std as one multiplication and one addition.
        self._scale = torch.tensor([1 / (unit * s) for s in std], device=device).reshape(-1, 1, 1)
        self._shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).reshape(-1, 1, 1)
        self._image_bytes = 4 * math.prod(self.shape)
        raw = torch.from_numpy(np.require(images, requirements=["C", "W"])).to(device)
        self._prepared = len(images) * self._image_bytes <= _PREPARED_BYTES
        self._pixels = self._prepare(raw) if self._prepared else raw

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of the samples in `order`; a last batch of one joins the one before it."""
        sizes = _batch_sizes(len(order), batch_size)
        together = max(1, _GATHERED_BYTES // (self._image_bytes * batch_size))
        start = 0
        for first in range(0, len(sizes), together):
            group = sizes[first : first + together]
            chosen = order[start : start + sum(group)]
            start += len(chosen)
            images, labels = self._gather(chosen), self.labels.index_select(0, chosen)
            yield from zip(images.split_with_sizes(group), labels.split_with_sizes(group), strict=True)

    def _gather(self, chosen: Tensor) -> Tensor:
        pixels = self._pixels.index_select(0, chosen)  # five times as fast as [chosen]
        return pixels if self._prepared else self._prepare(pixels)

    def _prepare(self, pixels: Tensor) -> Tensor:
        images = pixels.to(torch.float32)
        if self._side is not None:
            shrinks = self._side < max(images.shape[2:])
            images = functional.interpolate(
                images, size=(self._side, self._side), mode="bilinear", align_corners=False, antialias=shrinks
            )
        return images.mul(self._scale).add_(self._shift)


def _batch_sizes(count: int, batch_size: int) -> list[int]:
    whole, left = divmod(count, batch_size)
    sizes = [batch_size] * whole
    if left == 1 and whole:
        # Batch norm learns nothing from one sample, and refuses it where feature maps are a single pixel.
        sizes[-1] += 1
    elif left:
        sizes.append(left)
    return sizes


class LabelPools:
    """The order in which one node uses up its samples of each label.

    A label's samples are drawn without replacement until none is left, then reshuffled. The i-th draw is a
    function of (seed, node, label, i): whoever knows how many were drawn knows which come next.
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


class SiteTrainer:
    """One node's data and how it trains on it."""

    def __init__(
        self, samples: Samples, pools: LabelPools, training: TrainingSettings, *, seed: int, node: NodeId
    ) -> None:
        self._samples = samples
        self._pools = pools
        self._training = training
        self._seed = seed
        self._node = node

    @property
    def held(self) -> tuple[int, ...]:
        """l_ic: samples of each label to train on."""
        return self._pools.held

    def train(
        self,
        network: nn.Module,
        samples: Sequence[int],
        *,
        round: int,
        drawn: Sequence[int] | Counts,
        momentum: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Train `network` in place on so many samples of each label, in one pass; the momentum it ends with.

        `drawn` is how many of each label this node has used before; `momentum`, one tensor per trained
        parameter, is what a carried optimiser starts with.
        """
        order = self._allotment(samples, round, drawn)
        descent = _Descent(network, self._training, momentum)
        network.train()
        with drawing_from(whole_seed(self._seed, Purpose.DROPOUT, round, self._node), self._samples.device):
            if len(order) == 1:
                _hold_batch_norm(network)
            for images, labels in self._samples.batches(order, self._training.batch_size):
                descent.step(functional.cross_entropy(network(images), labels))
        return descent.momentum()

    def _allotment(self, samples: Sequence[int], round: int, drawn: Sequence[int] | Counts) -> Tensor:
        """Which samples, in the order of training."""
        draws = [self._pools.draw(c, int(drawn[c]), n) for c, n in enumerate(samples) if n]
        order = generator(self._seed, Purpose.ORDER, round, self._node).permutation(_joined(draws))
        return torch.from_numpy(order).to(self._samples.device)


class _Descent:
    """SGD with momentum as torch.optim.SGD has it, v = mu v + g and w = w - lr v, in two passes over memory.

    torch.optim spends 0.2 ms a step around them: a third of a digits step.
    """

    def __init__(self, network: nn.Module, training: TrainingSettings, momentum: Sequence[Tensor] | None) -> None:
        self._weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._values = [weight.detach() for weight in self._weights]
        self._rate = training.learning_rate
        self._decay = training.momentum
        self._velocity: list[Tensor | None] = [None] * len(self._weights)
        if momentum is not None:
            self._velocity = [v.clone() for v in momentum]

    def step(self, loss: Tensor) -> None:
        """Follow the gradients of the loss."""
        gradients = torch.autograd.grad(loss, self._weights, allow_unused=True)
        for place, (value, gradient) in enumerate(zip(self._values, gradients, strict=True)):
            if gradient is None:
                continue
            velocity = self._velocity[place]
            if velocity is None:
                # Two weights may have one and the same tensor for a gradient: each needs a velocity of its own.
                self._velocity[place] = velocity = gradient.clone()
            else:
                torch.add(gradient, velocity, alpha=self._decay, out=velocity)
            value.add_(velocity, alpha=-self._rate)

    def momentum(self) -> list[Tensor]:
        """v for each trained weight, zero where none was ever moved."""
        pairs = zip(self._weights, self._velocity, strict=True)
        return [torch.zeros_like(weight) if v is None else v for weight, v in pairs]


@dataclass(frozen=True)
class TestScore:
    """How good a model is on the test samples that were looked at."""

    accuracy: float
    loss: float
    samples: int


class Evaluator:
    """Tests a model on no more samples than it takes to tell whether it reached a target."""

    def __init__(self, test: Samples, *, subset: int) -> None:
        self._test = test
        # The same order in every run: what differs between two runs is the model, not the sample of the test set.
        order = generator(0, Purpose.TEST_ORDER).permutation(len(test))
        self._order = torch.from_numpy(order).to(test.device)
        self._subset = min(subset, len(test))

    def test(self, network: nn.Module, targets: Sequence[float] = ()) -> TestScore:
        """Accuracy and loss on the subset, and on ever more of the test set while a target may be reached.

        A target counts as out of reach when it lies two standard errors above the accuracy so far; so an
        accuracy at or above a target is always that of the full test set.
        """
        right, loss, seen = 0, 0.0, 0
        lowest = min(targets, default=math.inf)
        while seen < len(self._test):
            part = self._order[seen : seen + self._subset]
            more_right, more_loss = measure(network, self._test, part)
            right, loss, seen = right + more_right, loss + more_loss, seen + len(part)
            if right / seen + 2 * self._standard_error(lowest, seen) < lowest:
                break
        return TestScore(right / seen, loss / seen, seen)

    def _standard_error(self, accuracy: float, seen: int) -> float:
        """Of the share of right answers among `seen` of the test samples, were `accuracy` the share among all."""
        if accuracy > 1:
            return 0.0
        unseen = 1 - seen / len(self._test)
        return math.sqrt(max(accuracy * (1 - accuracy), 0.01) / seen * unseen)


def measure(network: nn.Module, samples: Samples, chosen: Tensor) -> tuple[int, float]:
    """How many of the chosen samples the network gets right, and the sum of their losses."""
    right = torch.zeros((), dtype=torch.int64, device=samples.device)
    loss = torch.zeros((), device=samples.device)
    network.eval()
    with torch.inference_mode():
        for images, labels in samples.batches(chosen, _TEST_BATCH):
            logits = network(images)
            right += (logits.argmax(1) == labels).sum()
            loss += functional.cross_entropy(logits, labels, reduction="sum")
    return int(right), float(loss)


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """What torch draws on the CPU and on `device` follows from `seed` inside, and goes on as before outside."""
    with seeded(seed):
        if device.type == "cuda":
            before = torch.cuda.get_rng_state(device)
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
            try:
                with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
                    yield
            finally:
                torch.cuda.set_rng_state(before, device)
        elif device.type == "mps":
            state = torch.mps.get_rng_state()
            torch.mps.manual_seed(seed)
            try:
                yield
            finally:
                torch.mps.set_rng_state(state)
        else:
            yield


def _hold_batch_norm(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()

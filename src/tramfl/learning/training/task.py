"""What is learnt: how a network is called, what its loss is, and what happens to a batch before it is trained on.

The paper's task, cross-entropy on the logits of images, is the default; an App replaces any part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tramfl.config import TrainingSettings
from tramfl.learning.app import App
from tramfl.learning.model.networks import outputs_of
from tramfl.learning.training.samples import Batch
from tramfl.notation import BadInput, NodeId


@dataclass
class Context:
    """What a training step of the user's own may need to know, and what it may use."""

    round: int
    """k = 1, 2, ..."""
    node: NodeId
    device: torch.device
    optimizers: tuple[torch.optim.Optimizer, ...]
    """What the app's `optimizer` made, or the scenario's one."""
    used: int = 0
    """Samples that the run has used before this batch, over all nodes."""
    learning_rate: float = 0.0
    """What the scenario's schedule gives for this batch."""
    loss: Callable[[Any, Any], Tensor] = functional.cross_entropy
    state: dict[str, Any] = field(default_factory=dict)
    """Anything that is to last from batch to batch within this round."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimiser."""
        return self.optimizers[0]


class Task:
    """A network's calls, loss and augmentation."""

    def __init__(self, training: TrainingSettings, app: App | None = None) -> None:
        app = app or App()
        self._training = training
        self.step: Callable[[nn.Module, Batch, Context], Any] | None = app.step
        self.own_optimizer: Callable[..., Any] | None = app.optimizer
        self.own_loss: Callable[[Any, Any], Tensor] | None = app.loss
        self.augment: Callable[[Any], Any] | None = app.augment or _augmentation(training)
        self.balances_classes = True
        """Whether the strata, whose samples a round counts, are the classes."""
        self.has_code = app.has_code
        """Whether code of the user's may draw from NumPy's and Python's generators."""
        for name in ("loss", "optimizer", "augment", "step", "balance"):
            if getattr(app, name) is not None and not callable(getattr(app, name)):
                raise BadInput(f"app: {name} is a {type(getattr(app, name)).__name__}, not a function.")
        if app.loss is not None and training.label_smoothing:
            raise BadInput("training.label_smoothing is for cross-entropy, and the app has a loss of its own.")

    @property
    def classifies(self) -> bool:
        """Whether outputs are logits of classes: the loss is cross-entropy."""
        return self.own_loss is None and self.step is None

    def calibration(self, samples: Sequence[int]) -> Tensor | None:
        """What is added to the logits in a round that trains `samples[c]` samples of each label c; None for nothing.

        A node's samples say how frequent labels are there, and cross-entropy alone learns that, too: it lowers the
        logits of labels that the node lacks. With the logarithm of the frequencies added, there is nothing left of it
        to learn (logit adjustment, Menon et al., ICLR 2021). The share eps of all classes alike keeps the logits of
        missing labels in the loss: without it the network never learns to distinguish them from the others.
        """
        eps = self._training.calibration
        if eps is None or not self.classifies or not self.balances_classes:
            return None
        counts = torch.tensor(samples, dtype=torch.float64)
        return torch.log((1 - eps) * counts / counts.sum() + eps / len(counts)).float()

    def loss_of(self, network: nn.Module, batch: Batch, calibration: Tensor | None = None) -> Tensor:
        """The training loss of a batch."""
        inputs, targets = batch
        outputs = outputs_of(network, inputs)
        if self.own_loss is not None:
            return _scalar(self.own_loss(outputs, targets))
        if calibration is not None:
            outputs = outputs + calibration
        return functional.cross_entropy(outputs, targets, label_smoothing=self._training.label_smoothing)

    def test_loss(self, outputs: Any, targets: Any) -> Tensor | None:
        """The summed loss of a tested batch; None where only the app's own step knows what a loss is."""
        if self.own_loss is not None:
            return _scalar(self.own_loss(outputs, targets)) * len(targets)
        if self.step is not None:
            return None
        if targets.ndim > 1 and not targets.is_floating_point():
            # One class a pixel: the mean over the pixels of a sample, as in training.
            return functional.cross_entropy(outputs, targets) * len(targets)
        return functional.cross_entropy(outputs, targets, reduction="sum")

    def mixed_precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Around the forward pass of training."""
        if self._training.precision == "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()


def check_network(network: nn.Module, name: str, task: Task, batch: Batch, outputs: int | None) -> None:
    """Refuse a network that learns nothing, does not take the data, or gives what the loss cannot use.

    `outputs` is None where nobody knows how many classes there are.
    """
    if not any(weight.requires_grad for weight in network.parameters()):
        raise BadInput(f"training.network = {name!r} has no weights to train.")
    if task.step is not None:
        return
    inputs, targets = batch
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            given = outputs_of(network, inputs)
    except Exception as error:  # whatever a model of the user's raises
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"training.network = {name!r} does not take inputs of {_shapes(inputs)} ({first}).") from error
    finally:
        network.train(was_training)
    count = len(targets)
    if task.classifies:
        if not isinstance(given, Tensor):
            raise BadInput(
                f"training.network = {name!r} gives a {type(given).__name__} without `logits`; give logits as a"
                " tensor, or an app with a loss that takes it."
            )
        _check_logits(tuple(given.shape), targets, name, count, outputs)
        return
    try:
        with torch.no_grad():
            task.test_loss(given, targets)
    except BadInput:
        raise
    except Exception as error:  # whatever a loss of the user's raises
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"app: the loss does not take outputs of {_shapes(given)} and targets of {_shapes(targets)} ({first})."
        ) from error


def _check_logits(given: tuple[int, ...], targets: Tensor, name: str, count: int, outputs: int | None) -> None:
    if targets.is_floating_point() and targets.ndim == 1:
        raise BadInput(
            "the targets are not classes, so cross-entropy cannot be the loss: give an app with loss=, for example"
            " torch.nn.functional.mse_loss."
        )
    if outputs is None and len(given) > 1:
        outputs = given[1]
    classes = targets.shape[1] if targets.is_floating_point() else outputs
    spread = targets.shape[2:] if targets.is_floating_point() else targets.shape[1:]
    if given != (count, classes, *spread) and not (targets.ndim > 1 and given[2:] == tuple(spread)):
        raise BadInput(
            f"training.network = {name!r} gives {given} for {count} samples of {classes} classes, not"
            f" {(count, classes, *spread)}."
        )


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _shapes(value) for key, value in inputs.items()}
    return tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise BadInput(f"app: the loss gave {shape}, not a scalar tensor; take the mean over the batch.")
    return loss.reshape(())


# ---- augmentation by name


def _augmentation(training: TrainingSettings) -> Callable[[Tensor], Tensor] | None:
    chosen = [_BY_NAME[name] for name in ("crop", "flip") if name in training.augmentation]
    if not chosen:
        return None

    def augment(images: Tensor) -> Tensor:
        if not isinstance(images, Tensor) or images.ndim != 4:
            raise BadInput("training.augmentation is for images: inputs of channels x height x width.")
        for change in chosen:
            images = change(images)
        return images

    return augment


def _flip(images: Tensor) -> Tensor:
    """Mirror each image left to right with a chance of one half."""
    chosen = torch.rand(len(images), device=images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def _crop(images: Tensor) -> Tensor:
    """Shift each image by up to an eighth of its sides; what enters repeats the border."""
    count, channels, height, width = images.shape
    down, across = max(1, height // 8), max(1, width // 8)
    padded = functional.pad(images, (across, across, down, down), mode="replicate")
    top = torch.randint(0, 2 * down + 1, (count,), device=images.device)
    left = torch.randint(0, 2 * across + 1, (count,), device=images.device)
    rows = (top[:, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=images.device))[:, None, None, :]
    sample = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[sample, channel, rows, columns]


_BY_NAME = {"flip": _flip, "crop": _crop}

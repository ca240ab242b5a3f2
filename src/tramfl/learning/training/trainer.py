"""Step 4 of a round: one node trains the model on its allotment.

Every draw is a function of the seed and the place in the run (`chance`), so the same seed gives the same weights, bit
for bit, on the same machine with the same number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tramfl.config import TrainingSettings
from tramfl.draws import whole_seed
from tramfl.learning.chance import Purpose
from tramfl.learning.seeding import drawing_from
from tramfl.learning.training.descent import Carried, Descent, descent_of, rate_factor
from tramfl.learning.training.pools import LabelPools
from tramfl.learning.training.samples import Batch, Samples, StreamSamples
from tramfl.learning.training.task import Context, Task
from tramfl.notation import BadInput, Counts, NodeId


@dataclass(frozen=True)
class TrainingResult:
    """What a round of training gives, beside the weights that it changed."""

    optimizer: Carried
    """The optimiser's state, if it is to travel."""
    loss: float
    """Mean over the batches; NaN or infinite where training has diverged."""

    @property
    def diverged(self) -> bool:
        """Whether the loss is no longer a finite number."""
        return not math.isfinite(self.loss)


class NodeTrainer:
    """One node's data and how it trains on it."""

    def __init__(
        self,
        samples: Samples,
        pools: LabelPools,
        training: TrainingSettings,
        *,
        seed: int,
        node: NodeId,
        task: Task | None = None,
    ) -> None:
        self._samples = samples
        self._pools = pools
        self._training = training
        self._seed = seed
        self._node = node
        self._task = task or Task(training)

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
        used: int = 0,
        carried: Mapping[str, Tensor] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> TrainingResult:
        """Train `network` in place on `samples[c]` samples of each label c, in one pass.

        `drawn` is how many of each label this node has used before, `used` how many samples all nodes together;
        `carried` is the optimiser's state that came with the model; `after_step` is called after every batch.
        """
        training, task = self._training, self._task
        order = torch.from_numpy(self._pools.allotment(samples, round, drawn)).to(self._samples.device)
        descent = descent_of(network, training, task, carried)
        if not all(module.training for module in network.modules()):  # a quarter of the time that train() takes
            network.train()
        seed = whole_seed(self._seed, Purpose.DROPOUT, round, self._node)
        total, batches = torch.zeros((), device=self._samples.device), 0
        with drawing_from(seed, self._samples.device, everywhere=task.has_code):
            hold_statistics(network, everywhere=len(order) == 1 or training.batch_norm == "frozen-statistics")
            calibration = task.calibration(samples)
            if calibration is not None:
                calibration = calibration.to(self._samples.device)
            context = Context(round, self._node, self._samples.device, descent.optimizers)
            scheduled = training.schedule != "constant" or task.step is not None
            for batch in self._samples.batches(order, training.batch_size, self._reading(round)):
                if scheduled:
                    self._prepare(context, descent, used)
                    used += len(batch[1])
                total += self._step(network, batch, descent, context, calibration)
                batches += 1
                if after_step is not None:
                    after_step()
        state = descent.state() if training.carries_optimizer else {}
        return TrainingResult(state, float(total) / max(1, batches))

    def _reading(self, round_: int) -> int:
        """What the user's data draws from while it is read; data in memory draws nothing."""
        if not isinstance(self._samples, StreamSamples):
            return 0
        return whole_seed(self._seed, Purpose.READING, round_, self._node)

    def _prepare(self, context: Context, descent: Descent, used: int) -> None:
        factor = rate_factor(self._training, used)
        descent.set_rate(factor)
        context.used, context.learning_rate = used, self._training.learning_rate * factor

    def _step(
        self, network: nn.Module, batch: Batch, descent: Descent, context: Context, calibration: Tensor | None
    ) -> Tensor:
        """One batch; its loss, without a graph."""
        task = self._task
        if task.augment is not None:
            batch = (task.augment(batch[0]), batch[1])
            if batch[0] is None:
                raise BadInput("app: augment returned None; it must return the inputs.")
        if task.step is not None:
            return _followed(task.step(network, batch, context), descent)
        if self._training.precision == "float32":
            loss = task.loss_of(network, batch, calibration)
        else:
            with task.mixed_precision(self._samples.device):
                loss = task.loss_of(network, batch, calibration)
        descent.step(loss)
        return loss.detach()


def _followed(loss: Any, descent: Descent) -> Tensor:
    """The loss that the app's own step returned; one with a graph is followed here, else the step has done it all."""
    if isinstance(loss, Tensor) and loss.requires_grad:
        descent.step(loss)
        return loss.detach().float()
    return torch.as_tensor(float(loss if loss is not None else 0.0), device=None)


def hold_statistics(network: nn.Module, *, everywhere: bool) -> None:
    """Let batch norm use the statistics it has: all of it, or the layers whose weights are frozen.

    A frozen layer whose statistics went on changing would not be frozen, and would have to travel.
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm) and (everywhere or is_frozen(module)):
            module.eval()


def is_frozen(module: nn.Module) -> bool:
    """Whether a module has weights and none of them is trained."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)

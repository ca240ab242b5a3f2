"""How weights follow gradients: SGD with momentum as the paper has it, or any optimiser of torch.optim.

The learning rate is a function of the samples that the run has used so far, over all nodes, so every site computes
the same one. An optimiser's state can travel with the model: as tensors named `optimizer/PLACE/PARAMETER/KEY`.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tramfl.config import TrainingSettings
from tramfl.learning.training.task import Task
from tramfl.notation import BadInput
from tramfl.references import users_code

STATE_PREFIX = "optimizer/"
"""Before the names of carried optimiser state among serialised weights."""
Carried = dict[str, Tensor]
"""An optimiser's state by name."""
_backward = torch.autograd.Variable._execution_engine.run_backward


@cache
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The gradient of a loss by itself."""
    return torch.ones((), dtype=dtype, device=device)


def rate_factor(training: TrainingSettings, used: int) -> float:
    """What the learning rate is multiplied by once the run has used `used` samples."""
    if training.schedule == "constant":
        return 1.0
    if training.schedule_samples is None:
        raise BadInput(
            f"training.schedule = {training.schedule!r} needs training.schedule_samples: the samples until the rate"
            " is 0 (cosine), or between two steps (step)."
        )
    if training.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, used / training.schedule_samples)))
    return float(training.schedule_factor ** (used // training.schedule_samples))


class PaperDescent:
    """SGD with momentum as torch.optim.SGD has it, v = mu v + g and w = w - lr v, in two passes over memory.

    torch.optim spends 0.2 ms a step around them: a third of a digits step. The checks that `loss.backward()` makes
    in Python take half as long as the gradients of such a network, so the engine behind it is called as it is.
    """

    optimizers: tuple[torch.optim.Optimizer, ...] = ()

    def __init__(self, network: nn.Module, training: TrainingSettings, carried: Mapping[str, Tensor] | None) -> None:
        trained = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        self._trained = [name for name, _ in trained]
        self._weights = [weight for _, weight in trained]
        self._values = [weight.detach() for weight in self._weights]
        self._base = self._rate = training.learning_rate
        self._decay = training.momentum
        self._velocity: list[Tensor | None] = [None] * len(self._weights)
        for weight in self._weights:
            weight.grad = None  # of the user's own, perhaps: gradients are added to what is there
        if carried is not None:
            self._velocity = [carried[name].clone() for name in self._names()]

    def set_rate(self, factor: float) -> None:
        """Multiply the learning rate that the run begins with."""
        self._rate = self._base * factor

    def step(self, loss: Tensor) -> None:
        """Follow the gradients of the loss."""
        # Not torch.autograd.grad: a network that recomputes its activations (torch.utils.checkpoint) refuses it.
        one = _one(loss.dtype, loss.device)
        _backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        for place, (weight, value) in enumerate(zip(self._weights, self._values, strict=True)):
            gradient, weight.grad = weight.grad, None
            if gradient is None:
                continue
            velocity = self._velocity[place]
            if velocity is None:
                # Two weights may have one and the same tensor for a gradient: each needs a velocity of its own.
                self._velocity[place] = velocity = gradient.clone()
            else:
                torch.add(gradient, velocity, alpha=self._decay, out=velocity)
            value.add_(velocity, alpha=-self._rate)

    def state(self) -> Carried:
        """v for each trained weight, zero where none was ever moved."""
        pairs = zip(self._weights, self._velocity, strict=True)
        values = [torch.zeros_like(weight, requires_grad=False) if v is None else v for weight, v in pairs]
        return dict(zip(self._names(), values, strict=True))

    def _names(self) -> list[str]:
        """What the velocities are called where they travel."""
        return [f"{STATE_PREFIX}0/{name}/momentum_buffer" for name in self._trained]


class TorchDescent:
    """One optimiser of torch.optim, or several where the app makes several."""

    def __init__(
        self, network: nn.Module, training: TrainingSettings, task: Task, carried: Mapping[str, Tensor] | None = None
    ) -> None:
        self._named: dict[Tensor, str] = {
            weight: name for name, weight in network.named_parameters() if weight.requires_grad
        }
        self._clip = training.clip_norm
        self.optimizers = _optimizers(network, list(self._named), training, task)
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        if carried is not None:
            self._load(carried)

    def set_rate(self, factor: float) -> None:
        """Multiply the learning rates that the optimisers began with."""
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def step(self, loss: Tensor) -> None:
        """Follow the gradients of the loss, clipped if the scenario says so."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._named, self._clip)
        for optimizer in self.optimizers:
            optimizer.step()

    def state(self) -> Carried:
        """All that the optimisers keep of each weight, by name."""
        found: Carried = {}
        for place, optimizer in enumerate(self.optimizers):
            for weight, kept in optimizer.state.items():
                for key, value in kept.items():
                    found[self._name(place, weight, key)] = _as_tensor(value, type(optimizer).__name__, key)
        return found

    def _load(self, carried: Mapping[str, Tensor]) -> None:
        weights = {name: weight for weight, name in self._named.items()}
        for name, tensor in carried.items():
            place, _, rest = name.removeprefix(STATE_PREFIX).partition("/")
            parameter, _, key = rest.rpartition("/")
            kept = self.optimizers[int(place)].state[weights[parameter]]
            kept[key] = tensor.clone()

    def _name(self, place: int, weight: Tensor, key: str) -> str:
        return f"{STATE_PREFIX}{place}/{self._named[weight]}/{key}"


Descent = PaperDescent | TorchDescent


def descent_of(
    network: nn.Module, training: TrainingSettings, task: Task, carried: Mapping[str, Tensor] | None = None
) -> Descent:
    """What follows the gradients of a round; `carried` is the state it goes on with."""
    own = task.own_optimizer is not None or task.step is not None
    if own or training.optimizer != "sgd" or training.weight_decay or training.clip_norm is not None:
        return TorchDescent(network, training, task, carried)
    return PaperDescent(network, training, carried)


def first_state(network: nn.Module, training: TrainingSettings, task: Task) -> Carried:
    """The state that travels, before anything was trained: the right names, shapes and types, and only zeros.

    An optimiser makes its state in its first step, so a copy of the network takes one with gradients of zero.
    """
    twin = copy.deepcopy(network)
    descent = descent_of(twin, training, task)
    for weight in twin.parameters():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    for optimizer in descent.optimizers:
        optimizer.step()
    return {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in descent.state().items()}


def _as_tensor(value: Any, optimizer: str, key: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, int | float):
        return torch.tensor(value)
    raise BadInput(
        f"training.carry_optimizer: {optimizer} keeps a {type(value).__name__} as {key!r}, which cannot travel; only"
        " tensors and numbers can."
    )


def _optimizers(
    network: nn.Module, weights: list[Tensor], training: TrainingSettings, task: Task
) -> tuple[torch.optim.Optimizer, ...]:
    if task.own_optimizer is None:
        return (_by_name(weights, training),)
    with users_code("app: optimizer"):
        made = _call(task.own_optimizer, weights, network)
    several: Sequence[Any] = tuple(made) if isinstance(made, list | tuple) else (made,)
    for optimizer in several:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadInput(f"app: optimizer gave a {type(optimizer).__name__}, not a torch.optim.Optimizer.")
        trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if trained.isdisjoint(map(id, weights)):
            raise BadInput("app: optimizer has none of the network's weights: make it of the parameters it is given.")
    return tuple(several)


def _call(make: Callable[..., Any], weights: list[Tensor], network: nn.Module) -> Any:
    """The parameters come first; a function that names `model` gets the network too."""
    try:
        wants_model = "model" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        wants_model = False
    return make(weights, model=network) if wants_model else make(weights)


def _by_name(weights: list[Tensor], training: TrainingSettings) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=rate, momentum=training.momentum, weight_decay=decay)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    fused = all(weight.is_floating_point() and weight.device.type in ("cpu", "cuda") for weight in weights)
    return kind(weights, lr=rate, weight_decay=decay, fused=fused)

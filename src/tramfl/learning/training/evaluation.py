"""How good a model is: on no more test samples than it takes to say whether a target is reached."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tramfl.config import ACCURACY, LOSS
from tramfl.draws import generator
from tramfl.learning.chance import Purpose
from tramfl.learning.model.networks import outputs_in_parts
from tramfl.learning.training.metrics import Direction, Metric, value_of
from tramfl.learning.training.samples import Samples
from tramfl.learning.training.task import Task

_TEST_BATCH = 250
_CHUNKS = 10
"""Pieces of the tested samples whose spread says how sure a metric is."""


@dataclass(frozen=True)
class TestScore:
    """How good a model is on the test samples that were looked at."""

    accuracy: float | None
    """None where outputs are not logits of classes and no metric of that name is asked for."""
    loss: float | None
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Aim:
    """The metric that targets are of."""

    metric: str = ACCURACY
    direction: Direction = "higher"


class _Tested:
    """What is known of the samples tested so far."""

    def __init__(self) -> None:
        self.right: float | None = 0
        self.loss: float | None = 0.0
        self.seen = 0
        self.outputs: list[Any] = []
        self.targets: list[Any] = []

    def add(self, right: float | None, loss: float | None, seen: int) -> None:
        self.right = None if self.right is None or right is None else self.right + right
        self.loss = None if self.loss is None or loss is None else self.loss + loss
        self.seen += seen


class Evaluator:
    """Tests a model on the test set, or on a subset of it while no target can have been reached."""

    def __init__(
        self,
        test: Samples,
        *,
        subset: int,
        task: Task,
        metrics: Mapping[str, Metric] | None = None,
        aim: Aim | None = None,
        chosen: NDArray[np.int64] | None = None,
    ) -> None:
        """`chosen` are the test samples that are used, where not all are."""
        self._test, self._task = test, task
        self._metrics = dict(metrics or {})
        self._aim = aim or Aim()
        used = np.arange(len(test)) if chosen is None else chosen
        # The same order in every run: what differs between two runs is the model, not the sample of the test set.
        order = used[generator(0, Purpose.TEST_ORDER).permutation(len(used))]
        self._order = torch.from_numpy(order).to(test.device)
        self.subset = min(subset, len(order))
        """Test samples that are looked at first."""

    def test(self, network: nn.Module, targets: Sequence[float] = ()) -> TestScore:
        """The scores on the subset, and on ever more of the test set while a target may be reached.

        A target counts as out of reach when it lies two standard errors beyond the value so far; so a value that
        reaches a target is always that of the full test set.
        """
        so_far = _Tested()
        keeps = bool(self._metrics)
        while so_far.seen < len(self._order):
            part = self._order[so_far.seen : so_far.seen + self.subset]
            right, loss = measure(network, self._test, part, self._task, so_far if keeps else None)
            so_far.add(right, loss, len(part))
            if self._out_of_reach(so_far, targets):
                break
        return self._score(so_far)

    def _score(self, tested: _Tested) -> TestScore:
        values: dict[str, float] = {}
        if self._metrics:
            outputs, targets = joined(tested.outputs), joined(tested.targets)
            for name, metric in self._metrics.items():
                value = value_of(name, metric, outputs, targets)
                if value is not None:
                    values[name] = value
        seen = tested.seen
        counted = None if tested.right is None else tested.right / seen
        accuracy = values.pop(ACCURACY, counted) if ACCURACY in self._metrics else counted
        return TestScore(accuracy, None if tested.loss is None else tested.loss / seen, seen, values)

    def _out_of_reach(self, tested: _Tested, targets: Sequence[float]) -> bool:
        if not targets:
            return True
        if self._aim.metric == ACCURACY and ACCURACY not in self._metrics:
            if tested.right is None:
                return True
            lowest = min(targets)
            return tested.right / tested.seen + 2 * self._standard_error(lowest, tested.seen) < lowest
        return self._metric_out_of_reach(tested, targets)

    def _standard_error(self, accuracy: float, seen: int) -> float:
        """Of the share of right answers among `seen` of the test samples, were `accuracy` the share among all."""
        if accuracy > 1:
            return 0.0
        return math.sqrt(max(accuracy * (1 - accuracy), 0.01) / seen * self._unseen(seen))

    def _unseen(self, seen: int) -> float:
        return 1 - seen / len(self._order)

    def _metric_out_of_reach(self, tested: _Tested, targets: Sequence[float]) -> bool:
        """As for accuracy; the standard error is that of the metric over pieces of what was tested."""
        name, metric = self._aim.metric, self._metrics.get(self._aim.metric)
        if metric is None:
            # The loss: the subset decides whether the full test set is looked at.
            loss = tested.loss / tested.seen if name == LOSS and tested.loss is not None else math.nan
            return not (loss >= min(targets) if self._aim.direction == "higher" else loss <= max(targets))
        outputs, wanted = joined(tested.outputs), joined(tested.targets)
        value = value_of(name, metric, outputs, wanted)
        pieces = [
            found
            for piece in torch.arange(tested.seen).chunk(_CHUNKS)
            if (found := value_of(name, metric, taken(outputs, piece), taken(wanted, piece))) is not None
        ]
        if value is None or len(pieces) < 2:
            return False  # nothing is known of how sure it is: the full test set decides
        margin = 2 * float(np.std(pieces, ddof=1)) / math.sqrt(len(pieces)) * math.sqrt(self._unseen(tested.seen))
        if self._aim.direction == "higher":
            return value + margin < min(targets)
        return value - margin > max(targets)


def measure(
    network: nn.Module, samples: Samples, chosen: Tensor, task: Task, keep: _Tested | None = None
) -> tuple[float | None, float | None]:
    """How many of the chosen samples the network gets right, and the sum of their losses; None where not defined.

    `keep` collects outputs and targets, for metrics that need them.
    """
    right: Tensor | None = torch.zeros((), dtype=torch.int64, device=samples.device)
    loss: Tensor | None = torch.zeros((), device=samples.device)
    network.eval()
    with torch.inference_mode():
        for inputs, targets in samples.batches(chosen, _TEST_BATCH):
            outputs = outputs_in_parts(network, inputs)
            right = right + _right(outputs, targets) if task.classifies and right is not None else None
            more = task.test_loss(outputs, targets)
            loss = None if loss is None or more is None else loss + more
            if keep is not None:
                keep.outputs.append(on_cpu(outputs))
                keep.targets.append(on_cpu(targets))
    return (None if right is None else right.item(), None if loss is None else float(loss))


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Right answers in a batch; where a sample has many targets, such as pixels, the share of them that is right."""
    if targets.is_floating_point():
        targets = targets.argmax(1)  # shares of classes
    hits = outputs.argmax(1) == targets
    return hits.sum() if hits.ndim == 1 else hits.float().flatten(1).mean(1).sum()


def on_cpu(value: Any) -> Any:
    """Tensors on the CPU, also inside tables and pairs."""
    if isinstance(value, Tensor):
        return value.to("cpu")
    if isinstance(value, Mapping):
        return {key: on_cpu(inner) for key, inner in value.items()}
    return tuple(on_cpu(inner) for inner in value) if isinstance(value, tuple | list) else value


def joined(pieces: Sequence[Any]) -> Any:
    """The pieces of several batches as one."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(list(pieces))
    if isinstance(first, Mapping):
        return {key: joined([piece[key] for piece in pieces]) for key in first}
    return tuple(joined(column) for column in zip(*pieces, strict=True)) if isinstance(first, tuple) else list(pieces)


def taken(value: Any, rows: Tensor) -> Any:
    """Some samples' rows of joined outputs or targets."""
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, Mapping):
        return {key: taken(inner, rows) for key, inner in value.items()}
    return tuple(taken(inner, rows) for inner in value) if isinstance(value, tuple) else value

"""Which weights are tested and delivered. Training always goes on from the newest.

The newest weights lean towards the labels of the last stop. A mean over several stops does not, and a node can form
one from what passes through it anyway, so that nothing more has to travel:

    last      the newest weights
    visit     the mean of the weights as the node received them and as it left them
    average   a_i <- (a_i + visit) / 2 at node i: what it saw in one round counts half as much as in the next

Batch norm's running means and variances are averaged like weights: the mean network is tested in evaluation mode, and
fresh statistics would be those of one node's labels alone. Whole numbers, such as counters, are those of the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tramfl.config import ReadOut
from tramfl.learning.model.coded_files import PASSED
from tramfl.learning.model.weights import State
from tramfl.notation import NodeId

Weights = list[Tensor]
"""What travels of a model, in the order of the network's state dict."""
_RECEIVED, _AVERAGE = f"{PASSED}received/", f"{PASSED}average/"


@dataclass(frozen=True)
class Passed:
    """What the nodes remember of the models that passed through them. It belongs to a model, as its history does."""

    received: Mapping[NodeId, Weights] = field(default_factory=dict)
    """The weights as the node that holds the model received them."""
    averages: Mapping[NodeId, Weights] = field(default_factory=dict)
    """a_i of each node."""

    def after(self, node: NodeId, before: Weights, left: Weights, kind: ReadOut) -> tuple[Weights, Passed]:
        """The weights to test once `node` has trained the weights `before`, and what is remembered then."""
        if kind == "last":
            return left, self
        # A node that has trained the last round too has received nothing in between.
        received = self.received if node in self.received else {node: before}
        visit = mean(received[node], left)
        if kind == "visit":
            return visit, Passed(received)
        past = self.averages.get(node)
        average = visit if past is None else mean(past, visit)
        return average, Passed(received, {**self.averages, node: average})

    def saved(self, names: Sequence[str]) -> State:
        """All of it as tensors, by names that no weights have."""
        return {
            f"{prefix}{node}/{name}": tensor
            for prefix, remembered in ((_RECEIVED, self.received), (_AVERAGE, self.averages))
            for node, weights in remembered.items()
            for name, tensor in zip(names, weights, strict=True)
        }

    @classmethod
    def taken_from(cls, state: State, names: Sequence[str]) -> Passed:
        """What `saved` gave, which is taken out of `state`."""
        return cls(_taken(state, _RECEIVED, names), _taken(state, _AVERAGE, names))


def mean(one: Weights, newer: Weights) -> Weights:
    """The mean of two models; whole numbers are the newer one's."""
    return [(a + b) / 2 if b.is_floating_point() else b for a, b in zip(one, newer, strict=True)]


def _taken(state: State, prefix: str, names: Sequence[str]) -> dict[NodeId, Weights]:
    nodes = {int(name.removeprefix(prefix).partition("/")[0]) for name in state if name.startswith(prefix)}
    return {node: [state.pop(f"{prefix}{node}/{name}") for name in names] for node in sorted(nodes)}

"""Which weights are tested and delivered. Training always goes on from the newest.

The newest weights lean towards the labels of the last stop. A mean over several stops does not, and a node can form
one from what passes through it anyway, so that nothing more has to travel:

    last      the newest weights
    visit     the mean of the weights as the node received them and as it left them
    average   v <- (1 - s) left + s received, then a_i <- (1 - s') v + s' a_i at node i

A share s is a half, and less where the weights are those of a much younger run: with n samples used when they were
seen and N by now, s = min(1, n / (N - n)) / 2. So w_0 counts nothing, and a run that learns much in its first visits
is not held back by what it knew before them. Later on every share is a half: what a node saw in one round counts half
as much as in the next.

Batch norm's running means and variances are averaged like weights: the mean network is tested in evaluation mode, and
fresh statistics would be those of one node's labels alone. Whole numbers, such as counters, are those of the newest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tramfl.config import ReadOut
from tramfl.learning.model.coded_files import PASSED
from tramfl.learning.model.weights import State
from tramfl.notation import NodeId

Weights = list[Tensor]
"""What travels of a model, in the order of the network's state dict."""
_RECEIVED, _AVERAGE = f"{PASSED}received/", f"{PASSED}average/"
_USED = "samples used"
"""In the names of what is saved: in the place of a tensor's name, which has no blank."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Weights that a node remembers."""

    weights: Weights
    used: int
    """The samples that the run had used by then."""

    def share(self, used: int) -> float:
        """How much they count beside weights of a run that has used `used` samples."""
        return min(1.0, self.used / max(1, used - self.used)) / 2


@dataclass(frozen=True)
class Passed:
    """What the nodes remember of the models that passed through them. It belongs to a model, as its history does."""

    received: Mapping[NodeId, Seen] = field(default_factory=dict)
    """The weights as the node that holds the model received them."""
    averages: Mapping[NodeId, Seen] = field(default_factory=dict)
    """a_i of each node."""

    def after(self, node: NodeId, before: Seen, left: Seen, kind: ReadOut) -> tuple[Weights, Passed]:
        """The weights to test once `node` has trained the weights `before`, and what is remembered then."""
        if kind == "last":
            return left.weights, self
        # A node that has trained the last round too has received nothing in between.
        received = self.received if node in self.received else {node: before}
        if kind == "visit":
            return mean(received[node].weights, left.weights), Passed(received)
        average = mean(received[node].weights, left.weights, received[node].share(left.used))
        if (past := self.averages.get(node)) is not None:
            average = mean(past.weights, average, past.share(left.used))
        return average, Passed(received, {**self.averages, node: Seen(average, left.used)})

    def saved(self, names: Sequence[str]) -> State:
        """All of it as tensors, by names that no weights have."""
        saved: State = {}
        for prefix, remembered in ((_RECEIVED, self.received), (_AVERAGE, self.averages)):
            for node, seen in remembered.items():
                saved |= {f"{prefix}{node}/{name}": t for name, t in zip(names, seen.weights, strict=True)}
                saved[f"{prefix}{node}/{_USED}"] = torch.tensor(seen.used)
        return saved

    @classmethod
    def taken_from(cls, state: State, names: Sequence[str]) -> Passed:
        """What `saved` gave, which is taken out of `state`."""
        return cls(_taken(state, _RECEIVED, names), _taken(state, _AVERAGE, names))


def mean(one: Weights, newer: Weights, share: float = 0.5) -> Weights:
    """The mean of two models, of which the first counts `share`; whole numbers are the newer one's."""
    pairs = zip(one, newer, strict=True)
    return [a * share + b * (1 - share) if b.is_floating_point() else b for a, b in pairs]


def _taken(state: State, prefix: str, names: Sequence[str]) -> dict[NodeId, Seen]:
    nodes = {int(name.removeprefix(prefix).partition("/")[0]) for name in state if name.startswith(prefix)}
    found = {}
    for node in sorted(nodes):
        weights = [state.pop(f"{prefix}{node}/{name}") for name in names]
        # Files of earlier versions have no number: what they have counts a half, as it did there.
        used = state.pop(f"{prefix}{node}/{_USED}", None)
        found[node] = Seen(weights, sys.maxsize if used is None else int(used))
    return found

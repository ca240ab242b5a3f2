"""What a method plans: steps on variables, each of which lies at one place.

A place is a node, or the server beside them, whose number is that of the nodes. A variable is a name at a place; its
value is a model, or the soft outputs of one. A step reads variables of its own place alone: what another place has
must be sent first, and sending takes time. `w` is a node's model, and begins as w_0 at every place.

Steps are listed in the order in which values are read and written. Their times follow from what they depend on: a
training begins when its model is there and the node is free, a transfer when its value is there and the link is
free. Combining takes no time: it is a few operations a weight, a training is many a weight and sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct

from tramfl.config import ExchangeSettings
from tramfl.notation import NodeId

Place = int
Variable = tuple[Place, str]
"""A name at a place."""
MEAN = "mean"
"""The consensus of methods in which no place has it: the mean of the nodes' models, taken for the test alone."""


class TrainStep(Struct, frozen=True):
    """A node trains a model on its own next samples: w <- w - mu g(w) for every batch.

    With an anchor a, every step is followed by w <- w + share (a - w): the closed form of a step on the loss plus
    (eta / 2) |w - a|^2, where share = mu eta / (1 + mu eta).
    """

    node: NodeId
    samples: int
    source: str = "w"
    into: str = "w"
    anchor: str | None = None
    share: float = 0.0


class Combine(Struct, frozen=True):
    """A place adds up variables: into <- sum of factor * value."""

    place: Place
    into: str
    parts: tuple[tuple[str, float], ...]


class Send(Struct, frozen=True):
    """A place sends a variable to another one, or to each of several different ones, which keep it as `into`."""

    source: Place
    target: Place | tuple[Place, ...]
    name: str
    into: str


class Trade(Struct, frozen=True):
    """Two places note a variable as it is now, and send each other what they noted: both then have both of them."""

    one: Place
    other: Place
    name: str
    into: tuple[str, str]
    """What the note of `one` is called, and that of `other`."""

    def steps(self) -> tuple[Step, ...]:
        """The same as steps of a single place or link."""
        mine, theirs = self.into
        return (
            Combine(self.one, mine, ((self.name, 1.0),)),
            Combine(self.other, theirs, ((self.name, 1.0),)),
            Send(self.one, self.other, mine, mine),
            Send(self.other, self.one, theirs, theirs),
        )


class Mix(Struct, frozen=True):
    """Nodes send a variable to their neighbours, and each adds up its own and theirs: into_i <- sum of W_ij name_j.

    The same as a Send and a Combine for every node, which would be 10,000 parts on a full mesh of 100 nodes.
    """

    weights: Mapping[NodeId, Mapping[NodeId, float]]
    """W_ij by node and neighbour, a node's own weight first. Neighbours are each other's."""
    name: str
    into: str


class Cross(Struct, frozen=True):
    """Nodes keep a variable u for each neighbour, and send each neighbour a message of its own:

        m_i|j = 2 w_i - u_i|j at every node i for every neighbour j, sent to j
        u_j|i <- (1 - share) u_j|i + share m_i|j at node j

    `steps` has the same one by one, which would be 30,000 on a full mesh of 100 nodes.
    """

    links: Mapping[NodeId, tuple[NodeId, ...]]
    """The neighbours of each node; neighbours are each other's."""
    share: float = 1.0

    def steps(self) -> tuple[Step, ...]:
        """The same as steps of a single node or link."""
        links = [(node, other) for node, others in self.links.items() for other in others]
        kept = () if self.share == 1.0 else (1 - self.share,)
        return (
            *(Combine(node, f"m/{other}", (("w", 2.0), (f"u/{other}", -1.0))) for node, other in links),
            *(Send(node, other, f"m/{other}", f"from/{node}") for node, other in links),
            *(
                Combine(node, f"u/{other}", (*((f"u/{other}", part) for part in kept), (f"from/{other}", self.share)))
                for node, other in links
            ),
        )


class Predict(Struct, frozen=True):
    """A node computes the soft outputs of its model on the shared samples: a forward pass, a third of a training."""

    node: NodeId
    into: str
    source: str = "w"


class Distil(Struct, frozen=True):
    """A node trains its model on the shared samples towards soft outputs, `passes` times over all of them."""

    node: NodeId
    towards: str
    passes: int
    into: str = "w"


class Forget(Struct, frozen=True):
    """A place forgets variables that nothing reads any longer. All others are kept, and saved with the run."""

    place: Place
    names: tuple[str, ...]


Step = TrainStep | Combine | Send | Trade | Mix | Cross | Predict | Distil | Forget


class RoundPlan(Struct, frozen=True):
    """A round: it ends when the last of its steps does."""

    steps: tuple[Step, ...]
    reason: str
    """What happens in the round, in one sentence."""


class Cycle(Struct, frozen=True):
    """What one node of an asynchronous method does from one training to the next.

    `begin` happens at once; its training and its transfers then run side by side. `arrived` happens when all
    transfers have arrived, `end` when the training has ended, too. Then the node's next cycle begins.
    """

    begin: tuple[Step, ...]
    arrived: tuple[Step, ...]
    end: tuple[Step, ...]


class Reading(Struct, frozen=True):
    """Which models a method is judged by."""

    nodes: tuple[Variable, ...]
    """The models that the nodes keep; empty where they keep none between rounds."""
    consensus: Variable | str | None
    """The model that all agree on, where there is one."""
    headline: Literal["nodes", "consensus"]
    """What counts for targets: the mean over the nodes' models, or the consensus."""


class RoundView(Struct, frozen=True):
    """What a method knows when it plans."""

    round: int
    """k = 1, 2, ...: rounds that were played, with this one; of an asynchronous method the node's cycles."""
    held: tuple[int, ...]
    """Training samples of each node."""
    reporting: tuple[NodeId, ...]
    """Nodes that can train now."""
    settings: ExchangeSettings
    samples: int
    """What a node trains between two exchanges."""
    learning_rate: float
    """mu."""
    training_seconds: Callable[[NodeId, int, float], float]
    """T_comp of a node for a number of samples, if it begins this many seconds after the round did."""
    sending_to: Callable[[Place, Sequence[Place], float], list[float]]
    """T_comm of a model from one place to each of several, if it leaves this many seconds after the round began."""
    draw: Callable[..., np.random.Generator]
    """The generator of a place of the run, named by whole numbers: the same numbers give the same draws."""

    @property
    def nodes(self) -> int:
        """N."""
        return len(self.held)

    def sending_seconds(self, one: Place, other: Place, after: float) -> float:
        """T_comm of a model from one place to another."""
        return self.sending_to(one, (other,), after)[0]

    @property
    def trainers(self) -> tuple[NodeId, ...]:
        """The reporting nodes that have samples."""
        return tuple(node for node in self.reporting if self.held[node])

    def first(self, seconds: Callable[[NodeId], float], among: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        """The nodes that a round waits for: the first ones by their seconds, as many as `wait_for` says."""
        wanted = math.ceil(self.settings.wait_for * len(among) - 1e-9)
        times = {node: seconds(node) for node in among}
        chosen = sorted((node for node in among if math.isfinite(times[node])), key=lambda node: (times[node], node))
        return tuple(sorted(chosen[:wanted]))


class ExchangeRule(Protocol):
    """A method. It has no memory of its own: what lasts lies in variables, so a run can be resumed.

    A class of rules is called with the settings and the number of nodes, and refuses settings that it cannot follow.
    """

    def start(self) -> tuple[Variable, ...]:
        """The variables that begin as w_0, beside every node's `w`."""
        ...

    def reading(self, view: RoundView) -> Reading:
        """What is tested after the round that `view` was planned from."""
        ...


class BarrierRule(ExchangeRule, Protocol):
    """All nodes of a round wait for each other."""

    def plan(self, view: RoundView) -> RoundPlan | None:
        """The round's steps; None where nobody can train, so that the round is skipped."""
        ...


class AsynchronousRule(ExchangeRule, Protocol):
    """Every node goes on by itself."""

    def cycle(self, node: NodeId, view: RoundView) -> Cycle:
        """What a node does from one training to the next."""
        ...

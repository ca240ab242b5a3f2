"""The paper's symbols as typed values.

A node is a number, its place in the federation's list of nodes; a label is a number, its place in
the list of labels. Every value here is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

NodeId = int
Digest = str
Counts = NDArray[np.int64]
Reals = NDArray[np.float64]

PAPER_VARIANCE_LIMIT = 10_000.0
"""V of the paper's experiments."""


class BadInput(ValueError):
    """What a user gave cannot be used; the message is one sentence that says what would be right."""


class ModelCost(Struct, frozen=True):
    """What one model costs to train and to send."""

    flops_per_sample: float
    """M: FLOPs of forward plus backward for one sample."""
    model_bits: float
    """D_M: size of the serialised weights, in bits."""


class Habit(Struct, frozen=True, array_like=True):
    """How one load behaves, from what was observed of it; old observations count less and less."""

    now: float
    """What it is expected to be in the coming round."""
    mean: float
    """Geometric mean."""
    spread: float
    """Standard deviation of the logarithm."""
    persistence: float
    """Correlation of an observation with the next, 0 to 1: 0 where every one is a new draw, 1 where loads last."""
    most: float
    """The highest value observed."""


class Outlook(Struct, frozen=True):
    """What a node knows of its own loads beyond the coming round."""

    compute: Habit
    """Of r_i."""
    links: tuple[Habit | None, ...]
    """Of b_ij from this node to each node; None to itself and where nothing is known."""
    step_seconds: float = 0.0
    """Seconds between two observations; 0 where loads are drawn once a round and fixed while it lasts (the paper)."""


class Loads(Struct, frozen=True):
    """What every node can spare in one round, as the holder learnt it."""

    flops: tuple[float, ...]
    """r_i^k: FLOPS node i can give; NaN where node i did not report."""
    bandwidth: tuple[float, ...]
    """b_ij^k: bit/s from the holder to node i; infinite to itself, NaN where node i did not report."""
    outlook: tuple[Outlook | None, ...] = ()
    """How each node's loads behave; empty, or None for a node, where it did not say."""

    @property
    def reporting(self) -> tuple[NodeId, ...]:
        """The nodes that reported something to work with, and so may be chosen."""
        loads = zip(self.flops, self.bandwidth, strict=True)
        return tuple([i for i, (flops, bandwidth) in enumerate(loads) if flops > 0 and bandwidth > 0])  # no NaN is

    def has(self, node: NodeId) -> bool:
        """Whether a node is among those that reported."""
        return 0 <= node < len(self.flops) and self.flops[node] > 0 and self.bandwidth[node] > 0


class Ledger(Struct, frozen=True):
    """What has been trained so far: the history every decision starts from."""

    used: tuple[int, ...]
    """Samples of each label used in rounds 1..k."""
    seconds: float = 0.0
    """T_total after k rounds."""
    round: int = 0
    """k: rounds done, skipped ones included."""
    skipped: int = 0
    """Rounds of these in which nobody trained."""

    @classmethod
    def empty(cls, labels: int) -> Ledger:
        """The ledger before the first round."""
        return cls((0,) * labels)

    @property
    def trained(self) -> int:
        """Rounds in which a node trained."""
        return self.round - self.skipped

    @property
    def samples(self) -> int:
        """S_total: samples trained so far, over all labels."""
        return sum(self.used)

    @property
    def label_variance(self) -> float:
        """Variance over the labels of the samples used, the quantity V bounds."""
        return label_variance(self.used)

    def after(self, samples: Sequence[int], seconds: float) -> Ledger:
        """The ledger once a round of `seconds` has trained `samples` (all zero if it was skipped)."""
        used = tuple(a + s for a, s in zip(self.used, samples, strict=True))
        skipped = self.skipped + (not any(samples))
        return Ledger(used, self.seconds + seconds, self.round + 1, skipped)


class Candidate(Struct, frozen=True, gc=False):
    """What a policy weighed for one node."""

    node: NodeId
    samples: int
    """S*: the samples this node would train."""
    compute_seconds: float
    """Predicted T_comp."""
    transfer_seconds: float
    """Predicted T_comm."""
    score: float
    """O3(S*): samples per second of the whole run if this node trains."""
    score_of_waiting: float
    """O3(0): the same if nobody trains this round."""
    label_variance: float
    """Variance over labels after this round, had this node trained."""
    feasible: bool
    """Whether that variance is within V."""


class Decision(Struct, frozen=True):
    """Who trains next, on what, and why."""

    policy: str
    node: NodeId | None
    """i^k, or None where the round is skipped."""
    samples: tuple[int, ...]
    """l_ic x_ic: samples of each label to train on."""
    compute_seconds: float
    """Predicted T_comp."""
    transfer_seconds: float
    """Predicted T_comm."""
    idle_seconds: float
    """T_idle: H where the round is skipped."""
    reason: str
    """Why this node, or why nobody, in one sentence."""
    candidates: tuple[Candidate, ...] = ()
    unreachable_labels: tuple[int, ...] = field(default=())
    """Labels that no reporting node holds; they left the variance constraint."""
    label_variance: float | None = None
    """After this round, of the counts relative to the shares to aim for; None where these are uniform."""

    @property
    def round_seconds(self) -> float:
        """Predicted T_round."""
        return self.compute_seconds + self.transfer_seconds + self.idle_seconds


def label_variance(used: Sequence[int]) -> float:
    """Population variance of whole counts, free of cancellation whatever their size."""
    labels = len(used)
    total = sum(used)
    return (labels * sum(a * a for a in used) - total * total) / (labels * labels)

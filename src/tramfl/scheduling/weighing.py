"""What every policy shares: weighing the nodes and saying why.

A policy first says what samples each node in question would train. Weighing gives each its predicted
times and scores; from there a policy only chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tramfl.notation import BadInput, Candidate, Decision, Ledger, Loads, ModelCost, NodeId, Reals
from tramfl.scheduling.objective import samples_per_second
from tramfl.scheduling.policy import PolicySettings
from tramfl.scheduling.shares import filled, largest_relative_allotment, relative_variances
from tramfl.scheduling.timing import compute_seconds, transfer_seconds
from tramfl.scheduling.water_level import Allotment, largest_allotment


def most_samples(settings: PolicySettings, loads: Loads, holder: NodeId, cost: ModelCost) -> int | None:
    """The most samples of a round with these loads; None where there is no limit.

    Where a hop costs little beside training, a long round has nothing to save: a shorter one is decided again with
    fresh loads, and takes more evenly from the labels. H bounds it from below, since deciding takes time too.
    """
    if settings.max_hops is None:
        return settings.max_samples
    reporting = loads.reporting
    hops = [cost.model_bits / loads.bandwidth[node] for node in reporting if node != holder]
    if not any(hops):
        return settings.max_samples
    quickest = min(hop for hop in hops if hop > 0)  # a node that has the weights already needs no hop
    seconds = max(settings.max_hops * quickest, settings.wait_seconds)
    fastest = max(loads.flops[node] for node in reporting)
    most = max(1, int(min(seconds * fastest / cost.flops_per_sample, 2**53)))
    return most if settings.max_samples is None else min(most, settings.max_samples)


class Round(Struct, frozen=True, eq=False):
    """What is known when a round is decided."""

    policy: str
    settings: PolicySettings
    ledger: Ledger
    loads: Loads
    held: NDArray[np.int64]
    holder: NodeId
    cost: ModelCost
    nodes: tuple[NodeId, ...]
    """Those that reported, and so may be chosen."""
    reachable: NDArray[np.bool_]
    """Labels that at least one of them holds; the others leave the variance constraint."""
    unreachable_labels: tuple[int, ...]
    """The others."""

    @classmethod
    def of(
        cls,
        policy: str,
        settings: PolicySettings,
        ledger: Ledger,
        loads: Loads,
        held: NDArray[np.int64],
        holder: NodeId,
        cost: ModelCost,
    ) -> Round:
        """Gather what `decide` was given, and see who and what is within reach."""
        nodes = loads.reporting
        if settings.max_hops is not None:
            settings = replace(settings, max_samples=most_samples(settings, loads, holder, cost))
        reachable = np.asarray(held[list(nodes)].any(axis=0))
        unreachable = tuple(label for label, there in enumerate(reachable.tolist()) if not there)
        return cls(policy, settings, ledger, loads, held, holder, cost, nodes, reachable, unreachable)

    @property
    def used(self) -> NDArray[np.int64]:
        """Samples used so far of the labels within reach."""
        return self._within_reach(np.array(self.ledger.used, dtype=np.int64))

    def stock(self, nodes: Sequence[NodeId]) -> NDArray[np.int64]:
        """What `nodes` hold of the labels within reach."""
        return self._within_reach(self.held[list(nodes)])

    @property
    def shares(self) -> Reals | None:
        """The shares of the labels within reach to aim for; None where they are equal."""
        wanted = self.settings.shares
        if wanted is None:
            return None
        all_shares = self.held.sum(axis=0) if wanted == "population" else np.array(wanted)
        if all_shares.size != self.reachable.size:
            raise BadInput(f"balance has {all_shares.size} shares, and the data has {self.reachable.size} labels.")
        within = all_shares[self.reachable].astype(np.float64)
        shares: Reals = within / within.sum()
        return shares

    def allot(self, nodes: Sequence[NodeId], used: NDArray[np.int64] | None = None, whole: bool = True) -> Allotment:
        """P4 for each of `nodes`: the most samples within V, at most those that a round may train.

        `used` is what was used before, one row for each of `nodes`, where that is not this round's history.
        """
        before = self.used if used is None else used
        stock, shares, limit = self.stock(nodes), self.shares, self.settings.variance_limit
        if shares is None:
            found = largest_allotment(before, stock, limit, whole=whole)
        else:
            found = largest_relative_allotment(before, stock, shares, limit)
        most = self.settings.max_samples
        if most is None or not (found.total > most).any():
            return found
        even = np.full(stock.shape[1], 1.0 / stock.shape[1]) if shares is None else shares
        histories = np.broadcast_to(before, stock.shape)
        samples = found.samples.astype(np.int64)
        for row in (found.total > most).nonzero()[0].tolist():
            samples[row] = filled(histories[row], stock[row], even, most)
        variance = self.variances(before + samples)
        return Allotment(samples, samples.sum(axis=1), variance, variance <= limit * (1.0 + 1e-9))

    def filled(self, node: NodeId, total: int) -> NDArray[np.int64]:
        """The allotment of `total` samples, or the most of a round, that leaves the least variance, whatever V is."""
        shares, most = self.shares, self.settings.max_samples
        used, stock = self.used, self.stock([node])[0]
        even = np.full(used.size, 1.0 / used.size) if shares is None else shares
        return filled(used, stock, even, total if most is None else min(total, most))

    def thinned(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of samples, each cut to the most that a round may train."""
        return samples if self.settings.max_samples is None else thinned(samples, self.settings.max_samples)

    def variances(self, counts: NDArray[np.int64]) -> Reals:
        """The variance over labels of every row, relative to the shares to aim for."""
        return _label_variances(counts) if self.shares is None else relative_variances(counts, self.shares)

    def _within_reach(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts[..., self.reachable] if self.unreachable_labels else counts

    def weigh(
        self, nodes: Sequence[NodeId], samples: NDArray[np.int64], variance: Reals | None = None
    ) -> tuple[Candidate, ...]:
        """Each node's predicted times and scores, had it trained its row of `samples`."""
        if variance is None:
            variance = self.variances(self.used + samples)
        before, passed = self.ledger.samples, self.ledger.seconds
        waiting = samples_per_second(0, self.settings.wait_seconds, before, passed)
        within = self.settings.variance_limit * (1.0 + 1e-9)
        where = np.array(nodes)
        totals = samples.sum(axis=1)
        trained = totals.astype(np.float64)
        compute = compute_seconds(trained, self.cost, np.array(self.loads.flops)[where])
        transfer = transfer_seconds(self.cost, np.array(self.loads.bandwidth)[where])
        transfer[where == self.holder] = 0.0
        scores = samples_per_second(trained, compute + transfer, before, passed)
        scores[totals < 1] = waiting
        columns = (totals, compute, transfer, scores, variance, variance <= within)
        total, compute_of, transfer_of, score, spread, feasible = (column.tolist() for column in columns)
        waits = repeat(waiting, len(nodes))
        return tuple(map(Candidate, nodes, total, compute_of, transfer_of, score, waits, spread, feasible))

    def train(
        self,
        candidate: Candidate,
        samples: NDArray[np.int64],
        candidates: tuple[Candidate, ...],
        reason: str,
    ) -> Decision:
        """The decision that `candidate` trains `samples` of the labels within reach."""
        every_label = np.zeros(self.reachable.size, dtype=np.int64)
        every_label[self.reachable] = samples
        return Decision(
            self.policy,
            candidate.node,
            tuple(every_label.tolist()),
            candidate.compute_seconds,
            candidate.transfer_seconds,
            0.0,
            self._with_labels(reason),
            candidates,
            self.unreachable_labels,
            self._relative_variance(samples),
        )

    def skip(self, reason: str, candidates: tuple[Candidate, ...] = ()) -> Decision:
        """The decision that nobody trains and the holder waits for H."""
        return Decision(
            self.policy,
            None,
            (0,) * self.reachable.size,
            0.0,
            0.0,
            self.settings.wait_seconds,
            self._with_labels(reason),
            candidates,
            self.unreachable_labels,
            self._relative_variance(np.zeros_like(self.used)) if self.nodes else None,
        )

    def _relative_variance(self, samples: NDArray[np.int64]) -> float | None:
        """The variance after this round, for the record; None where it is that of the counts themselves."""
        if self.settings.shares is None or not self.reachable.any():
            return None
        return float(self.variances((self.used + samples)[np.newaxis, :])[0])

    def nobody_reported(self) -> Decision:
        """The decision when there is nobody to choose from."""
        return self.skip("Nobody trains: no node reported its load.")

    def _with_labels(self, reason: str) -> str:
        """`reason`, and in the same sentence which labels left the constraint."""
        gone = self.unreachable_labels
        if not gone or not self.nodes:
            return reason
        reason = reason.removesuffix(".")
        names = ", ".join(map(str, gone))
        if len(gone) == 1:
            return f"{reason}; label {names} is left out of the balance, as no reporting node holds it."
        return f"{reason}; labels {names} are left out of the balance, as no reporting node holds them."


class BasePolicy(ABC):
    """The base of the built-in policies, and of any other that wants it: a subclass has a `name` and `choose`.

    Rounds in which no node reported, or none has samples, are skipped here.
    """

    name: str
    """What users call the policy, and what its decisions say."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings

    def decide(
        self,
        ledger: Ledger,
        loads: Loads,
        held: NDArray[np.int64],
        holder: NodeId,
        cost: ModelCost,
        rng: np.random.Generator,
    ) -> Decision:
        """This round's decision."""
        now = Round.of(self.name, self.settings, ledger, loads, held, holder, cost)
        if not now.nodes:
            return now.nobody_reported()
        if not now.reachable.any():
            return now.skip("Nobody trains: no reporting node holds any samples.")
        return self.choose(now, rng)

    def stuck(self, ledger: Ledger, held: NDArray[np.int64]) -> str | None:
        """Why no later round can train although every node reports, or None where one may."""
        return None

    @abstractmethod
    def choose(self, now: Round, rng: np.random.Generator) -> Decision:
        """The decision, made with `now.train` or `now.skip`, where a node that reported has samples."""


def stuck_by_balance(ledger: Ledger, held: NDArray[np.int64], settings: PolicySettings) -> str | None:
    """Why V keeps every node from training, now and for ever: S* depends on the samples used and held alone."""
    if not held.any():
        return "no node holds any samples."
    if settings.visit_every is not None:
        return None  # the node whose visit is due trains
    everyone = Loads((1.0,) * len(held), (1.0,) * len(held))
    now = Round.of("", settings, ledger, everyone, held, 0, ModelCost(1.0, 1.0))
    if now.allot(now.nodes).total.any():
        return None
    limit = settings.variance_limit
    variance = float(now.variances(now.used[np.newaxis, :])[0])
    return (
        f"no node can ever add a sample again: with the label variance at {variance:,.6g}, every S* is 0 under"
        f" V = {limit:,.6g}. Give a larger variance_limit, or data in which the nodes share labels."
    )


def stuck_by_share(held: NDArray[np.int64], share: float) -> str | None:
    """Why a fixed share of what any node holds never comes to a sample."""
    if np.rint(share * held).any():
        return None
    return f"no node can ever train: {share:g} of what any node holds of a label is less than one sample."


def _label_variances(counts: NDArray[np.int64]) -> Reals:
    """The variance of every row; rows that differ in their order alone come out equal, so that ties are ties."""
    # From a whole number near the mean all sums are of whole numbers, and so exact in any order.
    deviation = counts - np.rint(counts.mean(axis=1, keepdims=True))
    labels = counts.shape[1]
    spread: Reals = np.vecdot(deviation, deviation) / labels - (deviation.sum(axis=1) / labels) ** 2
    return spread


def thinned(samples: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Rows of samples, each with at most `most` in all, in the proportions they had."""
    totals = samples.sum(axis=1, keepdims=True)
    exact = samples * (most / np.maximum(totals, 1))
    cut = np.floor(exact).astype(np.int64)
    left = most - cut.sum(axis=1, keepdims=True)
    # What rounding down left over goes to the largest fractions; of equal ones to the first label.
    rank = np.argsort(np.argsort(-(exact - cut), axis=1, kind="stable"), axis=1, kind="stable")
    cut = np.minimum(cut + (rank < left), samples)
    return np.where(totals > most, cut, samples)


def who(node: NodeId, holder: NodeId) -> str:
    """The subject of a reason."""
    return f"Node {node} keeps the model and" if node == holder else f"Node {node}"


def counted(samples: int) -> str:
    """The object of a reason."""
    return "1 sample" if samples == 1 else f"{samples:,} samples"

"""The learner of one real site: weights come and go as safetensors files.

What a site has drawn so far belongs to the model, not to the site: after a takeover the model goes on from older
weights, and so must the draws. The counts therefore travel inside the file, as `drawn`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from tramfl.config import Scenario
from tramfl.draws import generator
from tramfl.learning.app import App, app_of
from tramfl.learning.chance import Purpose
from tramfl.learning.data.own import AnyData
from tramfl.learning.data.partition import NodeShare, divide, node_count, whole_share
from tramfl.learning.model.weights import about
from tramfl.learning.training.learner import Learner, TestScores, build_learner, data_of, use_threads
from tramfl.notation import BadInput, Counts, Digest, NodeId

_DRAWN = "drawn"
_WARM_UP = 2
"""Trainings before one is timed: the first ones load what the next ones find."""


@dataclass(frozen=True)
class Made:
    """Weights that came into being."""

    digest: Digest
    size: int
    seconds: float
    diverged: bool = False
    """Whether they come from a training without a finite loss."""


class SiteLearner:
    """Trains and scores models at one site."""

    def __init__(self, learner: Learner, node: NodeId) -> None:
        self._learner = learner
        self._node = node
        self.labels = learner.labels
        self.held: tuple[int, ...] = tuple(learner.held[node].tolist())
        self.cost = learner.cost
        self.base = learner.base
        """SHA-256 of what does not travel and must be the same at every site; None where everything travels."""

    def write_initial(self, to: Path) -> Made:
        """w_0: a function of the run's seed, so that every site makes the same."""
        return self._write(self._learner.initial(), to)

    def train(self, parent: Path, samples: Sequence[int], round_: int, to: Path) -> Made:
        """Step 4 at this site."""
        began = time.perf_counter()
        content = _read(parent)
        before = self._learner.restore(content, _drawn(content, self._learner.held.shape, parent))
        child = self._learner.train(self._node, before, tuple(samples), round_)
        made, diverged = self._write(child, to), self._learner.diverged(child)
        for digest in (before, child):
            self._learner.discard(digest)
        return Made(made.digest, made.size, time.perf_counter() - began, diverged)

    def scores(self, weights: Path, targets: Sequence[float]) -> TestScores:
        """How good a model is, on this site's test samples and on those it keeps aside."""
        content = _read(weights)
        digest = self._learner.restore(content, _drawn(content, self._learner.held.shape, weights))
        found = self._learner.scores(digest, self._node, targets)
        self._learner.discard(digest)
        return found

    def calibrate(self, samples: int = 64) -> float:
        """FLOPS of this machine, from a short training that leaves no trace."""
        label = int(np.argmax(self.held))
        counts = [0] * len(self.held)
        counts[label] = min(samples, self.held[label])
        if not counts[label]:
            return 0.0
        seconds = 0.0
        for _ in range(_WARM_UP + 1):
            began = time.perf_counter()
            self._learner.discard(self._learner.train(self._node, self._learner.initial(), tuple(counts), 0))
            seconds = time.perf_counter() - began
        return counts[label] * self.cost.flops_per_sample / seconds

    def _write(self, digest: Digest, to: Path) -> Made:
        counts = json.dumps(self._learner.drawn(digest).tolist(), separators=(",", ":"))
        content = self._learner.weights(digest, about={_DRAWN: counts})
        to.write_bytes(content)
        return Made(hashlib.sha256(content).hexdigest(), len(content), 0.0)


def build_site_learner(
    scenario: Scenario,
    *,
    node: NodeId,
    nodes: int,
    name: str,
    app: App | None = None,
    share: int | None = None,
    data_dir: Path | None = None,
    threads: int | None = None,
) -> SiteLearner:
    """The learner of site `node`: with all its own data, or with one share of a data set that is only divided."""
    if threads is not None:
        use_threads(threads)
    app = app or app_of(scenario)
    dataset = data_of(scenario, app, data_dir, site=name)
    if app.data is None:
        mine = _dealt(scenario, dataset, node if share is None else share, name)
    else:
        partition = scenario.partition
        if dataset.validation is not None:
            partition = replace(partition, validation_share=0.0)
        mine = whole_share(dataset.strata, partition)
    nothing = np.zeros(0, dtype=np.int64)
    shares = [NodeShare(nothing, nothing)] * nodes
    shares[node] = mine
    return SiteLearner(build_learner(scenario, data_dir, app=app, dataset=dataset, shares=shares), node)


def _dealt(scenario: Scenario, dataset: AnyData, place: int, name: str) -> NodeShare:
    """Share `place` of a data set, the same as a simulation of the scenario deals out."""
    partition = scenario.partition
    if place >= node_count(partition):
        raise BadInput(
            f"partition.layout = {partition.layout!r} divides the data among {node_count(partition)} nodes, and site"
            f" {name!r} wants share {place}; set run.partition.nodes, or `share` or `app` in its site.toml."
        )
    rng = generator(scenario.seed, Purpose.DIVIDE)
    return divide(dataset.strata, partition, rng, dataset.node_of_sample)[place]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _drawn(content: bytes, shape: tuple[int, ...], source: Path) -> Counts:
    """The counts in a file; hostile ones are refused, since they would pick samples."""
    try:
        counts = np.array(json.loads(about(content)[_DRAWN]))
    except (KeyError, ValueError, RecursionError, BadInput):
        raise BadInput(f"{source} does not say what was drawn on the way to it.") from None
    if counts.shape != shape or counts.dtype.kind not in "iu" or counts.min(initial=0) < 0:
        raise BadInput(f"{source}: what was drawn must be {shape} whole numbers from 0.")
    return counts.astype(np.int64)

"""The learner of one real site: weights come and go as safetensors files.

What a site has drawn so far belongs to the model, not to the site: after a takeover the model goes on from older
weights, and so must the draws. The counts therefore travel inside the file, as `drawn`: by the
name of each site, how many samples of each label it has trained. A site that joins later finds no counts of its own.

Where the run codes what travels, the file is coded, and names the digest of its reference: a plain file of first
weights in the site's folder of references. New weights are coded against the reference of those they come from. Where
the read-out is a mean, a second file that never travels has the mean and what it is formed from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, convert
from msgspec.structs import replace

from tramfl.config import Acceptance, Scenario
from tramfl.draws import generator
from tramfl.learning.app import App, app_of
from tramfl.learning.chance import Purpose
from tramfl.learning.data.own import AnyData
from tramfl.learning.data.partition import NodeShare, divide, node_count, whole_share
from tramfl.learning.model.coded_files import MADE_WITH, REFERENCE, ROUND, reference_path
from tramfl.learning.model.weights import about
from tramfl.learning.threads import use_threads
from tramfl.learning.training.building import build_learner, data_of
from tramfl.learning.training.learner import Learner, TestScores
from tramfl.notation import BadInput, Counts, Digest, NodeId

_DRAWN = "drawn"
MOST_DRAWN = 1 << 48
"""Samples of one label that a site can have drawn; a sum over all sites is still a whole number of 64 bits."""
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
    losses: tuple[float, float] | None = None
    """Of the weights before and of these, on the samples that the site keeps aside; None where not wanted."""
    reference: Digest | None = None
    """What they are coded against; None where they are plain."""
    change: float | None = None
    """The L2 norm of the difference to the weights before; None where not wanted."""


class Checked(NamedTuple):
    """What a site finds about weights that it was sent."""

    loss: float | None
    """On the samples that the site keeps aside; None where it keeps none."""
    change: float | None = None
    """The L2 norm of the difference to the weights that the site trained from last; None where not wanted."""
    since: int = 0
    """The round of those weights."""


class SiteLearner:
    """Trains and scores models at one site."""

    def __init__(
        self,
        learner: Learner,
        node: NodeId,
        name: str,
        *,
        references: Path | None = None,
        judges: Acceptance | None = None,
        stops: bool = False,
    ) -> None:
        """`references` is a folder with a plain file for each reference, named by its digest.

        `judges`: what weights are judged by; every training then shows the losses before and after it. `stops`:
        a training without a finite loss fails.
        """
        self._stops = stops
        self._learner = learner
        self._node, self._name = node, name
        self._judges = judges is not None
        self._measures = judges is not None and judges.max_change_ratio is not None
        self._last: tuple[Digest, int] | None = None
        """What this site trained from last, and its round; kept only to measure changes."""
        self._references = references
        self._reference: Digest | None = None
        self.labels = learner.labels
        self.held: tuple[int, ...] = tuple(learner.held[node].tolist())
        self.cost = learner.cost
        self.base = learner.base
        """SHA-256 of what does not travel and must be the same at every site; None where everything travels."""

    def write_initial(self, to: Path) -> Made:
        """w_0: a function of the run's seed, so that every site makes the same. Its plain file is the reference."""
        initial = self._learner.initial()
        if self._learner.is_coded:
            plain = self._learner.weights(initial)
            self._reference = hashlib.sha256(plain).hexdigest()
            if self._references is not None:
                self._references.mkdir(parents=True, exist_ok=True)
                write_atomically(reference_path(self._references, self._reference), plain)
        return self._write(initial, {}, to)

    def train(self, parent: Path, samples: Sequence[int], round_: int, to: Path, readout: Path | None = None) -> Made:
        """Step 4 at this site. `readout` is where the site keeps the mean that is tested, if the run tests one."""
        began = time.perf_counter()
        before = self._take_up(parent, readout)
        child = self._learner.train(self._node, before, tuple(samples), round_)
        if self._stops and self._learner.diverged(child):
            raise BadInput(
                f"round {round_}: the training loss at {self._name} is {self._learner.training_loss(child)}; the"
                ' learning rate may be too high (training.divergence = "stop").'
            )
        counts = _drawn(_read(parent), len(self.held), parent)
        counts[self._name] = self._learner.drawn(child)[self._node].tolist()
        made, diverged = self._write(child, counts, to), self._learner.diverged(child)
        if readout is not None and not self._learner.tests_newest:
            metadata = {MADE_WITH: made.digest, ROUND: str(round_)}
            write_atomically(readout, self._learner.remembered(child, metadata))
        seconds = time.perf_counter() - began
        losses = self._losses(before, child) if self._judges else None
        change = self._learner.distance(before, child) if self._measures else None
        self._learner.discard(child)
        self._forget(before, round_ - 1)
        return dataclasses.replace(made, seconds=seconds, diverged=diverged, losses=losses, change=change)

    def check(self, weights: Path) -> Checked:
        """What there is to find about weights that were sent here."""
        digest = self._take_up(weights, None)
        loss = self._learner.validation_loss(digest, self._node)
        last, since = self._last or (None, 0)
        change = None if last is None else self._learner.distance(last, digest)
        if digest != last:
            self._learner.discard(digest)
        return Checked(loss, change, since)

    def _forget(self, parent: Digest, round_: int) -> None:
        """Drop weights that were trained from, but where changes are measured: then those before them."""
        if not self._measures:
            self._learner.discard(parent)
            return
        if self._last is not None and self._last[0] != parent:
            self._learner.discard(self._last[0])
        self._last = parent, round_

    def _losses(self, before: Digest, after: Digest) -> tuple[float, float] | None:
        found = [self._learner.validation_loss(digest, self._node) for digest in (before, after)]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def scores(self, weights: Path, targets: Sequence[float], readout: Path | None = None) -> TestScores:
        """How good a model is, on this site's test samples and on those it keeps aside."""
        digest = self._take_up(weights, readout)
        found = self._learner.scores(digest, self._node, targets)
        if self._last is None or digest != self._last[0]:
            self._learner.discard(digest)
        return found

    def _take_up(self, weights: Path, readout: Path | None) -> Digest:
        """The model in a file, with what this site remembers of the models that passed through it."""
        content = _read(weights)
        if self._learner.is_coded:
            self._use_reference(about(content).get(REFERENCE), weights)
        digest = self._learner.restore(content, self._table(_drawn(content, len(self.held), weights)))
        if readout is not None and not self._learner.tests_newest and readout.exists():
            remembered = _read(readout)
            self._learner.recall(digest, remembered, own=about(remembered).get(MADE_WITH) == digest)
        return digest

    def _use_reference(self, reference: Digest | None, source: Path) -> None:
        """Code and decode against the reference that a file names."""
        if reference is None or reference == self._reference:
            return
        path = None if self._references is None else reference_path(self._references, reference)
        if path is None or not path.exists():
            raise BadInput(f"{source} is coded against {reference[:64]!r}, which is not at this site.")
        self._learner.use_reference(_read(path))
        self._reference = reference

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

    def _table(self, counts: dict[str, list[int]]) -> Counts:
        """Counts as the learner has them: this site in its row, and all others together in the last."""
        table = np.zeros(self._learner.held.shape, dtype=np.int64)
        for name, drawn in counts.items():
            table[self._node if name == self._name else -1] += drawn
        return table

    def _write(self, digest: Digest, counts: dict[str, list[int]], to: Path) -> Made:
        said = json.dumps(counts, separators=(",", ":"), sort_keys=True)
        if self._learner.is_coded and self._reference is not None:
            content = self._learner.coded_weights(digest, self._reference, {_DRAWN: said})
        else:
            content = self._learner.weights(digest, about={_DRAWN: said}, with_passed=False)
        to.write_bytes(content)
        return Made(hashlib.sha256(content).hexdigest(), len(content), 0.0, reference=self._reference)


def build_site_learner(
    scenario: Scenario,
    *,
    node: NodeId,
    name: str,
    app: App | None = None,
    share: int | None = None,
    data_dir: Path | None = None,
    threads: int | None = None,
    references: Path | None = None,
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
    # The last place stands for all other sites.
    shares = [NodeShare(nothing, nothing)] * (node + 2)
    shares[node] = mine
    learner = build_learner(scenario, data_dir, app=app, dataset=dataset, shares=shares)
    stops = scenario.training.divergence == "stop"
    return SiteLearner(learner, node, name, references=references, judges=scenario.accept, stops=stops)


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


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash it has the old content or the new."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _drawn(content: bytes, labels: int, source: Path) -> dict[str, list[int]]:
    """The counts in a file; hostile ones are refused, since they would pick samples."""
    try:
        counts = convert(
            json.loads(about(content)[_DRAWN]), dict[str, list[Annotated[int, Meta(ge=0, le=MOST_DRAWN)]]]
        )
    except (KeyError, ValueError, RecursionError, BadInput):
        raise BadInput(f"{source} does not say what each site has drawn on the way to it.") from None
    if any(len(drawn) != labels for drawn in counts.values()):
        raise BadInput(f"{source} counts what was drawn of other labels than the {labels} there are.")
    return counts

"""From a scenario to what a run needs: who holds what, what a sample costs, and who trains.

PyTorch is imported only where a run trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from tramfl.config import Scenario
from tramfl.draws import generator
from tramfl.exchange import rule_named
from tramfl.learning.app import App, app_of
from tramfl.learning.chance import Purpose
from tramfl.learning.data.datasets import NAMES, Dataset, data_folder
from tramfl.learning.data.fingerprint import fingerprint
from tramfl.learning.data.own import AnyData, load_data
from tramfl.learning.data.partition import LABEL_COUNTS, PAPER_LAYOUTS, divide, held_counts, share_counts
from tramfl.notation import BadInput, Counts, Digest, ModelCost, NodeId
from tramfl.record import Scores
from tramfl.simulation.experiment import Setting

if TYPE_CHECKING:
    from tramfl.learning.training.learner import Learner, TestScores
    from tramfl.learning.training.peers import PeerLearner


HELD_BACK = "held-back"
"""`exchange.shared`: the samples that the nodes keep aside."""


_SHARES = {"float32": 1.0, "float16": 1 / 2, "int8": 1 / 4, "int4": 1 / 8}
"""What a coded model takes of a float32 one, up to scales: without a network, their number is not known."""


def scheduling_only(scenario: Scenario) -> Setting:
    """The setting of a run that trains nothing: it needs no data files, for their label counts are known."""
    if scenario.partition.held is None and scenario.dataset not in LABEL_COUNTS:
        known = ", ".join(LABEL_COUNTS)
        raise BadInput(
            f"without training only data sets with known label counts will do ({known}), or a table of counts:"
            " partition.held."
        )
    cost = scenario.cost
    if cost.flops_per_sample is None or cost.model_bits is None:
        raise BadInput("without training the cost cannot be computed: set cost.flops_per_sample and cost.model_bits.")
    held, names = held_by_nodes(scenario)
    return Setting(held, ModelCost(cost.flops_per_sample, cost.model_bits * _SHARES[scenario.transit.codec]), names)


def held_by_nodes(scenario: Scenario, data_dir: Path | None = None) -> tuple[Counts, tuple[str, ...]]:
    """l_ic and the labels' names; the data are loaded only where their label counts are not known."""
    if scenario.partition.held is not None:
        return held_from_file(Path(scenario.partition.held))
    app = app_of(scenario)
    if app.data is None and scenario.dataset in LABEL_COUNTS:
        counts = LABEL_COUNTS[scenario.dataset]
        names = tuple(str(label) for label in range(len(counts)))
        if scenario.partition.layout in PAPER_LAYOUTS:
            return held_counts(counts, scenario.partition), names
        # Who holds how many follows from the counts alone, in whatever order the labels come.
        labels, split = np.repeat(np.arange(len(counts)), counts), None
    else:
        data = app.dataset(data_dir=data_dir, seed=scenario.seed) or load_data(
            scenario.dataset, data_folder(data_dir)
        )
        labels, names, split = data.strata, data.strata_names, data.node_of_sample
    shares = divide(labels, scenario.partition, generator(scenario.seed, Purpose.DIVIDE), split)
    return share_counts(shares, labels, len(names)), names


def held_from_file(path: Path) -> tuple[Counts, tuple[str, ...]]:
    """l_ic and the labels' names from a CSV file: a row a node, a column a label, names on top if any."""
    try:
        rows = [line.split(",") for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"partition.held: {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"partition.held: {path} is not UTF-8 text.") from None
    names = tuple(cell.strip().strip('"') for cell in rows[0]) if rows else ()
    has_names = not all(cell.isdecimal() for cell in names)
    if has_names and any(cell.isdecimal() for cell in names):
        raise BadInput(f"partition.held: {path}, row 1, mixes counts and names: give one name or one count a label.")
    counts = rows[1:] if has_names else rows
    for number, row in enumerate(counts, start=2 if has_names else 1):
        if len(row) != len(names) or not all(cell.strip().isdecimal() for cell in row):
            raise BadInput(
                f"partition.held: {path}, row {number}, must have {len(names)} whole counts, one for each label."
            )
    if not counts:
        raise BadInput(f"partition.held: {path} has no row of counts; give one for each node.")
    held = np.array([[int(cell) for cell in row] for row in counts], dtype=np.int64)
    return held, names if has_names else tuple(str(label) for label in range(len(names)))


class _Judge:
    """The learner's scores as a row has them."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def scores(self, digest: Digest, node: NodeId, targets: Sequence[float]) -> Scores:
        """Off the virtual clock."""
        return as_scores(self._learner.scores(digest, node, targets))

    def diverged(self, digest: Digest) -> bool:
        """Whether the training that made a model had no finite loss."""
        return self._learner.diverged(digest)


class _Peers:
    """A learner of all nodes' models, with its scores as a row has them."""

    def __init__(self, learner: PeerLearner) -> None:
        self._learner, self.outputs = learner, learner.outputs
        self.do, self.discard = learner.do, learner.discard
        self.saved, self.delivered, self.close = learner.saved, learner.delivered, learner.close

    def score(self, models: Sequence[tuple[Digest, NodeId]], targets: Sequence[float]) -> list[Scores]:
        """Off the virtual clock."""
        return [as_scores(found) for found in self._learner.score(models, targets)]


def as_scores(found: TestScores) -> Scores:
    """A learner's scores as a row has them."""
    return Scores(found.test_accuracy, found.test_loss, found.validation_loss, found.metrics or UNSET)


def with_training(
    scenario: Scenario,
    data_dir: Path | None = None,
    *,
    app: App | None = None,
    report: Callable[[str, int, int | None], None] | None = None,
    threads: int | None = None,
    processes: int = 1,
) -> tuple[Setting, Learner]:
    """The setting of a run that trains, and its learner."""
    if scenario.partition.held is not None:
        raise BadInput("partition.held is a table of counts without data: add --no-training, or leave the key out.")
    try:
        from tramfl.learning.threads import use_threads
        from tramfl.learning.training.building import build_learner, data_of
    except ImportError as error:
        raise BadInput(
            f"training needs {error.name}: install it with pip install 'tramfl[torch]', or add --no-training."
        ) from None
    if threads is not None:
        use_threads(threads)
    brought = app is not None  # the caller's own objects are not at hand in another process
    app = app or app_of(scenario)
    data = data_of(scenario, app, data_dir, report=report)
    peers: _Peers | None = None
    if scenario.keeps_models:
        from tramfl.learning.training.peers import PeerLearner

        learner = build_learner(at_its_rate(scenario), data_dir, app=app, dataset=data, kind=PeerLearner)
        assert isinstance(learner, PeerLearner)
        assert scenario.exchange is not None
        if getattr(rule_named(scenario.exchange, len(learner.held)), "shares_samples", False):
            source = scenario.exchange.shared
            learner.share(None if source == HELD_BACK else _to_share(source, data, data_dir, report))
        peers = _Peers(learner)
        if processes > 1 and not brought:
            from tramfl.learning.training.crew import Crew

            learner.crew = Crew(processes, at_its_rate(scenario), data_dir, threads)
    else:
        learner = build_learner(scenario, data_dir, app=app, dataset=data)
    # The data sets known by name are checked when they are fetched, and are the same everywhere.
    known = app.data is None and scenario.dataset in NAMES
    setting = Setting(
        learner.held,
        learner.cost,
        learner.labels,
        learner,
        _Judge(learner),
        learner.initial(),
        peers,
        None if known else fingerprint(data),
    )
    return setting, learner


def _to_share(
    source: str, data: AnyData, data_dir: Path | None, report: Callable[[str, int, int | None], None] | None
) -> AnyData:
    """The data that `exchange.shared` names; BadInput where they are those of the test."""
    try:
        found = load_data(source, data_folder(data_dir), report=report)
    except BadInput as error:
        raise BadInput(f"exchange.shared: {error}") from None
    if isinstance(found, Dataset) and isinstance(data, Dataset):
        tested = {image.tobytes() for image in data.test_images}
        same = tested.intersection(image.tobytes() for image in found.train_images)
        # Data sets of photographs have a few pictures in both parts.
        if len(same) > len(tested) / 100:
            raise BadInput(
                f"exchange.shared = {source!r} has {len(same):,} of the {len(tested):,} test inputs for training,"
                f" and the test set is never shared; name other data, or {HELD_BACK}."
            )
    return found


def at_its_rate(scenario: Scenario) -> Scenario:
    """The scenario with the learning rate of its method."""
    rate = scenario.exchange.rate if scenario.exchange is not None else 1.0
    training = replace(scenario.training, learning_rate=scenario.training.learning_rate * rate)
    return replace(scenario, training=training)


def torch_left_alone() -> AbstractContextManager[None]:
    """The caller's own work with PyTorch goes on as it was."""
    try:
        from tramfl.learning.threads import threads_as_they_were
    except ImportError:
        return nullcontext()  # a run that trains reports that it is missing
    return threads_as_they_were()

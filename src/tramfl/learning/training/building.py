"""The learner of a scenario: its data, its network, and what the user's app brings in their place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tramfl.config import Scenario
from tramfl.draws import whole_seed
from tramfl.learning.app import App, app_of
from tramfl.learning.chance import Purpose
from tramfl.learning.data.datasets import data_folder
from tramfl.learning.data.download import Report
from tramfl.learning.data.own import AnyData, load_data
from tramfl.learning.data.partition import NodeShare
from tramfl.learning.model.networks import build_network, network_for
from tramfl.learning.seeding import seeded_everywhere
from tramfl.learning.training.learner import Learner


def build_learner(
    scenario: Scenario,
    data_dir: Path | None = None,
    *,
    app: App | None = None,
    dataset: AnyData | None = None,
    shares: Sequence[NodeShare] | None = None,
    download: bool = True,
    report: Report | None = None,
    kind: type[Learner] | None = None,
) -> Learner:
    """The learner of a scenario; what `app`, `dataset` and `shares` bring comes before what the scenario says."""
    app = app or app_of(scenario)
    if dataset is None:
        dataset = data_of(scenario, app, data_dir, download=download, report=report)
    data = dataset
    training = scenario.training
    shape = _input_shape(data.input_shape, training.image_size)
    name = training.network
    if app.model is None and name == "auto":
        name = network_for(data.name, shape)
    module = build_network(
        name,
        classes=data.outputs,
        input_shape=shape,
        weights=Path(training.weights).expanduser() if training.weights else None,
        seed=whole_seed(scenario.seed, Purpose.INITIAL),
        own=app.model,
    )
    return (kind or Learner)(scenario, data, module, shares, app)


def data_of(
    scenario: Scenario,
    app: App,
    data_dir: Path | None = None,
    *,
    site: str | None = None,
    download: bool = True,
    report: Report | None = None,
) -> AnyData:
    """The data that the app brings, or else the scenario's; what their code draws follows from the seed."""
    brought = app.dataset(site, data_dir, scenario.seed)
    if brought is not None:
        return brought
    with seeded_everywhere(whole_seed(scenario.seed, Purpose.OWN_DATA)):
        found = load_data(scenario.dataset, data_folder(data_dir), download=download, report=report)
        return app.balanced(found)


def _input_shape(shape: Any, image_size: int | None) -> Any:
    if image_size is None or not isinstance(shape, tuple) or len(shape) != 3:
        return shape
    return (shape[0], image_size, image_size)

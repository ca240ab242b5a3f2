"""What a user brings: model, data and how to train, as one object that simulation and real sites take alike.

    app = tramfl.App(model=Forecaster, data=readings, loss=functional.mse_loss, metrics=["mae"])

Everything is optional; what is left out is as the scenario says. `data` may be a function: a real site calls it with
its own name (`data(site="hospital-a")`) and trains on all it gives; a simulation calls it without a name and divides
what it gives. torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tramfl.config import Scenario
from tramfl.draws import whole_seed
from tramfl.learning.chance import Purpose
from tramfl.learning.data.datasets import Dataset
from tramfl.learning.data.own import AnyData, Data
from tramfl.notation import BadInput
from tramfl.references import call_with_known, referred, users_code


@dataclass(frozen=True)
class App:
    """A model, data, and how the one is trained on the other."""

    model: Any = None
    """A torch.nn.Module, or what makes one from `classes` and `input_shape`; None: as the scenario says."""
    data: Any = None
    """A Data or Dataset, or what gives one from `site` and `data_dir`; None: as the scenario says."""
    loss: Any = None
    """(outputs, targets) -> a scalar; None: cross-entropy."""
    optimizer: Any = None
    """(parameters) -> a torch optimiser, or several; None: the scenario's."""
    augment: Any = None
    """(inputs) -> inputs, on a batch of training samples; what it draws follows from the seed."""
    step: Any = None
    """(model, batch, context) -> loss: the whole training step of a batch; see `training.task.Context`."""
    metrics: Any = None
    """Names of known metrics, or functions (outputs, targets) -> a number by their names."""
    balance: Any = None
    """(sample) -> its stratum, what is balanced; None: the strata of the data, which are its labels by default."""

    @property
    def has_code(self) -> bool:
        """Whether code of the user's runs in training, which may draw random numbers."""
        parts = (self.model, self.loss, self.augment, self.step)
        return any(part is not None for part in parts) or callable(self.data)

    def dataset(self, site: str | None = None, data_dir: Path | None = None, seed: int = 0) -> AnyData | None:
        """The data, of one site or of all; None where the scenario's are meant.

        What the user's function draws from torch, NumPy or `random` follows from `seed`.
        """
        given = self.data
        if callable(given) and not isinstance(given, Dataset | Data):
            with _seeded(whole_seed(seed, Purpose.OWN_DATA)), users_code("app: data"):
                given = call_with_known(given, site=site, data_dir=data_dir)
        if isinstance(given, Mapping) and {"train", "test"} <= given.keys():
            given = Data(given["train"], given["test"], given.get("validation"))
        if self.data is not None and not isinstance(given, Dataset | Data):
            raise BadInput(
                f"the data gave a {type(given).__name__}, not a tramfl.Data(train=..., test=...) or a Dataset."
            )
        return given if given is None or self.balance is None else self.balanced(given)

    def balanced(self, data: AnyData) -> AnyData:
        """`data` with the strata that `balance` gives; the same data where there is no such function."""
        if self.balance is None:
            return data
        if not callable(self.balance):
            raise BadInput(f"app: balance is a {type(self.balance).__name__}, not a function.")
        if isinstance(data, Data):
            return data.balanced_by(self.balance)
        pairs = Data((data.train_images, data.train_labels), (data.test_images, data.test_labels), name=data.name)
        strata = pairs.balanced_by(self.balance)
        return replace(data, balanced=(strata.strata, strata.strata_names))


def _seeded(seed: int) -> AbstractContextManager[None]:
    try:
        from tramfl.learning.seeding import seeded_everywhere  # noqa: PLC0415 - it imports torch
    except ImportError:
        return nullcontext()
    return seeded_everywhere(seed)


def app_of(scenario: Scenario) -> App:
    """The app that a scenario names, or one that leaves everything to the scenario."""
    return App() if scenario.app is None else app_named(scenario.app)


def app_named(reference: str) -> App:
    """The app that `package.module:app` names."""
    found = referred(reference, "app")
    if not isinstance(found, App):
        raise BadInput(f"app = {reference!r} is a {type(found).__name__}, not a tramfl.App(model=..., data=...).")
    return found

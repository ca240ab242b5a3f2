"""What a user brings: a model and data, as one object that simulation and real sites take alike. No torch.

    app = tramfl.App(model=Forecaster, data=readings)

`model` is a module or makes one; `data` is a `Dataset` or gives one. A real site calls it with its own name
(`data(site="hospital-a")`) and trains on all it gives; a simulation calls it without and divides what it gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tramfl.learning.data.datasets import Dataset
from tramfl.notation import BadInput
from tramfl.references import call_with_known, referred


@dataclass(frozen=True)
class App:
    """A model and data."""

    model: Any = None
    """A torch.nn.Module, or what makes one from `classes` and `input_shape`; None: as the scenario says."""
    data: Any = None
    """A Dataset, or what gives one from `site` and `data_dir`; None: as the scenario says."""

    def dataset(self, site: str | None = None, data_dir: Path | None = None) -> Dataset | None:
        """The data, of one site or of all; None where the scenario's are meant."""
        if self.data is None or isinstance(self.data, Dataset):
            return self.data
        given = call_with_known(self.data, site=site, data_dir=data_dir) if callable(self.data) else self.data
        if not isinstance(given, Dataset):
            raise BadInput(f"the data gave a {type(given).__name__}, not a tramfl.learning.data.datasets.Dataset.")
        return given


def app_named(reference: str) -> App:
    """The app that `package.module:app` names."""
    found = referred(reference, "app")
    if not isinstance(found, App):
        raise BadInput(f"app = {reference!r} is a {type(found).__name__}, not a tramfl.App(model=..., data=...).")
    return found

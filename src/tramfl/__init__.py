"""tramfl: one model travels between the sites that own the data.

    import tramfl
    result = tramfl.simulate("digits-5-uneven", policy="load-aware", seed=1)
    result.seconds_to(0.9)

The parts have their own homes: `tramfl.scheduling` (the policies and the exact solver), `tramfl.circulation` (the
round machine), `tramfl.simulation`, `tramfl.runtime` (real sites), `tramfl.learning`, `tramfl.reporting`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tramfl.version import __version__

__all__ = ["App", "Comparison", "Data", "Dataset", "Result", "__version__", "compare", "simulate"]

if TYPE_CHECKING:
    from tramfl.learning.app import App
    from tramfl.learning.data.datasets import Dataset
    from tramfl.learning.data.own import Data
    from tramfl.simulation.api import Result, simulate
    from tramfl.study import Comparison, compare

_HOMES = {
    "App": "tramfl.learning.app",
    "Comparison": "tramfl.study",
    "Data": "tramfl.learning.data.own",
    "Dataset": "tramfl.learning.data.datasets",
    "Result": "tramfl.simulation.api",
    "compare": "tramfl.study",
    "simulate": "tramfl.simulation.api",
}


def __getattr__(name: str) -> Any:
    """The public names on demand, so that `import tramfl` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tramfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

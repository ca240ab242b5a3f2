"""tramfl: one model travels between the sites that own the data.

    import tramfl
    result = tramfl.simulate("digits-5-uneven", policy="load-aware", seed=1)
    result.seconds_to(0.9)

The parts have their own homes: `tramfl.scheduling` (the policies and the exact solver), `tramfl.circulation` (the
round machine), `tramfl.simulation`, `tramfl.runtime` (real sites), `tramfl.learning`, `tramfl.reporting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tramfl.version import __version__

__all__ = ["App", "Data", "Dataset", "Result", "__version__", "simulate"]

if TYPE_CHECKING:
    from tramfl.learning.app import App
    from tramfl.learning.data.datasets import Dataset
    from tramfl.learning.data.own import Data
    from tramfl.simulation.api import Result, simulate


def __getattr__(name: str) -> Any:
    """The public names on demand, so that `import tramfl` costs nothing."""
    if name == "App":
        from tramfl.learning.app import App

        return App
    if name == "Data":
        from tramfl.learning.data.own import Data

        return Data
    if name == "Dataset":
        from tramfl.learning.data.datasets import Dataset

        return Dataset
    if name in ("Result", "simulate"):
        from tramfl.simulation import api

        return getattr(api, name)
    raise AttributeError(f"module 'tramfl' has no attribute {name!r}")

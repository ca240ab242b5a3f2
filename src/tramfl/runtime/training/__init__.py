"""The process in which a site trains and tests (`bench.py`), and the site's end of it (`Workshop`).

`Scorer` tests committed weights and notes the scores in the register.
"""

from tramfl.runtime.training.scoring import Scorer, with_scores
from tramfl.runtime.training.workshop import Build, Built, NewWeights, WorkFailed, Workshop

__all__ = ["Build", "Built", "NewWeights", "Scorer", "WorkFailed", "Workshop", "with_scores"]

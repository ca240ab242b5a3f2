"""The process in which a site trains and tests (`bench.py`), and the site's end of it (`Workshop`).

`Scorer` tests committed weights and notes the scores in the register. `Judgement` says which weights are acceptable.
"""

from tramfl.runtime.training.acceptance import Judgement
from tramfl.runtime.training.scoring import Scorer, with_scores
from tramfl.runtime.training.workshop import Build, Built, NewWeights, WorkFailed, Workshop, references_in

__all__ = [
    "Build",
    "Built",
    "Judgement",
    "NewWeights",
    "Scorer",
    "WorkFailed",
    "Workshop",
    "references_in",
    "with_scores",
]

"""The mean that a site tests and delivers in place of weights: a plain file beside them that no other site needs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tramfl.learning.model.coded_files import MADE_WITH, ROUND, RawFile
from tramfl.notation import BadInput
from tramfl.runtime.weights.store import DIGEST, WeightStore, file_digest
from tramfl.runtime.wire import ReadOutFile


def readout_at(store: WeightStore) -> ReadOutFile | None:
    """The mean of a run at this site; None where there is none."""
    try:
        changed = store.readout.stat().st_mtime_ns
        return _read(store.readout, changed)
    except (OSError, BadInput, KeyError, ValueError):
        return None


@lru_cache(2)
def _read(path: Path, changed: int) -> ReadOutFile:
    """The file as it was written at `changed`: hashed once, however often the site is asked."""
    about = RawFile.at(path).about
    weights = about[MADE_WITH]
    if not DIGEST.fullmatch(weights):
        raise BadInput("a read-out belongs to weights with a digest.")
    return ReadOutFile(int(about[ROUND]), weights, file_digest(path))

"""Weights at a site: the store on its disk, what a file of weights must look like, and a file on its way in.

A file is named by its SHA-256 digest; nothing is stored under a name that its content does not have.
"""

from tramfl.runtime.weights.arrival import Arrival, Spoilt, Truncated, Unfit, check_consignment
from tramfl.runtime.weights.manifest import Manifest
from tramfl.runtime.weights.readout import readout_at
from tramfl.runtime.weights.references import References
from tramfl.runtime.weights.store import DIGEST, WeightStore

__all__ = [
    "DIGEST",
    "Arrival",
    "Manifest",
    "References",
    "Spoilt",
    "Truncated",
    "Unfit",
    "WeightStore",
    "check_consignment",
    "readout_at",
]

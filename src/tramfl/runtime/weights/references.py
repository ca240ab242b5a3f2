"""The references at a site: plain files of first weights that coded weights are a difference to.

Every site makes w_0 of its own, and most often all make the same. A site whose PyTorch draws other first weights
fetches the reference of a model that comes to it, once.
"""

from __future__ import annotations

from pathlib import Path

from tramfl.learning.model.coded_files import RawFile, check_coded, reference_path
from tramfl.notation import BadInput, Digest
from tramfl.runtime.weights.manifest import Manifest


class References:
    """A folder of references, and what each must look like."""

    def __init__(self, folder: Path, own: Digest | None) -> None:
        """`own` is the reference that this site has made itself; None where the run codes nothing."""
        self._folder, self._own = folder, own

    def path(self, digest: Digest) -> Path:
        """Where a reference is, or would be. BadInput where `digest` is none."""
        return reference_path(self._folder, digest)

    def named_by(self, weights: Path) -> Digest | None:
        """What a file of weights is coded against, or None; its scales are checked. BadInput where they are wrong."""
        if self._own is None:
            return None
        file = RawFile.at(weights)
        if file.reference is None:
            raise BadInput("the weights do not say what they are coded against.")
        check_coded(file)
        return file.reference

    def check(self, path: Path) -> None:
        """Reject a fetched reference whose tensors are not those of this site's own. Raises BadInput."""
        assert self._own is not None
        if Manifest.of(path).tensors != Manifest.of(self.path(self._own)).tensors:
            path.unlink()
            raise BadInput("the reference has other tensors than this site's model.")

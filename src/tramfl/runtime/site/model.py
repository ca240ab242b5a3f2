"""What a site trains: its model and data as the training process loaded them, and w_0 in a file."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tramfl.circulation.phases import Copy
from tramfl.notation import BadInput, Digest, ModelCost
from tramfl.runtime.training import Built, WorkFailed, Workshop, references_in
from tramfl.runtime.weights import Manifest, References, WeightStore


@dataclass(frozen=True)
class LocalModel:
    """Model and data of this site, loaded."""

    built: Built
    initial: Path
    """w_0: a function of the seed, so every site makes its own."""
    initial_digest: Digest
    manifest: Manifest
    """What weights of this model must look like."""
    references: References
    """What coded weights are a difference to."""

    @property
    def cost(self) -> ModelCost:
        """M and D_M of the model that is really trained and sent."""
        return self.built.cost

    @property
    def base(self) -> Digest | None:
        """SHA-256 of the weights that stay at every site; None where all of them travel."""
        return self.built.base

    @property
    def held(self) -> tuple[int, ...]:
        """l_ic of this site."""
        return self.built.held

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.built.labels

    def put_initial(self, store: WeightStore) -> None:
        """Put w_0 into a run's store, unless it is there."""
        if store.path(self.initial_digest) is None:
            stage = store.scratch()
            shutil.copyfile(self.initial, stage)
            store.put(stage, Copy(self.initial_digest, 0, 1))


async def load_model(workshop: Workshop, folder: Path, site: str) -> LocalModel:
    """Start the training process, which loads model and data, and have it write w_0 to `folder`."""
    initial = folder / "initial.safetensors"
    try:
        built = await workshop.open()
        made = await workshop.make_initial(initial)
    except WorkFailed as error:
        raise BadInput(f"site {site!r}: model and data do not load: {error}.") from None
    references = References(references_in(folder), made.reference)
    return LocalModel(built, initial, made.digest, Manifest.of(initial), references)

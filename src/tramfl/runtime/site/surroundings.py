"""What a driver needs of its site: loads, transfers, and a place to report to. `services.py` implements it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tramfl.circulation import commands as do
from tramfl.circulation.custody import Record
from tramfl.notation import Digest, NodeId, Outlook
from tramfl.runtime.training import NewWeights
from tramfl.runtime.wire import AskLoad, Consignment, Load


class Surroundings(Protocol):
    """What the site does for its driver."""

    def own_load(self) -> float:
        """FLOPS that this site can spare in the next round."""
        ...

    def own_outlook(self) -> Outlook | None:
        """How this site's loads behave, where the policy looks ahead and enough was observed."""
        ...

    async def load_of(self, node: NodeId, ask: AskLoad, seconds: float) -> tuple[Load, float]:
        """What another site can spare, and the bandwidth to it."""
        ...

    async def send(
        self,
        node: NodeId,
        consignment: Consignment,
        path: Path,
        progress: Callable[[int], None],
        slowed: Callable[[float], None],
    ) -> None:
        """Move a model; raises Refusal or Unreachable. The consignment's moment is that of this site's clock.

        `slowed` is called with the seconds that are left, while a hop is slower than predicted.
        """
        ...

    def trained(self, samples: int, seconds: float) -> None:
        """A training of this many samples took `seconds`."""
        ...

    def objection(self, made: NewWeights) -> str | None:
        """Why weights that were trained here may not be committed; None where they may."""
        ...

    def made(self, record: Record, command: do.Train, digest: Digest, rejected: str | None) -> None:
        """Weights were trained here; `rejected` is why they may not be committed, None where they may."""
        ...

    def nudge(self, to: NodeId) -> None:
        """Ask another site to read the record now."""
        ...

    def closed(self, command: do.CloseRound, weights: Path | None) -> None:
        """A round is committed, and its weights are in a file, or not on disk any more."""
        ...

    def broken(self, error: BaseException) -> None:
        """Something failed that no event covers: the site must end."""
        ...

    def superseded(self, place: str) -> None:
        """Another process of this site, at `place`, has joined the federation since: this one must end."""
        ...

    def removed(self) -> None:
        """This site is no member of the federation any more: it must end."""
        ...

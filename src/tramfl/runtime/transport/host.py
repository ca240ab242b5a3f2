"""What the server of a site needs of the site itself, and who calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from tramfl.notation import Digest, NodeId
from tramfl.runtime.weights import Manifest, WeightStore
from tramfl.runtime.wire import Accepted, AskLoad, AskRows, Consignment, Load, Order, OrderResult, Refused, Rows


class Host(Protocol):
    """What a site does for its peers."""

    @property
    def manifest(self) -> Manifest | None:
        """What weights must look like; nothing is received while it is None."""
        ...

    @property
    def store(self) -> WeightStore | None:
        """Where weights go; None before a run has begun, and nothing is received then."""
        ...

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        """What this site can spare. Raises Refusal."""
        ...

    def receiving(self) -> AbstractContextManager[None]:
        """While a model or a probe comes in: the traffic is the federation's own."""
        ...

    async def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Why this model is rejected, or None; asked before a byte of it is sent."""
        ...

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float, since: float
    ) -> Accepted | Refused:
        """A model is in `store.incoming`, verified; returns once it is stored or finally rejected.

        `seconds` is what sending all of it takes, even if some was sent before; 0 where all of it was here already.
        `since` is when the sender asked, on the monotonic clock.
        It comes twice if its sender did not hear the first answer. What is left of `staged` is removed afterwards.
        """
        ...

    async def order(self, who: str, order: Order) -> OrderResult:
        """Carry out an order of the operator or of a site. Raises Refusal."""
        ...

    async def rows(self, who: str, ask: AskRows) -> Rows:
        """Rows of committed rounds. Raises Refusal."""
        ...

    def model_path(self, digest: Digest) -> Path | None:
        """Where these weights are, or None."""
        ...


class Peer(NamedTuple):
    """Who calls."""

    name: str
    number: NodeId | None
    """None for the operator."""

    @property
    def site(self) -> NodeId:
        """The calling site's number; only for methods that the operator may not call."""
        assert self.number is not None
        return self.number

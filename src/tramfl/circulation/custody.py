"""Who holds the model: one small record in a register with compare-and-swap.

The record is the single truth of a run. A node changes it only by a swap that names the revision it read.
Of two nodes that want to change it, one succeeds; the other one's swap is refused and answered with the record.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tramfl.notation import Digest, Ledger, NodeId

Status = Literal["running", "paused", "stopped"]


class Weights(Struct, frozen=True):
    """The newest weights, and the nodes that have them on disk."""

    digest: Digest
    copies: tuple[NodeId, ...]
    since: float = 0.0
    """When they were committed, by the committer's clock."""


class Safe(Struct, frozen=True):
    """The newest weights that at least two nodes have on disk: what no single loss can take."""

    round: int
    digest: Digest
    copies: tuple[NodeId, ...]
    ledger: Ledger
    since: float = 0.0


class Record(Struct, frozen=True):
    """One run: who holds the model, what it is, and what it was trained on."""

    run: str
    epoch: int
    """Incremented by every takeover; swaps under an older epoch are rejected."""
    holder: NodeId | None
    """None when the holder resigned and no node has taken over yet."""
    weights: Weights
    safe: Safe
    ledger: Ledger
    status: Status = "running"
    protocol: int = 1
    """Of the sites that began the run; a site of another protocol does not join it."""

    @property
    def round(self) -> int:
        """Rounds done on this lineage."""
        return self.ledger.round

    @property
    def at_rest(self) -> bool:
        """Whether nothing is left to do: the run is paused or stopped, and its newest weights are safe."""
        return self.status != "running" and self.weights.digest == self.safe.digest


class Versioned(Struct, frozen=True):
    """A record as the register holds it."""

    record: Record
    revision: int


def first_record(run: str, holder: NodeId, digest: Digest, copies: tuple[NodeId, ...], labels: int) -> Record:
    """The record of a run that begins: w_0 lies at `copies`, and `holder` decides the first round."""
    ledger = Ledger.empty(labels)
    return Record(run, 1, holder, Weights(digest, copies), Safe(0, digest, copies, ledger), ledger)


class MemoryRegister:
    """The register of simulations and tests: one record in memory."""

    def __init__(self, record: Record) -> None:
        self._held = Versioned(record, 1)

    def read(self) -> Versioned:
        """The record as it stands."""
        return self._held

    def swap(self, revision: int, record: Record) -> Versioned | None:
        """Replace the record if it still has `revision`; None if it does not."""
        if revision != self._held.revision:
            return None
        self._held = Versioned(record, revision + 1)
        return self._held

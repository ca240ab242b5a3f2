"""Who holds the model: one small record in a register with compare-and-swap.

The record is the single truth of a run. A node changes it only by a swap that names the revision it read.
Of two nodes that want to change it, one succeeds; the other one's swap is refused and answered with the record.
"""

from __future__ import annotations

from itertools import islice
from typing import Literal

from msgspec import Struct

from tramfl.notation import Digest, Ledger, NodeId

Status = Literal["running", "paused", "stopped"]


class Entry(Struct, frozen=True):
    """A node of the list of members. Its number is its place in the list, and is never given to another node."""

    name: str
    address: str | None = ""
    """host:port, as the others reach it; None where the node was removed."""


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
    members: tuple[Entry, ...] = ()
    """Every node that is or was a member, by number."""
    kept: tuple[Safe, ...] = ()
    """Safe weights of earlier rounds that an operator can go back to, oldest first."""
    keep_versions: int = 0
    """How many of them are kept at most ..."""
    keep_every: int = 1
    """... at least this many rounds apart."""

    @property
    def round(self) -> int:
        """Rounds done on this lineage."""
        return self.ledger.round

    @property
    def present(self) -> tuple[NodeId, ...]:
        """The numbers of the nodes that are members now."""
        return tuple([number for number, entry in enumerate(self.members) if entry.address is not None])

    @property
    def versions(self) -> tuple[Safe, ...]:
        """What a rollback can go back to: earlier rounds than the present one, kept or safe, at a member's."""
        found = (*self.kept, self.safe)
        return tuple(v for v in found if v.round < self.round and any(map(self.is_member, v.copies)))

    def kept_after(self, safe: Safe) -> tuple[Safe, ...]:
        """The versions that are kept once `safe` takes the place of the present safe weights."""
        now = self.safe
        if not self.keep_versions or safe.digest == now.digest:
            return self.kept
        if self.kept and now.round < self.kept[-1].round + self.keep_every:
            return self.kept
        return (*self.kept, now)[-self.keep_versions :]

    def is_member(self, node: NodeId) -> bool:
        """Whether a node is a member now."""
        return 0 <= node < len(self.members) and self.members[node].address is not None

    def number_of(self, name: str) -> NodeId | None:
        """The number of the node that has this name; None where no node ever had it."""
        return next((number for number, entry in enumerate(self.members) if entry.name == name), None)

    def name_of(self, node: NodeId | None) -> str | None:
        """The name of a node."""
        return None if node is None else self.members[node].name

    @property
    def _kept_safe(self) -> bool:
        """Whether the safe weights lie at two members, or at the only one: a removed node's copy does not count."""
        present = (entry for entry in self.members if entry.address is not None)
        return sum(map(self.is_member, self.safe.copies)) >= len(list(islice(present, 2)))

    @property
    def newest_is_safe(self) -> bool:
        """Whether the newest weights lie at two members, or at the only one."""
        return self.weights.digest == self.safe.digest and self._kept_safe

    @property
    def unsafe_rounds(self) -> int:
        """Trained rounds that would be lost with the one node that has the newest weights."""
        if not self._kept_safe:
            return self.ledger.trained
        return 0 if self.newest_is_safe else self.ledger.trained - self.safe.ledger.trained

    @property
    def at_rest(self) -> bool:
        """Whether nothing is left to do: the run is paused or stopped, and its newest weights are safe."""
        return self.status != "running" and self.newest_is_safe


class Versioned(Struct, frozen=True):
    """A record as the register holds it."""

    record: Record
    revision: int
    by: str = ""
    """The name of the node that signed it; empty where records are not signed."""
    after: int = 0
    """The revision in whose place it was put; 0 where records are not signed."""


def numbered(nodes: int) -> tuple[Entry, ...]:
    """Members without addresses, as in a simulation."""
    return tuple(Entry(str(number)) for number in range(nodes))


def first_record(
    run: str,
    holder: NodeId,
    digest: Digest,
    copies: tuple[NodeId, ...],
    labels: int,
    members: tuple[Entry, ...] | None = None,
) -> Record:
    """The record of a run that begins: w_0 lies at `copies`, and `holder` decides the first round.

    Without `members`, every node up to the last of `holder` and `copies` is one.
    """
    ledger = Ledger.empty(labels)
    members = numbered(max(holder, *copies) + 1) if members is None else members
    safe = Safe(0, digest, copies, ledger)
    return Record(run, 1, holder, Weights(digest, copies), safe, ledger, members=members)


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

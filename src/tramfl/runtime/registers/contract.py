"""Where the record lives: compare-and-swap, leases, and the rows of committed rounds.

A row is written in the same transaction as the record that commits its round: a round is in the ledger if and only
if its row is here, whichever site dies when. What is known only later (how well the model did) is noted beside it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from tramfl.circulation.custody import Record, Versioned
from tramfl.runtime.registers.records import Records

ABSENT = 0
"""The revision of a record that is not there: swapping it in place begins the first run."""


AGREEMENT = 0
"""The row of round 0 has what the sites of a run have agreed on; it is written with the run's first record."""


class Silent(Exception):
    """The register did not answer in time, or could not: a swap may or may not have been made."""


class LeaseLost(Exception):
    """This node's lease has run out: nothing was changed; `join` again."""


class LeaseTaken(Exception):
    """Another process has taken this node's lease since this one joined: this one may change nothing any more.

    Its text is the place of that process.
    """


class Standing(Struct, frozen=True):
    """The record and who is alive, as of one moment."""

    versioned: Versioned | None
    """None where no run has begun."""
    alive: frozenset[str]
    """The names of the nodes whose lease has not run out."""
    revoked: bytes = b""
    """The list of revoked certificates (`transport.revocations`), signed by the authority; empty where none is."""
    places: dict[str, str] = field(default_factory=dict)
    """Where the process runs that has a node's lease, as far as the lease says."""


class Register(Protocol):
    """The register as one node sees it. Every answer is the newest there is, never one from a stale replica."""

    records: Records
    """How records are signed and checked."""

    async def join(self) -> str | None:
        """Take this node's lease: for the first time in place of any other process's, later only where none has it.

        The place of the process whose lease still ran, where that is another place than this process's; else None.
        Raises LeaseTaken where another process of this node has joined since and its lease lasts, or Silent.
        """
        ...

    async def renew(self) -> None:
        """Make the lease last a full length again. Raises LeaseLost or Silent."""
        ...

    async def leave(self) -> None:
        """Give the lease up: this node is gone, and everybody may know at once."""
        ...

    async def look(self) -> Standing:
        """The record and who is alive. Raises Silent."""
        ...

    async def changed(self, since: Standing, seconds: float) -> Standing:
        """The standing, as soon as it differs from `since`, or as it is when `seconds` have passed. Raises Silent."""
        ...

    async def swap(self, revision: int, record: Record, row: bytes | None = None) -> Versioned | None:
        """Put `record` in place of `revision`; None if the record has another revision by now.

        With `row`, also make it the row of round `record.round` of run `record.run`, both or neither.
        Raises LeaseLost if this node has no lease (nothing was changed), Silent if nobody knows.
        """
        ...

    async def rows(self, run: str, first: int, last: int) -> list[bytes]:
        """The rows of rounds `first` to `last`, in order. Raises Silent."""
        ...

    async def note(self, run: str, round_: int, content: bytes) -> None:
        """Keep something about a round; the last one counts. Raises Silent."""
        ...

    async def notes(self, run: str, first: int, last: int) -> dict[int, bytes]:
        """What was noted about rounds `first` to `last`. Raises Silent."""
        ...

    async def announce_revoked(self, content: bytes) -> None:
        """Put a list of revoked certificates where every node sees it; the last one counts. Raises Silent."""
        ...

    async def close(self) -> None:
        """End all connections; the lease runs out by itself unless given up before."""
        ...

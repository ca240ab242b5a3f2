"""What a node asks its carrier to do.

A carrier is a real site or a simulated world. A command carries all that its carrier needs: no carrier looks into a
phase. The carrier answers a command that has a ticket with an event that carries the same ticket; see events.py.
"""

from __future__ import annotations

from msgspec import Struct

from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Assignment, Copy, Offer, Outcome
from tramfl.notation import Digest, Ledger, Loads, NodeId


class Command(Struct, frozen=True):
    """Something to be done."""


class ReadRecord(Command, frozen=True):
    """Read the register: RecordRead, or RegisterSilent."""

    ticket: int


class Swap(Command, frozen=True):
    """Put `record` in place of `revision`: Swapped, SwapRefused or RegisterSilent."""

    ticket: int
    revision: int
    record: Record
    epoch: int
    """The epoch under which the author acts."""
    outcome: Outcome | None = None
    """What came of the round that this swap commits: its row is written in the same transaction."""


class AskLoads(Command, frozen=True):
    """Ask these nodes for their loads: a LoadReported or a LoadMissing from each, or nothing."""

    ticket: int
    round: int
    nodes: tuple[NodeId, ...]
    """In the order in which to ask them; nodes that were absent come first, as nobody waits for their reports."""


class Decide(Command, frozen=True):
    """Let the policy decide: Decided."""

    ticket: int
    ledger: Ledger
    loads: Loads


class Wake(Command, frozen=True):
    """Woke, after this many seconds; no longer of use once the ticket has been answered."""

    ticket: int
    seconds: float


class SendModel(Command, frozen=True):
    """Send weights: Acknowledged once the receiver has them on disk, or SendFailed."""

    ticket: int
    to: NodeId
    offer: Offer


class CancelSend(Command, frozen=True):
    """Cancel the transfer; what has arrived is kept for later."""

    ticket: int
    overdue: bool = False
    """Whether it took too long."""
    reason: str = ""
    """Why it is given up before that."""


class Train(Command, frozen=True):
    """Train `parent` on the assignment: Trained, or TrainingFailed."""

    ticket: int
    parent: Digest
    round: int
    assignment: Assignment


class CancelTraining(Command, frozen=True):
    """Cancel the training."""

    ticket: int
    overdue: bool = False
    """Whether it took too long."""


class Store(Command, frozen=True):
    """Put weights on disk, durably: Stored, or StoreFailed."""

    ticket: int
    copy: Copy


class Acknowledge(Command, frozen=True):
    """Let the sender know that its model is on disk here."""

    to: NodeId
    ticket: int
    """The sender's."""


class Refuse(Command, frozen=True):
    """Let the sender know that its model was not taken."""

    to: NodeId
    ticket: int
    """The sender's."""
    reason: str


class Discard(Command, frozen=True):
    """Delete weights that the run no longer needs."""

    digests: tuple[Digest, ...]


class CloseRound(Command, frozen=True):
    """A round is committed: write its row."""

    outcome: Outcome
    record: Record


class Nudge(Command, frozen=True):
    """Ask a node to read the record now; it would hear of the change from the register a little later."""

    to: NodeId


class AnswerOrder(Command, frozen=True):
    """An order is carried out, or void, or in doubt."""

    order: int
    record: Record | None
    """The record after the order; None where the register did not answer, so that nobody knows."""


class Depart(Command, frozen=True):
    """This node has no part in the run any more: end the process."""

    release: bool
    """Whether to give the lease up; not where this disk alone may have the newest weights."""
    to: NodeId | None = None
    """The node that was handed the model."""
    superseded: bool = False
    """Whether a later life of this node is the reason."""
    removed: bool = False
    """Whether the reason is that this node is no member."""

"""What a node asks to be done. Imports custody, phases and notation.

Whoever carries a command out answers with an event that bears its ticket; see events.py.
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


class AskLoads(Command, frozen=True):
    """Ask these nodes, me among them, for their loads: a LoadReported from each that answers."""

    ticket: int
    round: int
    nodes: tuple[NodeId, ...]


class Decide(Command, frozen=True):
    """Let the policy decide: Decided."""

    ticket: int
    ledger: Ledger
    loads: Loads


class Wake(Command, frozen=True):
    """Woke, after so many seconds."""

    ticket: int
    seconds: float


class SendModel(Command, frozen=True):
    """Send weights: Acknowledged once the receiver has them on disk, or SendFailed."""

    ticket: int
    to: NodeId
    offer: Offer


class CancelSend(Command, frozen=True):
    """Give the transfer up."""

    ticket: int


class Train(Command, frozen=True):
    """Train `parent` on the assignment: Trained, or TrainingFailed."""

    ticket: int
    parent: Digest
    round: int
    assignment: Assignment


class CancelTraining(Command, frozen=True):
    """Give the training up."""

    ticket: int


class Store(Command, frozen=True):
    """Put weights on disk, durably: Stored, or StoreFailed."""

    ticket: int
    copy: Copy


class Acknowledge(Command, frozen=True):
    """Tell the sender that its model is on disk here."""

    to: NodeId
    ticket: int
    """The sender's."""


class Refuse(Command, frozen=True):
    """Tell the sender that its model was not taken."""

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

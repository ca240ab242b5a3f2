"""What may happen to a node. Imports custody and notation.

Every event says when it happened, by the node's own clock. Events of two kinds:

- answers to a command carry its ticket. An answer to a command that no longer matters is ignored; one to a
  command that was never given, or that does not fit what the node is doing, is an error;
- news (a record seen, a holder lost, a model arrived) may come at any time, late and more than once.
"""

from __future__ import annotations

from msgspec import Struct

from tramfl.circulation.custody import Versioned
from tramfl.circulation.phases import Copy, Offer
from tramfl.notation import Decision, Digest, NodeId


class Event(Struct, frozen=True):
    """Something that happened at time `at`."""

    at: float


class Answer(Event, frozen=True):
    """What came of the command with this ticket."""

    ticket: int


class Started(Event, frozen=True):
    """The process began, with these weights on its disk."""

    copies: tuple[Copy, ...]


class RecordSeen(Event, frozen=True):
    """The register says the record has changed."""

    versioned: Versioned


class HolderLost(Event, frozen=True):
    """The register says the record's holder has let its lease run out, or that there is no holder."""

    versioned: Versioned


class ModelArrived(Event, frozen=True):
    """A peer's model is here, whole and verified, but not on disk yet."""

    sender: NodeId
    offer: Offer
    seconds: float
    """What the transfer took."""


class LoadReported(Answer, frozen=True):
    """A node says what it can spare."""

    node: NodeId
    flops: float
    bandwidth: float
    """From the asking node to this one."""


class Decided(Answer, frozen=True):
    """The policy has decided."""

    decision: Decision


class Woke(Answer, frozen=True):
    """The time asked for is up."""


class Acknowledged(Answer, frozen=True):
    """The receiver has the model on disk."""


class SendFailed(Answer, frozen=True):
    """The transfer broke, or the receiver refused it."""


class Trained(Answer, frozen=True):
    """Training is done; the new weights are in memory."""

    digest: Digest
    seconds: float


class TrainingFailed(Answer, frozen=True):
    """Training ended without weights."""


class Stored(Answer, frozen=True):
    """The weights are on disk, durably."""

    copy: Copy


class StoreFailed(Answer, frozen=True):
    """The weights could not be written, for example because the disk is full."""


class RecordRead(Answer, frozen=True):
    """The record, read on request."""

    versioned: Versioned


class Swapped(Answer, frozen=True):
    """The swap was made; this is the record now."""

    versioned: Versioned


class SwapRefused(Answer, frozen=True):
    """Someone else changed the record first; this is what it says now."""

    versioned: Versioned


class RegisterSilent(Answer, frozen=True):
    """The register did not answer; a swap may or may not have been made."""

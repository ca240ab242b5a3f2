"""What may happen to a node.

Every event says when it happened, by the node's own clock. There are two kinds of events:

- Answers to a command carry its ticket. An answer to a command that no longer matters is ignored. An answer to a
  command that was never given, or that does not fit the node's phase, is an error.
- News (a record seen, a holder lost, a model arrived, an order) may come at any time, late and more than once.
"""

from __future__ import annotations

from msgspec import Struct

from tramfl.circulation.changes import OrderedChange
from tramfl.circulation.custody import Versioned
from tramfl.circulation.phases import Copy, Offer
from tramfl.notation import Decision, Digest, NodeId, Outlook


class Event(Struct, frozen=True, tag=True):
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
    """A peer's model is here, whole and verified, but not on disk yet; `at` is when its last byte came."""

    sender: NodeId
    offer: Offer
    seconds: float
    """What the transfer took."""


class Ordered(Event, frozen=True):
    """An operator wants the run paused, resumed, stopped or rolled back, or a member added or removed."""

    order: int
    """The carrier's number for it; `AnswerOrder` brings it back."""
    change: OrderedChange
    persistent: bool = False
    """Whether the node retries while the register is silent, instead of answering that it does not know."""


class LeaveOrdered(Event, frozen=True):
    """The process is about to end: hand the model on first."""


class Superseded(Event, frozen=True):
    """The register says that a later life of this node has joined: this one may change nothing any more."""


class LoadReported(Answer, frozen=True):
    """A node reports what it can spare."""

    node: NodeId
    flops: float
    bandwidth: float
    """From the asking node to this one."""
    outlook: Outlook | None = None
    """How the node's loads behave, where it says so."""


class LoadMissing(Answer, frozen=True):
    """A node refused to report its load, or could not be reached: there is no report to wait for."""

    node: NodeId


class Decided(Answer, frozen=True):
    """The policy has decided."""

    decision: Decision


class Woke(Answer, frozen=True):
    """The time asked for is up."""


class Acknowledged(Answer, frozen=True):
    """The receiver has the model on disk."""


class SendFailed(Answer, frozen=True):
    """The transfer broke, or the receiver refused it."""

    not_accepted: bool = False
    """Whether the receiver checked the weights, and refused them for what they are."""


class SendSlowed(Answer, frozen=True):
    """The transfer is slower than predicted: at its present pace it needs this many seconds more."""

    seconds_left: float


class Trained(Answer, frozen=True):
    """Training is done; the new weights are in memory."""

    digest: Digest
    seconds: float


class Rejected(Answer, frozen=True):
    """Training is done, and its weights are not acceptable: their loss is no finite number, or far too high."""

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
    """Another node changed the record first; this is what it says now."""

    versioned: Versioned


class RegisterSilent(Answer, frozen=True):
    """The register did not answer; a swap may or may not have been made."""


AnyEvent = (
    Started
    | RecordSeen
    | HolderLost
    | ModelArrived
    | Ordered
    | LeaveOrdered
    | Superseded
    | LoadReported
    | LoadMissing
    | Decided
    | Woke
    | Acknowledged
    | SendFailed
    | SendSlowed
    | Trained
    | Rejected
    | TrainingFailed
    | Stored
    | StoreFailed
    | RecordRead
    | Swapped
    | SwapRefused
    | RegisterSilent
)
"""Every kind of event."""

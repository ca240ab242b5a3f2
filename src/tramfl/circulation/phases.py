"""What a node is doing, and what it knows.

A phase owns the fields that only make sense in it. A phase with a ticket waits for the answer that carries it.
`machine.py` has the table of phases and events, and `docs/design.md` the diagram that is generated from it.
"""

from __future__ import annotations

from msgspec import Struct

from tramfl.circulation.changes import Change, MarkSafe, OrderedChange
from tramfl.circulation.custody import Record, Versioned
from tramfl.notation import Decision, Digest, Loads, NodeId, Outlook


class Limits(Struct, frozen=True):
    """How long to wait for what. Deadlines grow with the predicted time; none is one constant for all."""

    load_reply: float = 2.0
    """Seconds within which a node must report its load to be considered."""
    patience: float = 4.0
    """A hop or a training is overdue after this many times its predicted seconds ..."""
    slack: float = 5.0
    """... plus these; both double with every setback in a row, up to sixteen times."""
    detour: float = 1.5
    """A transfer that slows down is given up where waiting takes this many times as long as a round elsewhere: giving
    up costs the question for loads, and both times are guesses."""
    register_retry: float = 0.5
    """Seconds between two questions to a register that does not answer."""
    takeover_grace: float = 1.0
    """Seconds that a node with only the safe weights leaves to nodes that may have the newest."""
    unsafe_rounds: int = 3
    """A holder with this many trained rounds that only it has trains no further before another node has a copy."""
    unsafe_seconds: float = 600.0
    """A holder that stays put ships a background copy after half of `unsafe_rounds`, or this many seconds of work."""

    def overdue_after(self, predicted_seconds: float, setbacks: int) -> float:
        """The seconds after which something predicted to take `predicted_seconds` counts as failed."""
        return float((self.patience * predicted_seconds + self.slack) * 2 ** min(setbacks, 4))


class Copy(Struct, frozen=True):
    """Weights on this node's disk."""

    digest: Digest
    round: int
    epoch: int


class Assignment(Struct, frozen=True):
    """A round as it was decided: it travels with the model."""

    holder: NodeId
    """The node that decided."""
    decision: Decision
    loads: Loads
    lost_seconds: float
    """What failed attempts at this round have cost so far."""
    having: tuple[NodeId, ...] = ()
    """Nodes that had the weights when the round was decided: no transfer to them was charged."""
    rejected: tuple[NodeId, ...] = ()
    """Nodes whose training in this round was not accepted."""
    overhead_seconds: float = 0.0
    """What the node that decided spent between the last commit and the decision."""

    @property
    def others(self) -> tuple[NodeId, ...]:
        """The nodes that reported beside the one that decided."""
        return tuple(node for node in self.loads.reporting if node != self.holder)


class Offer(Struct, frozen=True):
    """A model on its way to another node: to be trained there, or as a mere copy."""

    epoch: int
    round: int
    digest: Digest
    ticket: int
    """The sender's; the acknowledgement brings it back."""
    assignment: Assignment | None


class SlowHop(Struct, frozen=True):
    """A hop that was given up for its pace."""

    to: NodeId
    bandwidth: float
    """At which a hop takes what was left of this one: what has arrived is kept."""
    usual_seconds: float
    """What it was predicted to take before its pace was seen."""
    reason: str


class Attempt(Struct, frozen=True):
    """One try at a round."""

    began: float
    """When the last round was committed, when the last try failed, or when the model arrived with an assignment."""
    lost_seconds: float = 0.0
    excluded: frozenset[NodeId] = frozenset()
    """Nodes that failed in this round."""
    rejected: tuple[NodeId, ...] = ()
    """Those of them whose training was not accepted."""
    overhead_seconds: float = 0.0
    """What the sender of the model spent on this round, other than on the transfer."""
    slow: tuple[SlowHop, ...] = ()
    """Hops of this round that were given up for their pace. Their receivers may be chosen again, at that pace."""


class Joining(Struct, frozen=True, tag=True):
    """Just started, or about to leave: reading the record."""

    ticket: int


class Following(Struct, frozen=True, tag=True):
    """Another node holds the model, or none does."""


class Halted(Struct, frozen=True, tag=True):
    """This node holds the model of a run that is paused or stopped."""

    ticket: int | None = None
    """While the newest weights lie here alone: of the question which nodes could take a copy."""
    links: dict[NodeId, float] = {}
    """The nodes that answered it, and the bandwidth from here."""


class StandingBy(Struct, frozen=True, tag=True):
    """The holder is lost and this node has only the safe weights: a node with the newest goes first."""

    ticket: int


class Gathering(Struct, frozen=True, tag=True):
    """Step 1: asking every node what it can spare."""

    ticket: int
    attempt: Attempt
    reports: dict[NodeId, tuple[float, float, Outlook | None]]
    awaited: frozenset[NodeId]
    """Nodes still worth waiting for; a node that missed the last deadline is asked but not waited for."""


class Deciding(Struct, frozen=True, tag=True):
    """Step 2: the policy is at work."""

    ticket: int
    attempt: Attempt
    loads: Loads
    """As reported."""


class Shipping(Struct, frozen=True, tag=True):
    """This node was to train on, but too many rounds lie at it alone: waiting until a copy is safe."""

    ticket: int


class Waiting(Struct, frozen=True, tag=True):
    """Nobody trains this round: waiting for H."""

    ticket: int
    attempt: Attempt
    assignment: Assignment


class Sending(Struct, frozen=True, tag=True):
    """Step 3: the model is on its way to the node that trains."""

    ticket: int
    attempt: Attempt
    assignment: Assignment
    to: NodeId


class Training(Struct, frozen=True, tag=True):
    """Step 4: training the allotment."""

    ticket: int
    attempt: Attempt
    assignment: Assignment
    transfer_seconds: float


class Storing(Struct, frozen=True, tag=True):
    """The new weights are on their way to disk; only then may the record name them."""

    ticket: int
    attempt: Attempt
    assignment: Assignment
    transfer_seconds: float
    compute_seconds: float
    digest: Digest


class Outcome(Struct, frozen=True):
    """What came of a round that is committed."""

    assignment: Assignment
    node: NodeId | None
    compute_seconds: float
    transfer_seconds: float
    idle_seconds: float
    lost_seconds: float
    overhead_seconds: float = 0.0
    """What gathering, deciding, the register and the disk took."""

    @property
    def seconds(self) -> float:
        """T_round, what failed attempts took, and the overhead."""
        spent = self.compute_seconds + self.transfer_seconds + self.idle_seconds + self.lost_seconds
        return spent + self.overhead_seconds


class Swapping(Struct, frozen=True, tag=True):
    """A change of the record is under way, or its fate is being asked for."""

    ticket: int
    change: Change
    proposed: Record
    outcome: Outcome | None = None
    """Of a commit: what came of its round."""


class Leaving(Struct, frozen=True, tag=True):
    """About to end, and this node holds the model: asking which nodes are there to take it."""

    ticket: int
    links: dict[NodeId, float]
    """The nodes that answered, and the bandwidth from here."""
    awaited: frozenset[NodeId]
    tried: frozenset[NodeId] = frozenset()
    """Nodes that did not take the model: they are not asked again."""


class HandingOn(Struct, frozen=True, tag=True):
    """About to end: the newest weights are on their way to the next holder."""

    ticket: int
    to: NodeId
    links: dict[NodeId, float]
    """The nodes to try if this one does not take them, and the bandwidth from here."""
    tried: frozenset[NodeId] = frozenset()
    """Nodes that did not take them."""


class Left(Struct, frozen=True, tag=True):
    """This node has no part in the run any more, and ignores all that happens."""


Phase = (
    Joining
    | Following
    | Halted
    | StandingBy
    | Gathering
    | Deciding
    | Shipping
    | Waiting
    | Sending
    | Training
    | Storing
    | Swapping
    | Leaving
    | HandingOn
    | Left
)


class Incoming(Struct, frozen=True):
    """A model that arrived and is on its way to disk."""

    ticket: int
    sender: NodeId
    offer: Offer
    seconds: float
    at: float
    """When its last byte came."""


class Backup(Struct, frozen=True):
    """A background copy under way: sent with this ticket, or, once acknowledged, being marked safe."""

    ticket: int
    change: MarkSafe
    in_doubt_at: int | None = None
    """The revision it was to replace, where the register did not say whether it did."""


class Ordering(Struct, frozen=True):
    """An order under way: the record is being read, or changed."""

    ticket: int
    order: int
    change: OrderedChange
    persistent: bool


class Backoff(Struct, frozen=True):
    """How often a node failed in a row, and how long it is left out."""

    failures: int
    until: int
    """It is asked again once this many rounds are done ..."""
    until_seconds: float = 0.0
    """... and this moment has come."""

    def lasts(self, round_: int, at: float) -> bool:
        """Whether the node is left out of the round after `round_` rounds, at this moment."""
        return round_ < self.until or at < self.until_seconds


class State(Struct, frozen=True):
    """All that one node knows."""

    me: NodeId
    model_bits: float
    """D_M: how much a copy of the weights weighs on a link."""
    limits: Limits
    phase: Phase = Joining(0)
    ticket: int = 0
    """The last one given out."""
    seen: Versioned | None = None
    copies: tuple[Copy, ...] = ()
    incoming: tuple[Incoming, ...] = ()
    accepted: Incoming | None = None
    """The last model received with an assignment: what to train once the record names this node."""
    backup: Backup | None = None
    unfit: frozenset[NodeId] = frozenset()
    """Nodes that did not take the last background copy that they were sent."""
    doubted_by: frozenset[NodeId] = frozenset()
    """Nodes that checked and refused what this node has trained since it became the holder (`doubting`)."""
    disowned: Digest | None = None
    """Weights that every other node refused: this node takes no run over with them."""
    absent: frozenset[NodeId] = frozenset()
    """Nodes that did not report when last asked."""
    backoff: dict[NodeId, Backoff] = {}
    """Nodes that failed this node, and of which no work has become safe since (`backing_off`)."""
    setbacks: int = 0
    """Failed attempts since a round was last trained."""
    orders: tuple[Ordering, ...] = ()
    leaving: bool = False
    """Whether the process is about to end."""
    counts_overhead: bool = False
    """Whether the time between the steps of a round counts, as it does on a real clock. In virtual time there is
    none, and the difference of two moments would bring rounding errors into the record."""

    def has(self, digest: Digest) -> bool:
        """Whether these weights are on this node's disk."""
        return any(copy.digest == digest for copy in self.copies)

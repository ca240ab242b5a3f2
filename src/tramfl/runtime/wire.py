"""What sites say to each other, as frozen structs; msgpack on the wire.

Who speaks is never in a message: it is what the peer's certificate says. Questions with fields that this version does
not know are refused; answers may have them, so that a newer patch version can say more.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from tramfl.circulation.phases import Offer
from tramfl.notation import Digest, ModelCost, NodeId, Outlook

PROTOCOL = 1
"""Grows when sites before and after a change of messages, record or transfers could not work together."""
CHUNK_BYTES = 1 << 20
"""gRPC refuses messages above 4 MB by default."""


class AskLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask what a site can spare in this round."""

    run: str
    round: int


class Load(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site can spare."""

    flops: float
    """r_i^k, predicted."""
    bandwidth: float | None
    """b_ij^k, bit/s from the asking site to this one, predicted; None where there is no fresh estimate."""
    held: tuple[int, ...]
    """l_ic: training samples of each label."""
    outlook: Outlook | None = None
    """How the site's loads behave; only where the run's policy looks ahead and enough was observed."""


class Consignment(Struct, frozen=True, forbid_unknown_fields=True):
    """A model about to be sent: the first message of a transfer."""

    run: str
    offer: Offer
    size: int
    """Bytes of the safetensors file."""


class Proceed(Struct, frozen=True, forbid_unknown_fields=True, tag="proceed"):
    """Send from this byte on: what lies before it has arrived earlier."""

    offset: int


class Accepted(Struct, frozen=True, forbid_unknown_fields=True, tag="accepted"):
    """The model is on disk here, durably."""


class Refused(Struct, frozen=True, forbid_unknown_fields=True, tag="refused"):
    """The model was rejected."""

    reason: str


Reply = Proceed | Accepted | Refused


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator, or a site, asks of a site."""

    what: Literal["status", "look", "prepare", "start", "pause", "resume", "stop"]
    """look: the record has changed, read it now."""
    run: str = ""
    """prepare, start: the name of the run that is to begin."""
    replacing: bool = False
    """start: start a new run even though the last one has ended; only its weights are kept."""


class Prepared(Struct, frozen=True):
    """A site is ready for a run: w_0 is on its disk."""

    digest: Digest
    settings: str
    """SHA-256 of the run's settings as this site has them: they must be the same everywhere."""
    labels: tuple[str, ...]
    held: tuple[int, ...]
    cost: ModelCost
    base: Digest | None = None
    """SHA-256 of the weights that never travel: they must be the same everywhere."""


class SiteReport(Struct, frozen=True):
    """What a site reports about itself."""

    site: str
    doing: str
    """joining, following, gathering, deciding, waiting, sending, training, storing, swapping, halted, idle."""
    beside: tuple[str, ...] = ()
    """Work beside the rounds: testing weights, finishing a run (telling the register that it has ended)."""
    run: str | None = None
    epoch: int | None = None
    round: int | None = None
    progress: float | None = None
    """Of a transfer or a training under way, 0 to 1."""
    to: NodeId | None = None
    flops: float | None = None
    bandwidth: dict[str, float] = field(default_factory=dict)
    """bit/s to each site, as far as known."""
    held: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    copies: tuple[Digest, ...] = ()
    cost: ModelCost | None = None
    settings: str = ""
    """SHA-256 of the run's settings as this site has them."""
    at: float = 0.0
    """The site's clock."""
    incarnation: int = 0
    version: str = ""
    """Of tramfl."""
    protocol: int = 0
    """What its service's name has; 0 where the site does not say."""


class OrderResult(Struct, frozen=True):
    """The result of an order."""

    done: bool
    message: str
    """One sentence."""
    report: SiteReport | None = None
    prepared: Prepared | None = None
    record: bytes = b""
    """status: the Standing as this site last saw it, msgpack; empty where it has none."""


class AskRows(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the rows of rounds `first` to `last`."""

    run: str
    first: int
    last: int


class Rows(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows as JSON lines, with the scores that are known by now."""

    lines: tuple[bytes, ...]


class AskModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for weights, from this byte on."""

    digest: Digest
    offset: int = 0

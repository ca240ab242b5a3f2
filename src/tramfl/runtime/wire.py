"""What sites say to each other, as frozen structs; msgpack on the wire.

Who speaks is never in a message: it is what the peer's certificate says. Questions with fields that this version does
not know are refused; answers may have them, so that a newer patch version can say more.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from tramfl.circulation.phases import Offer
from tramfl.notation import Digest, ModelCost, NodeId, Outlook

PROTOCOL = 3
"""Grows when sites before and after a change of messages, record or transfers could not work together."""
CHUNK_BYTES = 1 << 20
"""gRPC refuses messages above 4 MB by default."""

CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]+")
"""Characters that move a terminal's cursor, change its colours or title, or turn the direction of writing."""
T = TypeVar("T")


def plain(message: T) -> T:
    """What a peer sent, with every control character in its texts replaced by a space: it may reach a terminal."""
    cleaned: Any = message
    if isinstance(message, str):
        cleaned = CONTROLS.sub(" ", message)
    elif isinstance(message, tuple):
        cleaned = tuple(map(plain, message))
    elif isinstance(message, dict):
        cleaned = {plain(key): plain(value) for key, value in message.items()}
    elif isinstance(message, Struct):
        cleaned = replace(message, **{name: plain(value) for name, value in asdict(message).items()})
    found: T = cleaned
    return found


class AskLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask what a site can spare in this round."""

    run: str
    round: int


class Load(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site can spare."""

    flops: float
    """r_i^k, predicted."""
    bandwidth: float | None
    """b_ij^k, bit/s from the asking site to this one, predicted; None where no model has come that way."""
    held: tuple[int, ...]
    """l_ic: training samples of each label."""
    outlook: Outlook | None = None
    """How the site's loads behave; only where the run's policy looks ahead and enough was observed."""
    clock: float | None = None
    """What the site's clock said when it answered: two clocks may differ."""


class Consignment(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model about to be sent: the first message of a transfer."""

    run: str
    offer: Offer
    size: int
    """Bytes of the safetensors file."""
    sent_at: float | None = None
    """When the sender decided to send it, by the receiver's clock; None where the sender does not know that clock."""


class Proceed(Struct, frozen=True, forbid_unknown_fields=True, tag="proceed"):
    """Send from this byte on: what lies before it has arrived. The receiver repeats it as bytes arrive."""

    offset: int


class Accepted(Struct, frozen=True, forbid_unknown_fields=True, tag="accepted"):
    """The model is on disk here, durably."""


class Refused(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="refused"):
    """The model was rejected."""

    reason: str
    not_accepted: bool = False
    """The receiver checked the weights, and refuses them for what they are."""


Reply = Proceed | Accepted | Refused


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator, or a site, asks of a site."""

    what: Literal[
        "status", "look", "prepare", "start", "pause", "resume", "stop", "repair", "drain", "undrain", "add-member",
        "remove-member", "revoke", "audit", "rollback",
    ]  # fmt: skip
    """look: the record has changed, read it now. repair: put the last good record in place of a bad one.
    drain: take part in no further round, for this site alone; undrain: take part again.
    revoke: refuse some certificates."""
    run: str = ""
    """prepare, start: the name of the run that is to begin. audit: the run whose trail is asked for."""
    replacing: bool = False
    """start: start a new run even though the last one has ended; only its weights are kept."""
    least: int = 0
    """start: how many sites must be ready."""
    round: int = 0
    """rollback: the round to go back to. audit: how many of the newest entries to pass over; answers are short."""
    site: str = ""
    """add-member, remove-member: the site's name."""
    address: str = ""
    """add-member: host:port, as the others reach it."""
    content: bytes = b""
    """revoke: the list of revoked certificates, signed by the authority."""


class Prepared(Struct, frozen=True):
    """A site is ready for a run: w_0 is on its disk."""

    digest: Digest
    settings: bytes
    """What must be the same everywhere, as this site has it (`site.agreement`)."""
    labels: tuple[str, ...]
    held: tuple[int, ...]
    cost: ModelCost
    base: Digest | None = None
    """SHA-256 of the weights that never travel: they must be the same everywhere."""


class ReadOutFile(Struct, frozen=True):
    """The mean that a site tests and delivers in place of weights."""

    round: int
    """Of the weights."""
    weights: Digest
    digest: Digest
    """SHA-256 of the file with the mean."""


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
    silent: str = ""
    """Why the register does not answer this site; empty while it does."""
    away: str = ""
    """Why this site takes part in no round at this moment; empty where it does."""
    rejected: str = ""
    """Why this site last did not accept weights; empty where it always did."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Sites that failed this site, and how many rounds must be done, at least, before it asks each of them again."""
    held: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    copies: tuple[Digest, ...] = ()
    cost: ModelCost | None = None
    settings: str = ""
    """SHA-256 of the run's settings as this site has them."""
    tensors: str = ""
    """SHA-256 of the names, shapes and types of the weights that travel."""
    at: float = 0.0
    """The site's clock."""
    incarnation: int = 0
    version: str = ""
    """Of tramfl."""
    protocol: int = 0
    """What its service's name has; 0 where the site does not say."""
    readout: ReadOutFile | None = None
    """The newest mean at this site; None where the run tests the newest weights, or the site has trained none."""
    place: str = ""
    """The machine and the folder of the site's process."""
    issued: float | None = None
    """When the site's certificate was issued, in seconds since 1970; None where it has none."""
    twin: str | None = None
    """The place of another process of this site that had a lease when this one joined: the name is used twice."""
    twins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The same of any site, as this site sees it: where the earlier and where the later process runs."""


class OrderResult(Struct, frozen=True):
    """The result of an order."""

    done: bool
    message: str
    """One sentence."""
    report: SiteReport | None = None
    prepared: Prepared | None = None
    record: bytes = b""
    """status: the Standing as this site last saw it, msgpack; empty where it has none."""
    seen: tuple[tuple[int, bytes], ...] = ()
    """status: the last revisions of the record that this site saw, with fingerprints of the records."""
    age_seconds: float = 0.0
    """status: how long ago the register answered this site."""
    audit: tuple[bytes, ...] = ()
    """audit: entries of this site's trail, as JSON; none where all were passed over."""


class AskRows(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the rows of rounds `first` to `last`."""

    run: str
    first: int
    last: int


class Rows(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows as JSON lines, each signed by the site that trained, where sites have certificates."""

    lines: tuple[bytes, ...]
    notes: dict[int, bytes] = field(default_factory=dict)
    """By round: the scores that became known later, each signed by the site that tested."""


class AskModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for weights, from this byte on."""

    digest: Digest
    offset: int = 0

"""A model on its way in: bytes in the right order, a header that fits the run, a digest that fits the offer.

Independent of gRPC: the server calls `take` for each frame, in a thread.
"""

from __future__ import annotations

import hashlib
from math import isnan
from pathlib import Path

from msgspec.structs import astuple

from tramfl.circulation.phases import Offer
from tramfl.notation import NodeId
from tramfl.runtime.weights.manifest import LENGTH_BYTES, Manifest, WrongModel
from tramfl.runtime.weights.store import BLOCK_BYTES, DIGEST, Part, WeightStore
from tramfl.runtime.wire import CHUNK_BYTES, Consignment

MOST_SECONDS = 1e9
"""No round is predicted to take this long: 30 years."""
MOST_FIGURE = 1e30
MOST_TEXT = 1000
OFFSET_BYTES = 8
"""A frame is the offset of its bytes in the file, big-endian, and the bytes."""
MOST = 1 << 53
"""No round, epoch or count is as large as this."""
MOST_TICKET = 1 << 63
"""The upper half of a ticket is the sender's incarnation."""
SETTLE_BYTES = 8 << 20
"""Bytes written before they are made durable, while more arrive."""


class Unfit(Exception):
    """A peer sent something that cannot be accepted; the message says why."""


class Truncated(Unfit):
    """The sender ended before all bytes had arrived; they are kept, since it may have lost the connection."""


class Spoilt(Exception):
    """Bytes kept from an earlier try were wrong: they are deleted, and everything must be sent again."""


def check_consignment(consignment: Consignment, sender: NodeId) -> None:
    """Reject a consignment that no correct sender would send in any state of a run. Raises Unfit."""
    offer = consignment.offer
    if not DIGEST.fullmatch(offer.digest):
        raise Unfit("a digest is 64 small hexadecimal digits")
    if not (all(0 <= number < MOST for number in (offer.epoch, offer.round)) and 0 <= offer.ticket < MOST_TICKET):
        raise Unfit("epoch, round and ticket must be whole numbers from 0 on")
    if not 0 < consignment.size < MOST:
        raise Unfit(f"{consignment.size} bytes are no size for weights")
    if consignment.sent_at is not None and not 0 <= consignment.sent_at < MOST:
        raise Unfit(f"{consignment.sent_at} is no moment to send weights at")
    _check_assignment(offer, sender)


def _check_assignment(offer: Offer, sender: NodeId) -> None:
    assignment = offer.assignment
    if assignment is None:
        return
    if assignment.holder != sender:
        raise Unfit(f"site number {sender} brought an assignment of site number {assignment.holder}")
    decision, loads = assignment.decision, assignment.loads
    nodes = [sender, decision.node, *assignment.having, *(candidate.node for candidate in decision.candidates)]
    # The sender may have seen a member join that this site has not seen yet.
    sites = len(loads.flops)
    if not all(node is None or 0 <= node < sites for node in nodes):
        raise Unfit(f"the assignment names a site beyond the {sites} there are")
    if len(loads.bandwidth) != sites:
        raise Unfit(f"the assignment has loads of {sites} sites, and links to {len(loads.bandwidth)}")
    if not all(0 <= samples < MOST for samples in decision.samples):
        raise Unfit("the assignment has samples that are no counts")
    seconds = (
        assignment.lost_seconds,
        assignment.overhead_seconds,
        decision.compute_seconds,
        decision.transfer_seconds,
        decision.idle_seconds,
    )
    if not all(0 <= value < MOST_SECONDS for value in seconds):
        raise Unfit(f"the assignment has times that are out of range: {seconds}")
    if not all(isnan(load) or load >= 0 for load in (*loads.flops, *loads.bandwidth)) or loads.outlook:
        raise Unfit("the assignment has loads that are out of range")
    figures = [value for c in decision.candidates for value in astuple(c) if isinstance(value, float)]
    if not all(abs(figure) < MOST_FIGURE for figure in figures):  # a NaN is not
        raise Unfit("the assignment has figures that are out of range")
    if len(decision.reason) > MOST_TEXT or len(decision.policy) > MOST_TEXT or len(decision.candidates) > sites:
        raise Unfit("the assignment is too long")


class Arrival:
    """One transfer, from its consignment to verified bytes in staging."""

    def __init__(self, store: WeightStore, manifest: Manifest, sender: str, consignment: Consignment) -> None:
        self._store = store
        self._manifest = manifest
        self._sender = sender
        self._digest = consignment.offer.digest
        self._size = consignment.size
        self._part: Part | None = None
        self._settled = 0
        self._resumed_at = 0
        self.verified = False

    def open(self) -> None:
        """Make room, and go on from what arrived earlier. Raises Unfit or StoreFull."""
        try:
            self._manifest.check_size(self._size)
        except WrongModel as error:
            raise Unfit(str(error)) from None
        try:
            self._begin()
        except Unfit:
            # The bytes of an earlier try are wrong; start from nothing.
            self.close(keep=False)
            self._begin()
        self._resumed_at = self.offset

    @property
    def path(self) -> Path:
        """Where the bytes are."""
        return self._opened.path

    @property
    def offset(self) -> int:
        """The offset of the next byte."""
        return self._opened.offset

    @property
    def complete(self) -> bool:
        """Whether all bytes are here."""
        return self.offset == self._size

    def take(self, frame: bytes) -> None:
        """Append the next bytes. Raises Unfit if they are not the next ones, and StoreFull."""
        if not OFFSET_BYTES < len(frame) <= OFFSET_BYTES + CHUNK_BYTES:
            raise Unfit(f"a chunk has 1 to {CHUNK_BYTES} bytes after its offset, not {len(frame) - OFFSET_BYTES}")
        offset = int.from_bytes(frame[:OFFSET_BYTES], "big")
        data = memoryview(frame)[OFFSET_BYTES:]
        if offset != self.offset:
            raise Unfit(f"the bytes from {offset} on came where those from {self.offset} on were due")
        if offset + len(data) > self._size:
            raise Unfit(f"more than the announced {self._size} bytes came")
        self._inspect(data)
        self._hash.update(data)
        part = self._opened
        part.append(data)
        if self.offset - self._settled >= SETTLE_BYTES:
            self._settled = self.offset
            part.settle_meanwhile()

    def finish(self) -> None:
        """Verify the file, and make it durable. Raises Truncated, Unfit or Spoilt."""
        part = self._opened
        if not self.complete:
            raise Truncated(f"{self.offset} of {self._size} bytes came")
        found = self._hash.hexdigest()
        if found != self._digest:
            if part.linked:
                self._store.set_aside(self._digest)
            if self._resumed_at > 0:
                raise Spoilt(f"what was kept of {self._digest} is damaged")
            raise Unfit(f"the bytes are those of {found}, not of {self._digest}")
        part.settle()
        self.verified = True

    def seconds_for_all(self, seconds: float) -> float:
        """Seconds for the whole file, if the bytes of this try took `seconds`; 0 where none had to travel."""
        came = self._size - self._resumed_at
        return seconds * self._size / came if came else 0.0

    def close(self, keep: bool) -> None:
        """End the transfer; kept bytes need not be sent again."""
        if self._part is not None:
            self._part.close(drop=not keep)
            self._part = None

    @property
    def _opened(self) -> Part:
        assert self._part is not None
        return self._part

    def _begin(self) -> None:
        """Open the part; hash and inspect what is in it."""
        part = self._part = self._store.part(self._sender, self._digest, self._size)
        self._hash = hashlib.sha256()
        self._head: bytearray | None = bytearray()  # None once the header is known to be right
        self._settled = part.offset
        position = 0
        while block := part.read(position, BLOCK_BYTES):
            self._inspect(memoryview(block))
            self._hash.update(block)
            position += len(block)

    def _inspect(self, data: memoryview) -> None:
        """Check the header as soon as it is here."""
        if self._head is None:
            return
        self._head += data[: LENGTH_BYTES + self._manifest.max_header_bytes - len(self._head)]
        if len(self._head) < LENGTH_BYTES:
            return
        length = int.from_bytes(self._head[:LENGTH_BYTES], "little")
        try:
            self._manifest.check_length(length, self._size)
            if len(self._head) >= LENGTH_BYTES + length:
                self._manifest.check(bytes(self._head[LENGTH_BYTES : LENGTH_BYTES + length]), self._size)
                self._head = None
        except WrongModel as error:
            raise Unfit(f"these are not weights of this run: {error}") from None

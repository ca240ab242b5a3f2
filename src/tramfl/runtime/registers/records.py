"""Records as a register keeps them: by the sites' names, and signed by the site that writes them.

A signed record carries the writer's certificate, so that a reader needs no more than the federation's authority. The
signature also covers the revision that the record replaces: an old record cannot be put in place of a newer one.
Without certificates (loopback trials) records are not signed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from tramfl.circulation.custody import Record, Versioned
from tramfl.notation import BadInput
from tramfl.runtime.structs import learn_structs
from tramfl.runtime.wire import PROTOCOL
from tramfl.version import __version__

RECORD, ROW, NOTE = "record", "row", "note"
"""What a signature is for: one made for a row proves no record."""


class Sealed(Struct, frozen=True, forbid_unknown_fields=True):
    """What a site signed."""

    content: bytes
    certificate: bytes
    """PEM."""
    signature: bytes


class Opened(NamedTuple):
    """What was signed, and the name of the site that did."""

    content: bytes
    by: str


class Unsealed(Exception):
    """A signature is missing or wrong; the message says so, and goes on from the name of what was to be signed."""


class Revoked(Unsealed):
    """What is signed is right, and the certificate of the site that signed it is revoked."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(f"is signed by {opened.by}, whose certificate is revoked")
        self.opened = opened


class Seal(Protocol):
    """Signs what this site writes, and checks what others wrote."""

    @property
    def me(self) -> str:
        """The name that this site signs with."""
        ...

    def seal(self, purpose: str, content: bytes) -> bytes:
        """The content with this site's signature."""
        ...

    def opened(self, purpose: str, sealed: bytes, known: Iterable[str]) -> Opened:
        """What one of the known sites signed. Raises Unsealed, or Revoked, which is one."""
        ...


class Unreadable(BadInput):
    """What the register has in the record's place is no record that this version can read, or believe."""

    def __init__(self, reason: str, revision: int, revoked: Versioned | None = None) -> None:
        super().__init__(reason)
        self.revision = revision
        self.revoked = revoked
        """The record, where it is right but for the certificate of its writer, which is revoked."""


class _Numbered(Struct):
    protocol: int = 1


class _Swap(Struct, frozen=True, array_like=True):
    """What is signed of a swap."""

    after: int
    record: bytes


class Records:
    """Turns records into what a register keeps, and back."""

    def __init__(self) -> None:
        learn_structs()  # every register makes its records first, and its threads then
        self.seal: Seal | None = None
        """None where the federation has no certificates."""
        self.known: Versioned | None = None
        """The last good record: it stays good when the certificate that signed it does not."""

    def content(self, record: Record, after: int) -> bytes:
        """What the register keeps of a record that replaces revision `after`."""
        content = stored(record)
        if self.seal is None:
            return content
        return self.seal.seal(RECORD, msgspec.msgpack.encode(_Swap(after, content)))

    def swapped(self, record: Record, after: int, revision: int) -> Versioned:
        """A record of this site's, which is at a revision now."""
        return Versioned(record, revision) if self.seal is None else Versioned(record, revision, self.seal.me, after)

    def versioned(self, content: bytes, place: str, revision: int) -> Versioned:
        """The record in what a register keeps; Unreadable, which names the `place`, where it cannot be believed."""
        record = record_from(content, place, revision)
        if self.seal is None:
            return Versioned(record, revision)
        if record.protocol != PROTOCOL:
            raise Unreadable(other_protocol(f"{place}: the run there", record.protocol), revision)
        known = self.known
        if known is not None and (known.revision, known.record) == (revision, record):
            return known
        try:
            opened = self.seal.opened(RECORD, content, (entry.name for entry in record.members))
        except Revoked as error:
            raise Unreadable(
                f"{place}: the record there {error}.", revision, _of(record, revision, error.opened)
            ) from None
        except Unsealed as error:
            raise Unreadable(f"{place}: the record there {error}.", revision) from None
        return _of(record, revision, opened)


def _of(record: Record, revision: int, opened: Opened) -> Versioned:
    return Versioned(record, revision, opened.by, msgspec.msgpack.decode(opened.content, type=_Swap).after)


class _Kept(Struct, frozen=True, array_like=True):
    """What is signed of a row or a note."""

    run: str
    round: int
    content: bytes


class OpenedRound(NamedTuple):
    """A row or a note."""

    content: bytes
    round: int
    by: str
    """The site that signed it; empty, and the round 0, where nothing is signed."""


def sealed_round(seal: Seal | None, purpose: str, run: str, round_: int, content: bytes) -> bytes:
    """A row or a note as a register keeps it."""
    if seal is None:
        return content
    return seal.seal(purpose, msgspec.msgpack.encode(_Kept(run, round_, content)))


def opened_round(seal: Seal | None, purpose: str, run: str, kept: bytes, known: Iterable[str]) -> OpenedRound:
    """A row or a note that a register keeps; without a seal nothing is checked. Raises Unsealed.

    What a site signed before its certificate was revoked stays true, and nobody knows when it signed.
    """
    if seal is None:
        return OpenedRound(round_content(kept), 0, "")
    try:
        opened = seal.opened(purpose, kept, known)
    except Revoked as revoked:
        opened = revoked.opened
    try:
        found = msgspec.msgpack.decode(opened.content, type=_Kept)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unsealed(f"is nothing of a round, though {opened.by} signed it") from None
    if found.run != run:
        raise Unsealed(f"is of run {found.run[:100]}")
    return OpenedRound(found.content, found.round, opened.by)


def round_content(kept: bytes) -> bytes:
    """A row or a note; its signature is not checked here."""
    try:
        return msgspec.msgpack.decode(unsealed(kept), type=_Kept).content
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return kept


def stored(record: Record) -> bytes:
    """The record with every node by its name, not signed."""
    content = msgspec.to_builtins(record)
    content["holder"] = record.name_of(record.holder)
    for part in (content["weights"], content["safe"], *content["kept"]):
        part["copies"] = [record.name_of(node) for node in part["copies"]]
    return msgspec.msgpack.encode(content)


def record_from(content: bytes, place: str, revision: int) -> Record:
    """The record in what a register keeps, its signature unchecked; Unreadable where it cannot be read."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content = msgspec.msgpack.decode(unsealed(content), type=_Swap).record
    try:
        found = msgspec.msgpack.decode(content)
        numbers = {entry["name"]: number for number, entry in enumerate(found["members"])}
        found["holder"] = None if found["holder"] is None else numbers[found["holder"]]
        for part in (found["weights"], found["safe"], *found.get("kept", ())):
            part["copies"] = [numbers[name] for name in part["copies"]]
        return msgspec.convert(found, Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if (number := msgspec.msgpack.decode(content, type=_Numbered).protocol) != PROTOCOL:
                raise Unreadable(other_protocol(f"{place}: the run there", number), revision) from None
        raise Unreadable(f"{place}: the record there cannot be read: {error}.", revision) from None


def unsealed(sealed: bytes) -> bytes:
    """What was signed, not checked; what was not signed as it is."""
    try:
        return msgspec.msgpack.decode(sealed, type=Sealed).content
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return sealed


def other_protocol(run: str, number: int) -> str:
    """Why a site does not join a run of another protocol, in one sentence."""
    return (
        f"{run} is of protocol {number}, and this site, with tramfl {__version__}, has protocol {PROTOCOL};"
        " install the version of tramfl that the other sites have."
    )

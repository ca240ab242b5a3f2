"""Revoked certificates: one list for the federation, signed by its authority.

An entry is a name and a moment: certificates that were issued to this name up to this moment are refused, whichever
keys they have; the name can get a new certificate later. The list lies in the register, where every site sees it.
A member that can write there cannot forge it, and an older list does not replace a newer one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field

from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.runtime.transport.certificates import Authority, signed_by

REVOKED_FILE = "revoked.msgpack"
"""Beside ca.key at the operator's, and in the state folder of every site."""
MOST_BYTES = 1 << 20
_PURPOSE = b"tramfl list of revoked certificates\0"


class RevocationList(Struct, frozen=True):
    """Whose certificates are refused, and up to which moment of issue."""

    number: int = 0
    """Grows with every change: the highest one counts."""
    moments: dict[str, float] = field(default_factory=dict)
    """Of each name: certificates issued at this moment (seconds since 1970) or before are refused."""

    def refuses(self, name: str, issued: float) -> bool:
        """Whether a certificate of this name and this moment of issue is refused."""
        return name in self.moments and issued <= self.moments[name]

    def with_name(self, name: str, moment: float | None = None) -> RevocationList:
        """The next list, with one name more."""
        moment = time.time() if moment is None else moment
        return RevocationList(self.number + 1, {**self.moments, name: moment})


class _Signed(Struct, frozen=True):
    content: bytes
    signature: bytes


def signed_list(authority: Authority, revoked: RevocationList) -> bytes:
    """The list as it is published."""
    content = msgspec.msgpack.encode(revoked)
    return msgspec.msgpack.encode(_Signed(content, authority.sign(_PURPOSE + content)))


def read_list(content: bytes, authorities_pem: bytes) -> RevocationList | None:
    """The list, if one of the authorities signed it; None where it is no such list."""
    if len(content) > MOST_BYTES:
        return None
    try:
        found = msgspec.msgpack.decode(content, type=_Signed)
        if not signed_by(_PURPOSE + found.content, found.signature, authorities_pem):
            return None
        return msgspec.msgpack.decode(found.content, type=RevocationList)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadInput):
        return None


def newest_list(contents: Iterable[bytes], authorities_pem: bytes) -> RevocationList:
    """The newest of several lists; an empty one where none is signed by one of the authorities."""
    found = [revoked for content in contents if (revoked := read_list(content, authorities_pem)) is not None]
    return max(found, key=lambda revoked: revoked.number, default=RevocationList())


def list_in(folder: Path) -> bytes:
    """The published list that a folder keeps; empty where it has none."""
    with contextlib.suppress(OSError):
        return (folder / REVOKED_FILE).read_bytes()
    return b""


def keep_list(folder: Path, content: bytes) -> None:
    """Keep a published list in a folder."""
    write_atomically(folder / REVOKED_FILE, content)


def moment_in_words(moment: float) -> str:
    """A moment as people read it."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"

"""Signatures of what sites write to the register: made with the key of the certificate, checked by every reader.

Who signed is what the certificate in the seal says, if the federation's authority issued it and it is not revoked.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from tramfl.notation import BadInput
from tramfl.runtime.registers.records import Opened, Revoked, Sealed, Unsealed
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport.certificates import (
    KNOWN_CERTIFICATES,
    Caller,
    caller_in,
    sign,
    signature_fits,
)
from tramfl.runtime.transport.credentials import Credentials


class SiteSeal:
    """Signs with a site's certificate, and checks what others signed. See `registers.records.Seal`."""

    def __init__(self, me: str, credentials: Credentials, roster: Roster | None = None, past: bytes = b"") -> None:
        """With a roster, what was signed with a revoked certificate is not believed.

        `past` are certificates of authorities that issue no more: what sites signed in their time is still believed.
        """
        self.me = me
        self._credentials, self._roster, self._past = credentials, roster, past
        # Every record has its writer's certificate; each is read once per list of members.
        self._caller_in = lru_cache(KNOWN_CERTIFICATES)(caller_in)

    def seal(self, purpose: str, content: bytes) -> bytes:
        """The content with this site's certificate and signature."""
        own = self._credentials.now
        signature = sign(own.key, _signed(purpose, content))
        return msgspec.msgpack.encode(Sealed(content, own.certificate, signature))

    def opened(self, purpose: str, sealed: bytes, known: Iterable[str]) -> Opened:
        """What one of the known sites signed. Raises Unsealed, or Revoked, which is one."""
        try:
            found = msgspec.msgpack.decode(sealed, type=Sealed)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Unsealed("is not signed") from None
        try:
            authorities = self._credentials.now.authorities + self._past
            caller: Caller = self._caller_in(found.certificate, frozenset(known), authorities)
            fits = signature_fits(found.certificate, found.signature, _signed(purpose, found.content))
        except BadInput as error:
            raise Unsealed(f"is not signed by a site: {str(error).rstrip('.')}") from None
        if not fits:
            raise Unsealed(f"is not what {caller.name} signed")
        opened = Opened(found.content, caller.name)
        if self._roster is not None and self._roster.is_revoked(*caller):
            raise Revoked(opened)
        return opened


def _signed(purpose: str, content: bytes) -> bytes:
    return b"tramfl " + purpose.encode() + b"\0" + content

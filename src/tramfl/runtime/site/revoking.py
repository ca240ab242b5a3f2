"""Revoked certificates at a site: learns the authority's list, keeps it on disk, and puts it back into the register.

The list comes from the operator, with an order, or from the register. A site whose list is newer than the register's
puts its own there: a member that deletes or overwrites it gains nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.runtime.journal import Log
from tramfl.runtime.registers import Register, Silent
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Credentials
from tramfl.runtime.transport.certificates import describe
from tramfl.runtime.transport.revocations import (
    RevocationList,
    keep_list,
    list_in,
    moment_in_words,
    read_list,
)

SHOWN_FILE = "shown.msgpack"
"""When the newest certificates were issued that sites with revoked ones have shown here."""


class Revocations:
    """The certificates that this site refuses."""

    def __init__(
        self,
        name: str,
        credentials: Credentials | None,
        roster: Roster,
        register: Register,
        folder: Path,
        log: Log,
    ) -> None:
        """`folder` keeps the list. Without credentials there are no certificates, and nothing is revoked."""
        self._name, self._credentials, self._roster = name, credentials, roster
        self._register, self._folder, self._log = register, folder, log
        self._list = RevocationList()
        self.content = b""
        """The newest list, as it is published."""
        self._ignored = b""
        self._kept_shown: dict[str, float] = {}
        self._learn(list_in(folder))
        for shown, issued in _shown_in(folder).items():
            roster.show(shown, issued)

    async def take(self, content: bytes) -> str:
        """Learn a list from an order; one sentence about the result. Raises BadInput or Silent."""
        if self._credentials is None:
            raise BadInput("this federation has no certificates, so none can be revoked.")
        found = read_list(content, self._credentials.now.authorities)
        if found is None:
            raise BadInput("the list of revoked certificates is not signed by the federation's authority.")
        if found.number < self._list.number:
            raise BadInput(f"list {self._list.number} of revoked certificates is here, and this is {found.number}.")
        self._learn(content)
        await self._register.announce_revoked(self.content)
        return f"certificates revoked up to list {self._list.number}"

    async def follow(self, content: bytes) -> None:
        """The register has this list; learn it, or put a newer one back."""
        if content != self.content and not self._learn(content) and self.content:
            with contextlib.suppress(Silent):
                await self._register.announce_revoked(self.content)

    @property
    def own_issue(self) -> float | None:
        """When this site's certificate was issued; None where it has none."""
        return None if self._credentials is None else describe(self._credentials.now.certificate).issued

    def check(self) -> None:
        """Keep what sites have shown; BadInput where this site's own certificate is revoked."""
        if self._kept_shown != self._roster.shown:
            self._kept_shown = dict(self._roster.shown)
            with contextlib.suppress(OSError):  # the next start asks for a call of each such site
                write_atomically(self._folder / SHOWN_FILE, msgspec.msgpack.encode(self._kept_shown))
        if self._name not in self._list.moments:
            return
        if (issued := self.own_issue) is not None and self._list.refuses(self._name, issued):
            moment = moment_in_words(self._list.moments[self._name])
            raise BadInput(
                f"the certificate of site {self._name!r} was revoked on {moment}: the other sites refuse it. Put in"
                f" its place what tramfl cert renew --new-key makes for {self._name!r}, then start the site again."
            )

    def _learn(self, content: bytes) -> bool:
        """Whether a list is at least as new as the one that this site has."""
        if self._credentials is None or not content:
            return False
        found = read_list(content, self._credentials.now.authorities)
        if found is None or found.number < self._list.number:
            if found is None and content != self._ignored:
                self._ignored = content
                self._log("revocations-ignored", reason="the register's list is not signed by the authority")
            return False
        if found.number > self._list.number:
            for name in found.moments.keys() - self._list.moments.keys():
                self._log("revoked", peer=name)
            try:
                keep_list(self._folder, content)
            except OSError as error:
                reason = f"the list could not be written: {error.strerror or error}"
                self._log("revocations-ignored", reason=reason)
        self._list, self.content = found, content
        self._roster.revoke(found.moments)
        return True


def _shown_in(folder: Path) -> dict[str, float]:
    try:
        return msgspec.msgpack.decode((folder / SHOWN_FILE).read_bytes(), type=dict[str, float])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}

"""Who is a member of a federation, by number: as the record says; before the first run, as federation.toml says.

A node's number is its place in the record's list of members. That list only grows, so a number stands for one site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tramfl.circulation.custody import Entry, Versioned
from tramfl.notation import NodeId
from tramfl.runtime.settings import OPERATOR, Federation


class Roster:
    """The list of members as last seen; every part of a process that calls sites, or is called, shares one."""

    def __init__(self, federation: Federation) -> None:
        self.entries = tuple(Entry(site.name, site.address) for site in federation.file.site)
        self._revision = -1
        self._revoked: Mapping[str, float] = {}
        self._shown: dict[str, float] = {}
        self._note()

    def follow(self, versioned: Versioned) -> None:
        """The record was seen; an older one changes nothing."""
        if versioned.revision > self._revision:
            self._revision = versioned.revision
            if versioned.record.members != self.entries:
                self.entries = versioned.record.members
                self._note()

    def _note(self) -> None:
        self.names = tuple(entry.name for entry in self.entries)
        self.present = tuple(number for number, entry in enumerate(self.entries) if entry.address is not None)
        self.callers = frozenset((OPERATOR, *(self.names[number] for number in self.present)))
        """The names of those who may call a site: its fellow members, and the operator."""

    def number_of(self, name: str) -> NodeId:
        """The number of a site that is or was a member; -1 where it never was."""
        return self.names.index(name) if name in self.names else -1

    def revoke(self, moments: Mapping[str, float]) -> None:
        """From now on certificates that were issued to these names up to these moments are refused."""
        self._revoked = dict(moments)

    def is_revoked(self, name: str, issued: float) -> bool:
        """Whether a certificate of this name, issued at this moment, is refused."""
        return name in self._revoked and issued <= self._revoked[name]

    def show(self, name: str, issued: float) -> None:
        """A caller proved its name with a certificate that is not refused."""
        if name in self._revoked:
            self._shown[name] = max(issued, self._shown.get(name, -math.inf))

    @property
    def shown(self) -> Mapping[str, float]:
        """Of names with revoked certificates: when the newest certificate was issued that the site has shown here."""
        return self._shown

    def is_barred(self, name: str) -> bool:
        """Whether a site's certificate was revoked, and the site has not shown a newer one here."""
        return self.is_revoked(name, self._shown.get(name, -math.inf))

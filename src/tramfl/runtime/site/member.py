"""What every part of a site's process works with: files, number, register, peers, log and clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tramfl.config import Scenario
from tramfl.notation import NodeId
from tramfl.runtime.journal import Journal
from tramfl.runtime.registers import CheckedRegister
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import Federation, SiteSettings
from tramfl.runtime.site.auditing import Auditor
from tramfl.runtime.site.revoking import Revocations
from tramfl.runtime.transport import Peers


@dataclass(frozen=True)
class Member:
    """This site as one member of its federation."""

    site: SiteSettings
    register: CheckedRegister
    roster: Roster
    peers: Peers
    revocations: Revocations
    log: Journal
    now: Callable[[], float]
    """Wall-clock time that never runs backwards."""
    audit: Auditor

    @property
    def federation(self) -> Federation:
        """The federation that this site belongs to."""
        return self.site.federation

    @property
    def scenario(self) -> Scenario:
        """What the federation trains."""
        return self.federation.file.run

    @property
    def me(self) -> NodeId:
        """This site's number; -1 where it never was a member."""
        return self.roster.number_of(self.site.file.site)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites' names, by number."""
        return self.roster.names

    @property
    def folder(self) -> Path:
        """Where this site keeps weights, history, lock and counter."""
        return self.site.beside(self.site.file.state)

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts."""
        return self.federation.file.lease_seconds

    def name(self, node: NodeId | None) -> str | None:
        """The name of a site, for the log."""
        return None if node is None else self.names[node]

"""Which record the operator believes: one lying site must not be able to end, move or name a run.

A site answers with the newest record it has seen, with the revisions it saw before that, and with how long ago the
register answered it. A site whose view is fresh votes for every record that it has seen. A record counts where most
of these sites vote for it, or where the holder that it names does and one more site. Sites that see a change a moment
later than others still vote for the record before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tramfl.circulation.custody import Record, Versioned
from tramfl.circulation.soundness import fault
from tramfl.notation import NodeId
from tramfl.runtime.registers import Standing
from tramfl.runtime.registers.checked import fingerprint


class View(Struct, frozen=True):
    """What one site shows of the register."""

    standing: Standing
    seen: tuple[tuple[int, bytes], ...] = ()
    """Revisions that it saw, with their records' fingerprints."""
    age_seconds: float = 0.0
    """How long ago the register answered this site."""

    @property
    def record(self) -> Record | None:
        """The record that the site shows, if it is one that the operator can act on."""
        versioned = self.standing.versioned
        if versioned is None or fault(versioned.record) is not None:
            return None
        return versioned.record

    def votes_for(self, versioned: Versioned) -> bool:
        """Whether the site has seen this very record at this revision."""
        if self.standing.versioned == versioned:
            return True
        return (versioned.revision, fingerprint(versioned.record)) in self.seen


class Agreement(Struct, frozen=True):
    """What all views together show."""

    versioned: Versioned | None
    """The newest record that counts; None where no run has begun, or where the sites disagree."""
    alive: frozenset[str]
    """The names of the sites whose lease holds, as most of those say that answer."""
    disagreement: str | None = None
    """One sentence where sites show records and none of them counts."""


def agreed(views: dict[NodeId, View], names: Sequence[str], fresh_seconds: float) -> Agreement:
    """The newest record that counts; a view is fresh if the register answered within `fresh_seconds`."""
    voters = {n: v for n, v in views.items() if 0 <= v.age_seconds <= fresh_seconds} or views
    sites = {node for view in voters.values() for node in view.standing.alive}
    alive = frozenset(
        node for node in sites if 2 * sum(node in v.standing.alive for v in voters.values()) > len(voters)
    )
    shown = {n: v.standing.versioned for n, v in views.items() if v.record is not None and v.standing.versioned}
    for versioned in sorted(shown.values(), key=lambda v: v.revision, reverse=True):
        votes = {n for n, view in voters.items() if view.votes_for(versioned)}
        if 2 * len(votes) > len(voters) or (versioned.record.holder in votes and len(votes) > 1):
            return Agreement(versioned, alive)
    if not shown:
        return Agreement(None, alive)
    shows = "; ".join(f"{names[n]} shows {_in_words(v)}" for n, v in sorted(shown.items()))
    return Agreement(None, alive, f"The sites disagree about the record, and most confirm none: {shows}.")


def _in_words(versioned: Versioned) -> str:
    record = versioned.record
    return f"run {record.run}, {record.status}, round {record.round} (revision {versioned.revision})"

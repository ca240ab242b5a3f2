"""A federation as the operator sees it: the record that counts, and every site with what it reports."""

from __future__ import annotations

from msgspec import Struct

from tramfl.circulation.custody import Record, Safe
from tramfl.notation import NodeId
from tramfl.runtime.site.lease import ONE_EACH
from tramfl.runtime.transport.revocations import RevocationList, moment_in_words
from tramfl.runtime.wire import SiteReport

APART = ("idle", "joining")
"""What a site does that takes no part in the run, or not yet."""


class SiteStatus(Struct, frozen=True, kw_only=True):
    """One site, as it can be seen from here."""

    site: str
    address: str
    alive: bool
    """Whether its lease holds, as the sites that answer say."""
    answers: bool
    why_not: str | None = None
    report: SiteReport | None = None
    revision: int | None = None
    """Of the record that the site shows."""
    confirms: bool = True
    """Whether the site has seen the record that the status is about."""
    member: bool = True
    """False of a site that was removed."""
    revoked: bool = False
    """Whether its certificate was revoked, and it shows no newer one."""


class FederationStatus(Struct, frozen=True, kw_only=True):
    """A federation, as it can be seen from here."""

    federation: str
    record: Record | None
    revision: int | None
    sites: tuple[SiteStatus, ...]
    disagreement: str | None = None
    """One sentence where sites show records that neither most of them nor the named holder confirm."""
    revoked: RevocationList = RevocationList()
    """Whose certificates are revoked, as the newest list says that a site shows."""

    @property
    def unsigned(self) -> bool:
        """Whether a site that answers has no certificate, so that nothing is signed."""
        return any(site.report is not None and site.report.issued is None for site in self.sites)

    @property
    def revocations(self) -> tuple[str, ...]:
        """One sentence for each name whose certificates are revoked and that has shown no newer one."""
        renewed = {site.site for site in self.sites if not site.revoked}
        return tuple(
            f"Certificates issued to {name} until {moment_in_words(moment)} are revoked: every site refuses them."
            for name, moment in sorted(self.revoked.moments.items())
            if name not in renewed
        )

    @property
    def answering(self) -> tuple[NodeId, ...]:
        """The numbers of the sites that answer."""
        return tuple(number for number, site in enumerate(self.sites) if site.answers)

    @property
    def trusted(self) -> tuple[NodeId, ...]:
        """The sites that answer, those first that confirm the record, and of these the holder first."""
        holder = self.record.holder if self.record is not None else None
        return tuple(sorted(self.answering, key=lambda n: (not self.sites[n].confirms, n != holder, n)))

    @property
    def tensors(self) -> str | None:
        """What most sites report of names, shapes and types of the weights; None where they do not agree."""
        reported = [site.report.tensors for site in self.sites if site.report is not None and site.report.tensors]
        most = max(set(reported), key=reported.count, default=None)
        return most if most is not None and 2 * reported.count(most) > len(reported) else None

    @property
    def model_bytes(self) -> float | None:
        """The median of what the sites report of the size of their model; None where no site does."""
        sizes = sorted(s.report.cost.model_bits / 8 for s in self.sites if s.report is not None and s.report.cost)
        return sizes[(len(sizes) - 1) // 2] if sizes else None

    def name_of(self, node: NodeId) -> str:
        """A site's name."""
        return self.sites[node].site

    @property
    def rests(self) -> bool:
        """Whether the run has come to rest: no site changes the record any more without a new order.

        The run is paused or stopped, its last round is committed and tested, and the weights are at two sites; at
        one, where no other site is left to take them. Only the holder moves a run on, so it is the holder's own
        report that counts, and it must belong to the newest record.
        """
        record = self.record
        if record is None or record.status == "running" or record.holder is None:
            return False
        holder, others = self.sites[record.holder], [s for n, s in enumerate(self.sites) if n != record.holder]
        if holder.report is None or holder.report.doing != "halted" or holder.revision != self.revision:
            return False
        reports = [site.report for site in self.sites if site.report is not None]
        if any(report.beside for report in reports):
            return False
        if any(site.report is not None and site.report.doing not in ("following", "idle") for site in others):
            return False
        return record.newest_is_safe or not any(site.alive or site.answers for site in others)

    @property
    def silence(self) -> str | None:
        """Why the register answers no site that answers here; None where it answers one of them, or none answers."""
        reasons = [site.report.silent for site in self.sites if site.report is not None]
        return reasons[0] if reasons and all(reasons) else None

    @property
    def missing_weights(self) -> str | None:
        """One sentence where all sites that answer take part in the run and none has weights to go on from."""
        record, reports = self.record, [site.report for site in self.sites if site.report is not None]
        if record is None or record.status == "stopped" or not reports:
            return None
        if any(report.run != record.run or report.doing in APART for report in reports):
            return None
        if any({record.weights.digest, record.safe.digest} & set(report.copies) for report in reports):
            return None
        named = [", ".join(map(self.name_of, held.copies)) or "no site" for held in (record.weights, record.safe)]
        return (
            f"No site that answers has the newest weights (of round {record.round:,}, at {named[0]}) or the safe ones"
            f" (of round {record.safe.round:,}, at {named[1]}), so nothing advances: start the sites that have them,"
            " or restore their state folders."
        )

    @property
    def mixed_versions(self) -> str | None:
        """One sentence where sites have different versions of tramfl; None where all that answer have the same."""
        having: dict[str, list[str]] = {}
        for site in self.sites:
            if site.report is not None:
                having.setdefault(_version_of(site.report), []).append(site.site)
        if len(having) < 2:
            return None
        # The version of most sites comes last: the first named are those to look at.
        groups = sorted(having.items(), key=lambda group: len(group[1]))
        parts = [f"{', '.join(sites)} {'has' if len(sites) == 1 else 'have'} {what}" for what, sites in groups]
        return f"The sites' versions differ: {'; '.join(parts)}. Install one version of tramfl at all sites."

    @property
    def twins(self) -> tuple[str, ...]:
        """One sentence for each site of which a second process was started at another place.

        A site whose second process cannot be reached at the site's address says nothing: then the others do.
        """
        reports = {site.site: site.report for site in self.sites if site.report is not None}
        own = {name: (report.twin, report.place) for name, report in reports.items() if report.twin is not None}
        seen: dict[tuple[str, tuple[str, str]], list[str]] = {}
        for witness, report in reports.items():
            for name, places in report.twins.items():
                if name not in own and any(name == site.site for site in self.sites):
                    seen.setdefault((name, places), []).append(witness)
        found = [(name, "", places) for name, places in own.items()]
        found += [(name, f", as {' and '.join(who)} saw", places) for (name, places), who in seen.items()]
        return tuple(
            f"Site {name} was started at two places{who}: {one} and {other}. {ONE_EACH}"
            for name, who, (one, other) in found
        )

    @property
    def model(self) -> Safe | None:
        """What a fetch brings: the safe weights; at a run's end, or of the only site, the newest that there are."""
        record = self.record
        if record is None:
            return None
        final = record.status == "stopped" or len(record.present) == 1
        newest = record.weights
        if final and newest.digest != record.safe.digest and set(newest.copies) & set(self.answering):
            return Safe(record.round, newest.digest, newest.copies, record.ledger, newest.since)
        return record.safe


class RoundTimes(Struct, frozen=True):
    """The time that a round was predicted to take, and took."""

    round: int
    node: str | None
    predicted_seconds: float
    actual_seconds: float
    test_accuracy: float | None
    measured: float | None = None
    """What the run's targets are of, accuracy by default, on the test samples."""
    diverged: bool = False
    """Whether the loss of the round's training was not a finite number."""
    rejected: tuple[str, ...] = ()
    """Sites whose training in this round was not accepted."""
    overhead_seconds: float = 0.0
    """What gathering, deciding, the register and the disk took, beside the actual seconds."""


def _version_of(report: SiteReport) -> str:
    version = f"tramfl {report.version}" if report.version else "a tramfl that does not report its version"
    return f"{version} (protocol {report.protocol or 'not reported'})"

"""What a site reports about itself, to `tramfl status`, to other sites and to its metrics."""

from __future__ import annotations

import datetime
import re

from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Sending
from tramfl.runtime.loads import Meters
from tramfl.runtime.registers import Standing
from tramfl.runtime.site.agreement import agreement_of, digest_of
from tramfl.runtime.site.availability import Availability
from tramfl.runtime.site.driver import Driver
from tramfl.runtime.site.following import RegisterFollower
from tramfl.runtime.site.life import Incarnation
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.model import LocalModel
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.site.status import FinishedRuns
from tramfl.runtime.training import Judgement, Scorer, Workshop
from tramfl.runtime.weights import readout_at
from tramfl.runtime.wire import PROTOCOL, Prepared, SiteReport
from tramfl.version import __version__


class Reporter:
    """Gathers the report from the site's parts."""

    def __init__(
        self,
        member: Member,
        model: LocalModel,
        meters: Meters,
        workshop: Workshop,
        incarnation: Incarnation,
        participation: Participation,
        following: RegisterFollower,
        scorer: Scorer,
        finished: FinishedRuns,
        judgement: Judgement,
        availability: Availability,
    ) -> None:
        self._member, self._model, self._meters = member, model, meters
        self._workshop, self._incarnation = workshop, incarnation
        self._participation, self._following = participation, following
        self._scorer, self._finished, self._judgement = scorer, finished, judgement
        self._availability = availability
        self._agreement = agreement_of(member.federation)
        self._settings = digest_of(self._agreement)
        self._twin: str | None = None

    def note_twin(self, place: str) -> None:
        """Another process of this site ran at `place` when this one joined."""
        self._twin = place

    @property
    def standing(self) -> Standing | None:
        """The record and who is alive, as last seen.

        The record is the newer of what the register's news say and what the round machine has seen: its own swap
        moves the machine on before the news of it arrive, and a report must not show the one beside the other.
        """
        standing, driver = self._following.standing, self._participation.driver
        seen = driver.state.seen if driver is not None else None
        if standing is None and self._member.register.good is not None:
            # The register has not answered yet, or has no record that could be right.
            return Standing(self._member.register.good, frozenset())
        if standing is None or seen is None:
            return standing
        news = standing.versioned
        if news is not None and (news.record.run != seen.record.run or news.revision >= seen.revision):
            return standing
        return Standing(seen, standing.alive)

    @property
    def seen(self) -> tuple[tuple[int, bytes], ...]:
        """The last revisions of the record that this site saw, with their records' fingerprints."""
        return tuple(self._member.register.seen)

    @property
    def age_seconds(self) -> float:
        """How long ago the register answered this site; a year where it never did."""
        return min(self._member.register.age_seconds, 365 * 86400.0)

    @property
    def record(self) -> Record | None:
        """The record as last seen."""
        standing = self.standing
        return standing.versioned.record if standing is not None and standing.versioned is not None else None

    def prepared(self) -> Prepared:
        """What this site brings to a run, for the other sites to compare."""
        model = self._model
        return Prepared(model.initial_digest, self._agreement, model.labels, model.held, model.cost, model.base)

    def report(self) -> SiteReport:
        """What this site is doing."""
        record, driver, mine = self.record, self._participation.driver, self._member.site.file.site
        phase = driver.state.phase if driver is not None else None
        return SiteReport(
            site=mine,
            doing=_doing(record, driver),
            beside=self._beside(),
            rejected=self._judgement.last,
            silent=self._following.silence,
            away=self._away(record.run if record is not None else None),
            run=record.run if record is not None else None,
            epoch=record.epoch if record is not None else None,
            round=record.round if record is not None else None,
            progress=driver.progress if driver is not None else None,
            to=phase.to if isinstance(phase, Sending) else None,
            flops=self._meters.expected_flops() if self._workshop.ready else None,
            bandwidth=self._meters.bandwidths([name for name in self._member.names if name != mine]),
            left_out=self._left_out(),
            held=self._model.held,
            labels=self._model.labels,
            copies=tuple(c.digest for c in driver.state.copies) if driver is not None else (),
            cost=self._model.cost,
            settings=self._settings,
            tensors=self._model.manifest.fingerprint,
            at=self._member.now(),
            incarnation=self._incarnation.number,
            version=__version__,
            protocol=PROTOCOL,
            readout=readout_at(driver.store) if driver is not None else None,
            place=self._member.site.place,
            issued=self._member.revocations.own_issue,
            twin=self._twin,
            twins=self._following.twins,
        )

    def _away(self, run: str | None) -> str:
        unfit = self._participation.why_not(run)
        return self._availability.why_not(datetime.datetime.now()) or (f"not in the run: {unfit}" if unfit else "")

    def _left_out(self) -> dict[str, int]:
        record, driver = self.record, self._participation.driver
        if record is None or driver is None or driver.run != record.run:
            return {}
        names = self._member.names
        now, round_ = self._member.now(), record.round
        lasting = {n: b for n, b in driver.state.backoff.items() if b.lasts(round_, now)}
        return {names[n]: max(b.until, round_ + 1) for n, b in lasting.items()}

    def _beside(self) -> tuple[str, ...]:
        return (*(("testing",) if self._scorer.busy else ()), *(("finishing",) if self._finished.busy else ()))


def _doing(record: Record | None, driver: Driver | None) -> str:
    """The name of the phase in the run of `record`: Following is following, StandingBy standing-by."""
    if driver is None:
        return "idle"
    if record is not None and record.run != driver.run:
        # The driver is that of the run before; a run that has ended and does not fit this site is not joined.
        return "idle" if record.status == "stopped" else "joining"
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(driver.state.phase).__name__).lower()

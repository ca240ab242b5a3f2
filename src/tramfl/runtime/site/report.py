"""What a site reports about itself, to `tramfl status`, to other sites and to its metrics."""

from __future__ import annotations

import re

from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Sending, State
from tramfl.runtime.loads.meters import Meters
from tramfl.runtime.registers.contract import Standing
from tramfl.runtime.site.agreement import digest_of_settings
from tramfl.runtime.site.following import Following
from tramfl.runtime.site.life import Incarnation
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.model import LocalModel
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.training.workshop import Workshop
from tramfl.runtime.wire import Prepared, SiteReport
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
        following: Following,
    ) -> None:
        self._member, self._model, self._meters = member, model, meters
        self._workshop, self._incarnation = workshop, incarnation
        self._participation, self._following = participation, following
        self._settings = digest_of_settings(member.federation)

    @property
    def standing(self) -> Standing | None:
        """The record and who is alive, as last seen."""
        return self._following.standing

    @property
    def record(self) -> Record | None:
        """The record as last seen."""
        return self._following.record

    def prepared(self) -> Prepared:
        """What this site brings to a run, for the other sites to compare."""
        model = self._model
        return Prepared(model.initial_digest, self._settings, model.labels, model.held, model.cost)

    def report(self) -> SiteReport:
        """What this site is doing."""
        record, driver, mine = self.record, self._participation.driver, self._member.site.file.site
        phase = driver.state.phase if driver is not None else None
        return SiteReport(
            site=mine,
            doing=_doing(driver.state) if driver is not None else "idle",
            run=record.run if record is not None else None,
            epoch=record.epoch if record is not None else None,
            round=record.round if record is not None else None,
            progress=driver.progress if driver is not None else None,
            to=phase.to if isinstance(phase, Sending) else None,
            flops=self._meters.expected_flops() if self._workshop.ready else None,
            bandwidth=self._meters.bandwidths([name for name in self._member.names if name != mine]),
            held=self._model.held,
            labels=self._model.labels,
            copies=tuple(c.digest for c in driver.state.copies) if driver is not None else (),
            cost=self._model.cost,
            settings=self._settings,
            at=self._member.now(),
            incarnation=self._incarnation.number,
            version=__version__,
        )


def _doing(state: State) -> str:
    """The name of the phase: Following is following, StandingBy standing-by."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(state.phase).__name__).lower()

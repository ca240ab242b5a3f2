"""A real federation as something to watch: its sites are asked a few times a second.

It is a `Source` of the live view in shape alone: runtime and reporting do not know each other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tramfl.circulation.custody import Record
from tramfl.notation import BadInput, NodeId
from tramfl.record import Doing, Now, Row, RunState, SiteNow
from tramfl.runtime.operator.federation_status import FederationStatus, SiteStatus
from tramfl.runtime.operator.operating import Operator, operator_from

T = TypeVar("T")
SCORE_SECONDS = 3.0
"""A round is shown once its test is known, or after this time: the test comes after the round."""
_DOING: dict[str, Doing] = {
    "gathering": "gathering",
    "deciding": "deciding",
    "sending": "sending",
    "training": "training",
    "storing": "storing",
    "swapping": "storing",
    "waiting": "waiting",
}
"""What a site reports; it rests in every other phase."""
_STATUS: dict[str, RunState] = {"running": "running", "paused": "running", "stopped": "finished"}


class FederationSource:
    """Asks the sites; an event loop of its own, in a thread of its own, keeps the connections open."""

    def __init__(self, file: Path, insecure: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._hand: Operator = self._wait(_opened(file, insecure))
        except BaseException:
            self._end_loop()
            raise
        self._status: FederationStatus | None = None
        self._furthest = 0
        self._rewound = 0
        self._seen: dict[int, float] = {}

    def __enter__(self) -> FederationSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._hand.close())
        self._end_loop()

    def now(self) -> Now:
        """What the sites report."""
        status = self._status = self._wait(self._hand.status())
        scenario, record = self._hand.federation.file.run, status.record
        if record is not None and record.round < self._furthest:
            # A takeover went on from safe weights: rounds after them are done again.
            self._rewound, self._seen = record.epoch, {}
        self._furthest = record.round if record is not None else 0
        labels = next((s.report.labels for s in status.sites if s.report is not None), ())
        cost = next((s.report.cost for s in status.sites if s.report is not None), None)
        return Now(
            run=f"{record.run}/{self._rewound}" if record is not None else "",
            title=status.federation,
            policy=scenario.method_name,
            seed=scenario.seed,
            status=_STATUS[record.status] if record is not None else "preparing",
            clock="real",
            epoch=record.epoch if record is not None else None,
            round=record.round + 1 if record is not None else None,
            holder=_holder(status),
            receiver=next(
                (s.report.to for s in status.sites if s.report is not None and s.report.to is not None), None
            ),
            sites=tuple(_site(site, status) for site in status.sites),
            message=_message(status, record),
            labels=labels,
            variance_limit=scenario.variance_limit,
            targets=scenario.budget.targets,
            metric=scenario.budget.metric,
            lower_is_better=scenario.budget.lower_is_better,
            model_bits=cost.model_bits if cost is not None else None,
            rounds_planned=scenario.budget.rounds,
        )

    def rows(self, after: int) -> Sequence[Row]:
        """Committed rounds, each once its test is known or its time for a test is over."""
        if self._status is None or self._status.record is None:
            return []
        try:
            rows = self._wait(self._hand.rows(self._status, after + 1))
        except BadInput:
            return []  # no site answers at this moment
        at = time.monotonic()
        for number, row in enumerate(rows):
            waited = at - self._seen.setdefault(row.round, at)
            if row.node is not None and not row.is_tested and waited < SCORE_SECONDS:
                return rows[:number]
        return rows

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _opened(file: Path, insecure: bool) -> Operator:
    return operator_from(file, insecure)


def _site(site: SiteStatus, status: FederationStatus) -> SiteNow:
    report, number = site.report, _holder(status)
    holder = status.sites[number].report if number is not None else None
    return SiteNow(
        name=site.site,
        alive=site.answers or site.alive,
        doing="unknown" if report is None else _DOING.get(report.doing, "resting"),
        progress=report.progress if report is not None else None,
        flops=report.flops if report is not None else None,
        bandwidth=holder.bandwidth.get(site.site) if holder is not None else None,
        held=report.held if report is not None else None,
    )


def _holder(status: FederationStatus) -> NodeId | None:
    return status.record.holder if status.record is not None else None


def _message(status: FederationStatus, record: Record | None) -> str:
    if not status.answering:
        return "No site answers."
    if record is None:
        return status.disagreement or "No run has begun."
    if record.status == "paused":
        return "The run is paused."
    if record.holder is None:
        return "Nobody holds the model: its holder has lost the weights, and another site takes over."
    return ""

"""All that one site measures: the load of its machine, its speed of training, the bandwidth to the other sites."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tramfl.circulation.passage import Crossing
from tramfl.notation import ModelCost, Outlook
from tramfl.runtime.journal import Log
from tramfl.runtime.loads.compute import ComputeMeter
from tramfl.runtime.loads.history import History
from tramfl.runtime.loads.links import Direction, LinkMeter
from tramfl.runtime.loads.machine import Machine
from tramfl.runtime.loads.outlook import outlook_of


class Meters:
    """One site's meters, which go on from what they knew in the site's last life."""

    def __init__(
        self,
        cost: ModelCost,
        flops: float,
        *,
        predictor: str,
        threads: int | None,
        history: Path,
        log: Log,
        training_pid: Callable[[], int | None],
    ) -> None:
        """`flops` is what a short trial gave; `threads` the cores that the site trains on, None for all."""
        self._machine = Machine(extra_pids=lambda: [pid] if (pid := training_pid()) else [])
        self._history = History(history, log)
        cores = os.cpu_count() or 1
        self._compute = ComputeMeter(cost.flops_per_sample, predictor, min(1.0, (threads or cores) / cores))
        self._compute.calibrated(flops, self._machine.busy_share())
        self._links = LinkMeter(predictor, cost.model_bits)
        self._history.restore(self._compute, self._links)

    def read_machine(self) -> None:
        """Take a reading. It is the mean since the last one, so long pauses between two would blur it."""
        self._machine.busy_share()
        self._machine.traffic()

    def available_flops(self) -> float:
        """FLOPS that this site can spare now."""
        return self._compute.available(self._machine.busy_share(), time.monotonic())

    def expected_flops(self) -> float:
        """FLOPS as last predicted, without a reading."""
        return self._compute.expected()

    def trained(self, samples: int, seconds: float) -> None:
        """A training of `samples` took `seconds`, beside everything else that ran here."""
        self._compute.trained(samples, seconds, self._machine.busy_share())

    def bandwidth(self, site: str, direction: Direction = "to") -> float | None:
        """bit/s of a hop to or from another site, beside the traffic of others; None where it is not known."""
        return self._links.bandwidth(site, direction, self._machine.traffic() if direction == "to" else None)

    def usual_bandwidth(self) -> float | None:
        """The median bit/s of the links from here that are known; None where none is."""
        return self._links.usual_bandwidth()

    def has_carried(self, site: str, direction: Direction = "to") -> bool:
        """Whether a model has crossed the link in this direction."""
        return self._links.has_carried(site, direction)

    def bandwidths(self, sites: Sequence[str]) -> dict[str, float]:
        """bit/s to each of these sites, as last predicted, as far as known."""
        known = {site: self._links.bandwidth(site) for site in sites}
        return {site: bits for site, bits in known.items() if bits is not None}

    def moving(self) -> AbstractContextManager[None]:
        """While this site sends or receives a model, or probes a link: the traffic is its own."""
        return self._machine.moving()

    @property
    def is_moving(self) -> bool:
        """Whether this site is moving something now."""
        return self._machine.is_moving

    def moved(self, site: str, direction: Direction, crossing: Crossing | None) -> None:
        """A transfer from or to a site has just ended."""
        if crossing is not None:
            bits, seconds, latency = crossing
            self._links.moved(site, direction, bits, seconds, time.monotonic(), latency)

    def probed(self, site: str, bandwidth: float, latency: float, began: float) -> None:
        """A short trial, begun at this second, gave this bandwidth and latency to a site."""
        self._links.probed(site, bandwidth, latency, began)

    def due(self, sites: Sequence[str]) -> str | None:
        """A site to which the link should be probed while it is idle; None where all are known well enough."""
        at = time.monotonic()
        return next((site for site in sites if self._links.is_due(site, at)), None)

    def outlook(self, sites: Sequence[str], me: int) -> Outlook | None:
        """How this site's loads behave, for a policy that looks ahead; None while too little was observed."""
        return outlook_of(self._compute, self._links, sites, me)

    def keep(self) -> None:
        """Save the history, unless that was only a moment ago."""
        self._history.keep(self._compute, self._links, time.monotonic())

    def save(self) -> None:
        """Save the history."""
        self._history.save(self._compute, self._links)

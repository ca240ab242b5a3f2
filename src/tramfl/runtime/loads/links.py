"""b_ij: the bandwidth to and from each other site, learnt from transfers and probes. Pure: times are arguments."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as part
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tramfl.runtime.loads.series import KEPT, Observed, ObservedSeries, Pace, Seconds

Direction = Literal["to", "from"]
"""Of a model: to a peer, or from it. The two directions of a link are learnt apart."""

FIRST_CALIBRATION, LAST_CALIBRATION = 15.0, 3600.0
"""Seconds of silence after which an idle link is probed again; they double with every probe, and any transfer ends
the doubling. So a bad first probe, made while all sites started, is soon replaced, and a quiet link costs little."""


class LinkMemory(Struct, frozen=True, kw_only=True):
    """What a LinkMeter keeps of one direction of a link over a restart."""

    transfers: tuple[Observed, ...] = ()
    """bit/s of transfers, latency included."""
    latency: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    gain: Observed = 1.0
    every: Seconds | None = None
    """The usual seconds between two of the transfers."""


class LinksMemory(Struct, frozen=True, kw_only=True):
    """What a LinkMeter keeps over a restart."""

    model_bits: Observed | None = None
    """The size of model that the rates are for."""
    to: dict[str, LinkMemory] = field(default_factory=dict)
    sources: dict[str, LinkMemory] = field(default_factory=dict)


@dataclass
class _Link:
    """One direction."""

    rates: ObservedSeries
    """Effective bit/s of transfers of the model's size."""
    pace: Pace = part(default_factory=Pace)
    latency: float | None = None
    """Seconds of a transfer that do not depend on its bits."""
    probed: float | None = None
    """bit/s of the newest probe, where no transfer came after it."""
    gain: float = 1.0
    """What a probe of this link finds, divided by the bandwidth that transfers have."""
    traffic: float = 0.0
    """Of others, when last observed."""
    seen: float = -math.inf
    """When a transfer or a probe last ended."""
    quiet: float = FIRST_CALIBRATION
    """Seconds after `seen` at which to probe again."""


class LinkMeter:
    """b_ij: bit/s such that D_M / b_ij is how long the model's next hop will take.

        hop seconds = latency + bits / bandwidth

    The latency is asking, opening, verifying and writing to disk. Every transfer shows both: its sender knows when
    the receiver said "proceed", when the last byte had arrived, and when the model was accepted. A transfer that was
    resumed or given up shows the bandwidth alone.

    A probe is a guess. It is all there is before the first transfer. Afterwards it only says whether the link has
    changed: a probe within a factor CHANGED of what the transfers let expect changes nothing. Time alone changes
    nothing either: a link that was quiet is as fast as it last was.
    """

    CHANGED = 2.0
    _WEIGHT = 0.3
    """Of a new observation of latency or gain."""
    _LEAST_PART, _LEAST_SECONDS = 0.25, 1.0
    """A part of a model that is smaller and took less time shows mostly how a connection begins."""

    def __init__(self, predictor: str, model_bits: float | None = None) -> None:
        """`model_bits`: the size to predict for; without it, the size of the last whole transfer."""
        self._predictor = predictor
        self._fixed_bits, self._bits = model_bits is not None, model_bits
        self._links: dict[tuple[str, Direction], _Link] = {}
        self._traffic = 0.0

    def moved(
        self,
        peer: str,
        direction: Direction,
        bits: float,
        seconds: float,
        at: float,
        latency: float | None = None,
    ) -> None:
        """Bits of a model have crossed a link.

        `latency` is the part of `seconds` that did not depend on the bits. It is None where only the bits were timed,
        as of a transfer that was resumed or given up.
        """
        if not (bits > 0 and 0 < seconds < math.inf):
            return
        link = self._link(peer, direction)
        if latency is None:
            whole = self._bits or bits
            if link.rates.values and bits < self._LEAST_PART * whole and seconds < self._LEAST_SECONDS:
                return
            flowing = seconds
        else:
            latency = min(max(latency, 0.0), 0.9 * seconds)
            flowing = seconds - latency
            known = latency if link.latency is None else link.latency
            link.latency = known + self._WEIGHT * (latency - known)
            if not self._fixed_bits:
                self._bits = bits
        bandwidth = bits / flowing
        if link.probed is not None:
            link.gain *= (link.probed / bandwidth / link.gain) ** self._WEIGHT
            link.gain = min(max(link.gain, 1 / self.CHANGED), self.CHANGED)
            link.probed = None
        # Of a whole transfer its own latency belongs to the rate: then bits / rate is what it took.
        link.rates.add(self._effective(bandwidth, self._latency(link) if latency is None else latency))
        link.pace.observed(at)
        link.traffic, link.seen, link.quiet = self._traffic, at, FIRST_CALIBRATION

    def probed(self, peer: str, bandwidth: float, latency: float, at: float) -> None:
        """A probe found this bandwidth to a peer; `latency` is that of an empty exchange with it."""
        if not (0 < bandwidth < math.inf and 0 <= latency < math.inf):
            return
        link = self._link(peer, "to")
        if link.seen > at:
            return  # a transfer has ended since: it knows better
        if link.latency is None:
            link.latency = latency
        link.probed = bandwidth
        link.traffic, link.seen = self._traffic, at
        link.quiet = min(2 * link.quiet, LAST_CALIBRATION)

    def bandwidth(self, peer: str, direction: Direction = "to", other_traffic: float | None = None) -> float | None:
        """b_ij for a whole hop, latency included; None where nothing was ever observed: then probe.

        `other_traffic`: bit/s that others move over this machine's network now. An increase since the link was last
        observed is subtracted, down to half of the rate, since others share a link. A decrease adds nothing: the
        traffic may have gone over another link.
        """
        if other_traffic is not None:
            self._traffic = other_traffic
        link = self._links.get((peer, direction))
        rate = self._rate(link) if link is not None else None
        if link is None or rate is None or other_traffic is None:
            return rate
        return max(rate - max(0.0, other_traffic - link.traffic), rate / 2)

    def usual_bandwidth(self) -> float | None:
        """The median b_ij of the links from here that are known: a guess for another; None where none is known."""
        rates = [self._rate(link) for (_, direction), link in self._links.items() if direction == "to"]
        known = [rate for rate in rates if rate is not None]
        return statistics.median(known) if known else None

    def latency(self, peer: str, direction: Direction = "to") -> float:
        """Seconds of a hop that do not depend on the model's size, as far as known."""
        link = self._links.get((peer, direction))
        return self._latency(link) if link is not None else 0.0

    def has_carried(self, peer: str, direction: Direction) -> bool:
        """Whether the rate of a link is that of transfers, and not that of a probe alone."""
        link = self._links.get((peer, direction))
        return link is not None and bool(link.rates.values)

    def is_due(self, peer: str, at: float) -> bool:
        """Whether the way to a peer should be probed as soon as nothing else uses it."""
        link = self._links.get((peer, "to"))
        return link is None or at - link.seen >= link.quiet

    def past(self, peer: str) -> tuple[Sequence[float], float, float | None]:
        """The observed rates to a peer, the next as predicted, and the usual seconds between two; NaN where none."""
        link = self._links.get((peer, "to"))
        if link is None or not link.rates.values or (rate := self._rate(link)) is None:
            return (), math.nan, None
        return link.rates.values, rate, link.pace.seconds

    def memory(self) -> LinksMemory:
        """What to keep."""

        def kept(wanted: Direction) -> dict[str, LinkMemory]:
            return {
                peer: LinkMemory(
                    transfers=tuple(x.rates.values), latency=x.latency, gain=x.gain, every=x.pace.seconds
                )
                for (peer, direction), x in self._links.items()
                if direction == wanted and x.rates.values
            }

        return LinksMemory(model_bits=self._bits, to=kept("to"), sources=kept("from"))

    def recall(self, memory: LinksMemory) -> None:
        """Go on from what was kept; every link is due for a probe once nothing else uses it."""
        if self._bits is None:
            self._bits = memory.model_bits
        bits = memory.model_bits or self._bits or 1.0
        kept: tuple[tuple[Direction, dict[str, LinkMemory]], ...] = (("to", memory.to), ("from", memory.sources))
        for direction, peers in kept:
            for peer, before in peers.items():
                link = self._link(peer, direction)
                link.latency, link.gain, link.pace.seconds = before.latency, before.gain, before.every
                for rate in before.transfers[-KEPT:]:
                    took = bits / rate
                    latency = min(self._latency(link), 0.9 * took)
                    link.rates.add(self._effective(bits / (took - latency), latency))

    def _link(self, peer: str, direction: Direction) -> _Link:
        return self._links.setdefault((peer, direction), _Link(ObservedSeries(self._predictor)))

    def _rate(self, link: _Link) -> float | None:
        """Effective bit/s of the next transfer, other traffic apart."""
        carried = link.rates.next() if link.rates.values else None
        if link.probed is None:
            return carried
        probed = self._effective(link.probed / link.gain, self._latency(link))
        if carried is None or not carried / self.CHANGED <= probed <= carried * self.CHANGED:
            return probed
        return carried

    def _latency(self, link: _Link) -> float:
        return link.latency or 0.0

    def _effective(self, bandwidth: float, latency: float) -> float:
        """bit/s of a whole transfer of the model's size."""
        return bandwidth if self._bits is None else self._bits / (latency + self._bits / bandwidth)

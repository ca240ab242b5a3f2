"""b_ij: the bandwidth to each other site, learnt from transfers and probes. Pure: times are arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as part
from typing import Annotated

from msgspec import Meta, Struct, field

from tramfl.runtime.loads.series import KEPT, Observed, ObservedSeries, Pace, Seconds

FRESH_SECONDS = 60.0
"""A link that nothing has crossed for this long is probed before it is used."""


class LinkMemory(Struct, frozen=True, kw_only=True):
    """What a LinkMeter keeps of one peer over a restart."""

    rates: tuple[Observed, ...] = ()
    overhead: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    every: Seconds | None = None
    """The usual seconds between two of the rates."""


class LinksMemory(Struct, frozen=True, kw_only=True):
    """What a LinkMeter keeps over a restart."""

    model_bits: Observed | None = None
    """The size of model that the rates are for."""
    peers: dict[str, LinkMemory] = field(default_factory=dict)


@dataclass
class _Link:
    rates: ObservedSeries
    """Effective bit/s of a transfer of the usual size."""
    at: float = -math.inf
    traffic: float = 0.0
    """Of others, when last observed."""
    probed: float | None = None
    """bit/s of a probe that no transfer has followed yet."""
    overhead: float | None = None
    pace: Pace = part(default_factory=Pace)

    def add(self, rate: float, at: float) -> None:
        """A transfer or a probe showed this rate."""
        self.rates.add(rate)
        self.pace.observed(at)


class LinkMeter:
    """b_ij: bit/s such that D_M / b_ij is how long the model's next transfer will take.

    A transfer takes overhead + bits / bandwidth: connecting, the way there and back, checking and writing to disk
    take their time at any size. All models of a run have one size, so bits / seconds of a transfer, with the overhead
    in it, is the b_ij that is wanted. Observations of another size, above all probes, are converted to that size
    first. The overhead for this is learnt from transfers that followed a probe of the same link. Before the first
    transfer a probe is all there is, and it measures the bits alone.
    """

    _WEIGHT = 0.3
    """Of a new observation of the overhead."""

    def __init__(self, predictor: str, fresh_seconds: float = FRESH_SECONDS, model_bits: float | None = None) -> None:
        """`model_bits`: the size to predict for; without it, the size of the last transfer."""
        self._predictor, self._fresh = predictor, fresh_seconds
        self._fixed_bits, self._bits = model_bits is not None, model_bits
        self._links: dict[str, _Link] = {}
        self._traffic = 0.0

    def moved(self, peer: str, bits: float, seconds: float, at: float) -> None:
        """A model went to, or came from, a peer."""
        if not (bits > 0 and seconds > 0):
            return
        link = self._link(peer)
        if link.probed is not None:
            seen = max(0.0, seconds - bits / link.probed)
            known = seen if link.overhead is None else link.overhead
            link.overhead = known + self._WEIGHT * (seen - known)
        if not self._fixed_bits:
            self._bits = bits
        self._moved(link, bits, seconds, at)

    def _moved(self, link: _Link, bits: float, seconds: float, at: float) -> None:
        # An overhead that leaves nothing for the bits themselves was not there this time.
        overhead = min(self._overhead(link), 0.9 * seconds)
        if overhead > seconds / 2 and self._bits is not None and bits < self._bits / 2:
            return  # too few bits to predict many
        link.add(self._effective(bits / (seconds - overhead), overhead), at)
        link.at, link.traffic, link.probed = at, self._traffic, None

    def probed(self, peer: str, bandwidth: float, at: float) -> None:
        """A probe found this bandwidth; its own latency is already subtracted."""
        if not (bandwidth > 0 and math.isfinite(bandwidth)):
            return
        link = self._link(peer)
        link.probed = bandwidth
        link.at, link.traffic = at, self._traffic
        if link.overhead is not None:
            link.add(self._effective(bandwidth, link.overhead), at)

    def bandwidth(self, peer: str, at: float, other_traffic: float | None = None) -> float | None:
        """b_ij, or None where it is not known or too old: then probe.

        `other_traffic`: bit/s that others move over this machine's network now. An increase since the link was last
        observed is subtracted, down to half of the rate, since others share a link. A decrease adds nothing: the
        traffic may have gone over another link.
        """
        if other_traffic is not None:
            self._traffic = other_traffic
        link = self._links.get(peer)
        if link is None or at - link.at > self._fresh:
            return None
        rate = link.rates.next() if link.probed is None or link.overhead is not None else None
        if rate is None:
            assert link.probed is not None
            rate = self._effective(link.probed, self._overhead(link))
        if other_traffic is None:
            return rate
        return max(rate - max(0.0, other_traffic - link.traffic), rate / 2)

    def past(self, peer: str) -> tuple[Sequence[float], float, float | None]:
        """The observed rates of a link, the next one as predicted, and the usual seconds between two; NaN where none.

        The prediction does not have to be fresh: it is for a look beyond the coming round.
        """
        link = self._links.get(peer)
        if link is None or (rate := link.rates.next()) is None:
            return (), math.nan, None
        return link.rates.values, rate, link.pace.seconds

    def memory(self) -> LinksMemory:
        """What to keep."""
        peers = {
            peer: LinkMemory(rates=tuple(x.rates.values), overhead=x.overhead, every=x.pace.seconds)
            for peer, x in self._links.items()
        }
        return LinksMemory(model_bits=self._bits, peers=peers)

    def recall(self, memory: LinksMemory) -> None:
        """Go on from what was kept; nothing of it is fresh."""
        if self._bits is None:
            self._bits = memory.model_bits
        bits = memory.model_bits or self._bits or 1.0
        for peer, kept in memory.peers.items():
            link = self._link(peer)
            link.overhead = kept.overhead
            for rate in kept.rates[-KEPT:]:
                self._moved(link, bits, bits / rate, -math.inf)
            link.pace.seconds = kept.every

    def _link(self, peer: str) -> _Link:
        return self._links.setdefault(peer, _Link(ObservedSeries(self._predictor)))

    def _overhead(self, link: _Link) -> float:
        """This link's overhead, or the mean of the other links': most of it is writing to disk."""
        if link.overhead is not None:
            return link.overhead
        known = [other.overhead for other in self._links.values() if other.overhead is not None]
        return sum(known) / len(known) if known else 0.0

    def _effective(self, bandwidth: float, overhead: float) -> float:
        """bit/s of a whole transfer of the model's size."""
        return bandwidth if self._bits is None else self._bits / (overhead + self._bits / bandwidth)

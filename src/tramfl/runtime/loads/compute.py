"""r_i: the FLOPS that a site can spare, learnt from its trainings. Pure: observations and times are arguments."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta, Struct

from tramfl.runtime.loads.series import KEPT, Observed, ObservedSeries, Pace, Seconds, Share


class ComputeMemory(Struct, frozen=True, kw_only=True):
    """What a ComputeMeter keeps over a restart."""

    flops_per_sample: Observed
    full: tuple[Observed, ...] = ()
    busy: tuple[Share, ...] = ()
    competitors: Annotated[float, Meta(ge=0, le=1e3)] = 1.0
    rates: tuple[Observed, ...] = ()
    every: Seconds | None = None
    """The usual seconds between two of the rates."""


class ComputeMeter:
    """r_i: the FLOPS that the next training will get.

        r = full / (1 + c d)

    full is the speed with the machine to ourselves: that of each timed training, divided by the share of the cores
    that others left it meanwhile. d is the share that others keep busy while we do not train, predicted from the
    rounds before. A busy core is not lost: the processes on it share it with ours. c is the number of processes that
    share it; it is 1 at first, then learnt from how much the others gave way in trainings.
    """

    _LEAST_FREE = 0.25
    """Readings beside a short training are rough, and a division by a small share would multiply the error."""
    _WEIGHT = 0.3
    """Of a new observation of c, and of how much work is usual."""
    _MOST_COMPETITORS = 20.0

    def __init__(self, flops_per_sample: float, predictor: str, cores_share: float = 1.0) -> None:
        """`cores_share`: the part of the machine's cores that we train on; the rest costs us nothing."""
        self._flops_per_sample = flops_per_sample
        self._cores_share = cores_share
        self._full, self._busy = ObservedSeries(predictor), ObservedSeries(predictor)
        self.rates: deque[float] = deque(maxlen=KEPT)
        """r_i as each reading of the machine showed it, the newest last."""
        self.pace = Pace()
        """Of the readings."""
        self._competitors = 1.0
        self._busy_before = 0.0
        self._calibrated: float | None = None
        self._usual_work: float | None = None
        self._pool_work = self._pool_seconds = 0.0

    def calibrated(self, flops: float, busy_share: float = 0.0) -> None:
        """The FLOPS of a trial before the first training."""
        self._calibrated = flops / self._left_by(busy_share)

    def trained(self, samples: int, seconds: float, busy_share: float = 0.0) -> None:
        """A training took `seconds` while others kept a share of the cores busy."""
        if samples <= 0 or not seconds > 0:
            return
        rate = self._pooled(samples * self._flops_per_sample, seconds)
        if rate is None:
            return
        left = self._left_by(busy_share)
        self._full.add(rate / left)
        if self._busy_before > 0.1:
            seen = min((1 / left - 1) / self._busy_before, self._MOST_COMPETITORS)
            self._competitors += self._WEIGHT * (seen - self._competitors)

    def available(self, busy_share: float, at: float | None = None) -> float:
        """r_i for the next round, where others keep a share of the cores busy now. Call it once a round.

        `at` is the second of the reading, by any clock that never goes back.
        """
        self._busy_before = self._wanted(busy_share)
        self._busy.add(self._busy_before)
        self.rates.append(self._shared(self._busy_before))
        if at is not None:
            self.pace.observed(at)
        return self.expected()

    def expected(self) -> float:
        """The same without a new look at the machine: for reports."""
        return self._shared(self._busy.next() or 0.0)

    def _shared(self, busy: float) -> float:
        """FLOPS where others want this share of our cores."""
        full = self._full.next() or self._calibrated
        if full is None:
            raise RuntimeError("nothing was trained yet, and nothing calibrated")
        return full / (1 + self._competitors * busy)

    def memory(self) -> ComputeMemory:
        """What to keep."""
        return ComputeMemory(
            flops_per_sample=self._flops_per_sample,
            full=tuple(self._full.values),
            busy=tuple(self._busy.values),
            competitors=self._competitors,
            rates=tuple(self.rates),
            every=self.pace.seconds,
        )

    def recall(self, memory: ComputeMemory) -> None:
        """Go on from what was kept. Full speed depends on the model: that of another model does not count."""
        for share in memory.busy[-KEPT:]:
            self._busy.add(share)
        self._competitors = memory.competitors
        if math.isclose(memory.flops_per_sample, self._flops_per_sample):
            for flops in memory.full[-KEPT:]:
                self._full.add(flops)
            self.rates.extend(memory.rates)
            self.pace.seconds = memory.every

    def _pooled(self, work: float, seconds: float) -> float | None:
        """Work per second, once there is enough of it: a short training is mostly its beginning and its end."""
        usual = work if self._usual_work is None else self._usual_work
        self._usual_work = usual + self._WEIGHT * (work - usual)
        self._pool_work += work
        self._pool_seconds += seconds
        if self._pool_work < usual / 4:
            return None
        rate = self._pool_work / self._pool_seconds
        self._pool_work = self._pool_seconds = 0.0
        return rate

    def _wanted(self, busy_share: float) -> float:
        """The part of our cores that others use; they take the cores that we do not use first."""
        elsewhere = 1 - self._cores_share
        return min(1.0, max(0.0, busy_share - elsewhere) / self._cores_share)

    def _left_by(self, busy_share: float) -> float:
        return max(self._LEAST_FREE, 1 - self._wanted(busy_share))

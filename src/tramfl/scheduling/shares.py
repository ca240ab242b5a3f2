"""P4 for a mix of labels other than the uniform one, and allotments of a given size.

With p_c the share of label c to aim for (they sum to 1) and C labels, the relative counts are u_c = y_c / (C p_c).
What V bounds is their variance, each label weighted with its share:

    Var(u) = sum_c p_c (u_c - ubar)^2 = (1 / C^2) (sum_c y_c^2 / p_c - Y^2),    Y = sum_c y_c

It is 0 where the counts have exactly the shares, and with p_c = 1 / C it is the paper's variance of the counts.

**Which samples.** For a given total the sum of y_c^2 / p_c is separable and convex, so the cheapest samples come
first: the sample that raises label c from y to y + 1 costs (2 y + 1) / p_c. This is the water level of
`water_level.py`, in relative counts.

**How many.** The largest feasible total lies between two totals that follow from the continuous problem. Above the
level where the continuous variance exceeds V nothing is feasible, since whole samples are a special case of it. Where
C^2 Var is below C^2 V by at least K = sum_c 1 / p_c + max_c 1 / p_c, every whole total is feasible: all labels that
rise can be rounded by less than one sample each so that the total stays, the linear terms cancel, and the squares
come to at most the sum; the last term is for the step from one whole total to the next at the least variance. Between
the two levels every total is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tramfl.notation import BadInput, Reals
from tramfl.scheduling.water_level import MARGIN, Allotment

_MOST = 1 << 22
"""Totals that are tried at most. More lie between the two only where V is below K / C^2, so that rounding alone may
break it, and the node holds millions of samples."""


def named_shares(
    balance: Literal["uniform", "population"] | Mapping[str, float] | None, labels: Sequence[str]
) -> tuple[float, ...] | Literal["population"] | None:
    """What `balance` of a scenario means for these labels: shares, "population", or None where it is uniform."""
    if balance is None or balance == "uniform":
        return None
    if balance == "population":
        return "population"
    assert not isinstance(balance, str)
    if unknown := sorted(balance.keys() - set(labels)):
        raise BadInput(f"balance: there is no label {unknown[0]!r}; the labels are {', '.join(labels)}.")
    if missing := [label for label in labels if label not in balance]:
        raise BadInput(f"balance: label {missing[0]!r} has no share; give every label one above 0.")
    total = sum(balance.values())
    return tuple(balance[label] / total for label in labels)


def relative_variances(counts: NDArray[np.int64], shares: Reals) -> Reals:
    """Var(u) of every row of `counts`."""
    deviation = counts - shares * counts.sum(axis=-1, keepdims=True)
    spread: Reals = (deviation * deviation / shares).sum(axis=-1) / counts.shape[-1] ** 2
    return spread


def largest_relative_allotment(
    used: NDArray[np.int64], held: NDArray[np.int64], shares: Reals, variance_limit: float
) -> Allotment:
    """P4 with shares, in whole samples, for every row of `held` (N, C); `used` is one history (C,), or one a row."""
    histories = np.broadcast_to(used, held.shape)
    rows = [_largest(a, stock, shares, variance_limit) for a, stock in zip(histories, held, strict=True)]
    samples = np.array(rows, dtype=np.int64).reshape(held.shape)
    variance = relative_variances(used + samples, shares)
    feasible = variance <= variance_limit * (1.0 + 1e-9)
    return Allotment(samples, samples.sum(axis=1), variance, feasible)


def filled(used: NDArray[np.int64], stock: NDArray[np.int64], shares: Reals, total: int) -> NDArray[np.int64]:
    """The allotment of `total` samples, or of all there are, that leaves the least variance."""
    if total >= stock.sum():
        return stock.copy()
    pool = _Pool(used, stock, shares)
    begin = pool.below(pool.level(total))
    label, _ = _cheapest(used + begin, stock - begin, shares, total - int(begin.sum()))
    return begin + np.bincount(label, minlength=used.size)


def _largest(used: NDArray[np.int64], stock: NDArray[np.int64], shares: Reals, limit: float) -> NDArray[np.int64]:
    """The largest allotment within V; where there is none, the one that comes closest."""
    labels = used.size
    admitted, slack = limit * labels**2 * (1.0 + MARGIN), float((1.0 / shares).sum() + 1.0 / shares.min())
    pool = _Pool(used, stock, shares)
    turn = pool.turn()
    least = pool.scaled_variance(turn)
    if least + slack <= admitted:
        low, top = pool.crossing(admitted - slack, turn), pool.crossing(admitted, turn)
    else:
        # Rounding may break V at every level: the best is where the continuous variance is near its least.
        low, top = pool.falling(least + slack, turn), pool.crossing(max(admitted, least + slack), turn)
    highest = min(math.floor(pool.total(top) * (1.0 + 1e-12) + 1e-6), int(stock.sum()))
    if highest - pool.total(low) > _MOST:
        low = pool.level(highest - _MOST)
    begin = pool.below(low)
    label, cost = _cheapest(used + begin, stock - begin, shares, max(0, highest - int(begin.sum())))
    start = used + begin
    # Each sample at its cost less what the mean gains by it: small numbers, however large the counts are.
    rise = np.cumsum(cost - (2.0 * (int(start.sum()) + np.arange(label.size)) + 1.0))
    at_start = float(relative_variances(start[np.newaxis, :], shares)[0]) * labels**2
    found = np.concatenate(([at_start], at_start + rise))
    noise = 1e-15 * labels * float(np.abs(cost).sum())
    within = (found <= admitted + noise).nonzero()[0]
    taken = int(within[-1]) if within.size else int(found.size - 1 - np.argmin(found[::-1]))
    return begin + np.bincount(label[:taken], minlength=labels)


def _cheapest(
    start: NDArray[np.int64], left: NDArray[np.int64], shares: Reals, count: int
) -> tuple[NDArray[np.int64], Reals]:
    """The labels of the next `count` samples, the cheapest first, and what each costs."""
    most = np.minimum(left, count)
    label = np.repeat(np.arange(start.size), most)
    place = np.arange(label.size) - np.repeat(most.cumsum() - most, most)
    cost: Reals = (2.0 * (start[label] + place) + 1.0) / shares[label]
    order = np.argsort(cost, kind="stable")[:count]
    return label[order], cost[order]


class _Pool:
    """The continuous problem of one node: at level t label c has y_c(t) = clip(t p_c, a_c, a_c + l_c)."""

    def __init__(self, used: NDArray[np.int64], stock: NDArray[np.int64], shares: Reals) -> None:
        self._a, self._top, self._p = used.astype(np.float64), (used + stock).astype(np.float64), shares
        self._before = float(used.sum())
        self._full = float((self._top / shares).max())

    def total(self, level: float) -> float:
        """Samples that the node trains at a level."""
        return float(self._filled(level).sum()) - self._before

    def scaled_variance(self, level: float) -> float:
        """C^2 Var(u) at a level."""
        y = self._filled(level)
        deviation = y - self._p * y.sum()
        return float((deviation * deviation / self._p).sum())

    def turn(self) -> float:
        """The lowest level with the least variance: from there on the level is at least the sum of all y."""
        return self._first(lambda t: t >= float(self._filled(t).sum()) * (1.0 - 1e-12), 0.0)

    def crossing(self, admitted: float, turn: float) -> float:
        """The highest level, from the turn on, whose variance is admitted; the turn itself where none is."""
        return self._first(lambda t: self.scaled_variance(t) > admitted, turn)

    def falling(self, admitted: float, turn: float) -> float:
        """The lowest level, up to the turn, whose variance is admitted."""
        return self._first(lambda t: self.scaled_variance(t) <= admitted, 0.0, turn)

    def level(self, total: float) -> float:
        """The lowest level at which the node trains this much."""
        return self._first(lambda t: self.total(t) >= total, 0.0)

    def below(self, level: float) -> NDArray[np.int64]:
        """An allotment of which every label is at or below that of the best whole allotment with the level's total.

        The best one rounds y_c at some other level. All its roundings together add up to at most C / 2 samples, of
        which label c has the part p_c / P, with P the shares of the labels that rise.
        """
        y = self._filled(level)
        rising = float(self._p[(self._a < y) & (y < self._top)].sum()) or 1.0
        band = np.ceil(self._p / rising * y.size / 2) + 1.0
        found: NDArray[np.int64] = np.maximum(np.floor(y) - band, self._a).astype(np.int64)
        return found - self._a.astype(np.int64)

    def _filled(self, level: float) -> Reals:
        filled: Reals = np.minimum(np.maximum(level * self._p, self._a), self._top)
        return filled

    def _first(self, true: Callable[[float], bool], low: float, high: float | None = None) -> float:
        """The lowest level from which something holds, to the last bit; `high`, or a full node's, where none does."""
        high = self._full if high is None else high
        if true(low):
            return low
        while True:
            middle = (low + high) / 2
            if not low < middle < high:
                return high
            if true(middle):
                high = middle
            else:
                low = middle

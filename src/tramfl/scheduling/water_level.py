"""P4, exactly: the most samples a node may train while the labels stay balanced.

    maximise    sum_c s_c
    subject to  Var_c(a_c + s_c) <= V,   0 <= s_c <= l_c

with a_c the samples of label c used so far and l_c those the node holds.

**One level decides.** For a given total the variance is least when the lowest labels are filled first, so
the optimum is y_c(t) = clip(t, a_c, a_c + l_c), s_c = y_c - a_c, for one water level t. Let m(t) be the
number of labels that rise with t (a_c < t < a_c + l_c) and w(t) = C t - sum_c y_c(t). Then

    d/dt C^2 Var = 2 m w(t),        dw/dt = C - m >= 0,

so the variance falls until w = 0, at level t*, and rises from there on: the feasible levels are an interval
and its upper end is the answer. Between two neighbouring breakpoints (the a_c and a_c + l_c) m is constant
and the variance a quadratic in t: sort the breakpoints, sum, take one root.

**No cancellation.** The rise is summed from t* upwards, where every term is positive, and added to the
variance at t*, which is measured from its own mean. Counts of 1e9 cost no digits that V would miss.

**Whole samples.** At an integer level T raise j of the labels that sit exactly there by one: with
S = sum_c (y_c - T), C^2 Var grows by (C - 2 S) j - j^2, concave in j. Hence between two infeasible integer
levels everything is infeasible, and above the largest feasible one the lower root says how many may rise.
For its total this is the least variance there is, so it is the true integer optimum. A V that fractions
can meet and whole samples cannot is infeasible too.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tramfl.notation import BadInput, Reals

MARGIN = 1e-12
"""V is met to one part in 1e12, so that a V written as 0.6666666666666666 admits the counts it means."""

_WHOLE = 2**52
"""C times any level stays below it: sums of such whole numbers are exact and leave a float64's last bit free."""

_ULPS = 2.0**-50
"""The rounding that a level may carry, relative to it."""

_TINY = 1e-200
"""Below any root that is not 0: what 0 is divided by instead of 0."""

_BLOCK = 1 << 14
"""Entries of `held` handled at once: small enough that the intermediates stay in the cache."""

_SPARSE = 2
"""Nodes that hold at most one label in this many are solved over the labels that they hold."""

_MANY = 20
"""With fewer labels, looking for what can be left out takes longer than it saves."""

_EXACT = 2**26
"""C times any difference of levels stays below it: then C^2 Var at a whole level is exact, from whatever level."""

_ONE = np.float64(1.0).view(np.int64)
"""The bit pattern of 1.0; with the sign bit set it is -1.0."""


@dataclass(frozen=True)
class Allotment:
    """The answer to P4 for one node, or for every node at once.

    Where `feasible` is false no allotment meets V: `variance` is then the least that can be reached
    and `samples` the allotment that reaches it.
    """

    samples: NDArray[Any]
    """s_c, of the shape of `held`: whole numbers, or fractions where they were asked for."""
    total: NDArray[Any]
    """S*: the sum over the labels."""
    variance: Reals
    """Var_c(a_c + s_c)."""
    feasible: NDArray[np.bool_]


def largest_allotment(used: ArrayLike, held: ArrayLike, variance_limit: float, *, whole: bool = True) -> Allotment:
    """Solve P4 for the history `used` (C,) and the stock `held`, (C,) for one node or (N, C) for many.

    With `used` of shape (N, C) every row of `held` has a history of its own.
    """
    a = _counts("used", used, whole).astype(np.float64)
    stock = _counts("held", held, whole)
    if a.ndim not in (1, 2) or a.size == 0:
        raise BadInput(f"used must be one count per label, shape (C,) with C >= 1, not shape {a.shape}.")
    labels = a.shape[-1]
    if stock.ndim not in (1, 2) or stock.shape[-1] != labels:
        raise BadInput(f"held must have shape ({labels},) or (N, {labels}) to match used, not {stock.shape}.")
    if a.ndim == 2 and a.shape != stock.shape:
        raise BadInput(f"used must have shape ({labels},), or that of held, {stock.shape}, not {a.shape}.")
    if not isinstance(variance_limit, Real) or not variance_limit >= 0:
        raise BadInput(f"variance_limit must be a number of at least 0, not {variance_limit}.")
    limit = min(float(variance_limit), float(_WHOLE) ** 2)  # no counts vary more, and infinity breeds NaN
    rows = stock.reshape(-1, labels)
    samples = np.empty(rows.shape, dtype=np.int64 if whole else np.float64)
    variance = np.empty(len(rows))
    feasible = np.empty(len(rows), dtype=np.bool_)
    solve = _whole_samples if whole else _fractions
    step = max(1, _BLOCK // labels)
    for i in range(0, len(rows), step):
        part = slice(i, i + step)
        history = a[part] if a.ndim == 2 else a
        samples[part], variance[part], feasible[part] = solve(history, history + rows[part], limit)
    if not whole:
        np.minimum(samples, rows, out=samples)  # the sum a + l was rounded
    total = samples.sum(axis=1)
    if stock.ndim == 1:
        return Allotment(samples[0], total[0], variance[0], feasible[0])
    return Allotment(samples, total, variance, feasible)


def _counts(name: str, values: ArrayLike, whole: bool) -> NDArray[np.int64] | Reals:
    """`values` as counts whose sums float64, in which the work is done, holds exactly."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{name} must be an array of counts with rows of one length.") from error
    if array.dtype.kind not in "iuf":
        raise BadInput(f"{name} must be an array of counts, not of {array.dtype}.")
    if array.size:
        most = _WHOLE / (2 * array.shape[-1]) if array.ndim else _WHOLE
        # A NaN fails both comparisons.
        if not (array.min() >= 0 and array.max() < most):
            raise BadInput(f"{name} must hold counts from 0 to {most:.3g}; it has a negative, NaN or larger entry.")
        if whole and array.dtype.kind == "f" and (np.floor(array) != array).any():
            raise BadInput(f"{name} must hold whole counts; for fractions call with whole=False.")
    return array


def _levels(a: Reals, top: Reals, breakpoints: tuple[Reals, Reals], limit: float) -> tuple[Reals, Reals, Reals]:
    """For every row of `top` = a + l: the highest level with C^2 Var <= `limit`, t*, and C^2 Var there.

    Where none meets it, the highest level that is as good as t*.
    """
    nodes, labels = top.shape
    row = np.arange(nodes)
    t, rising = breakpoints
    w = np.empty_like(t)
    w[:, 0] = np.minimum(0.0, labels * t[:, 0] - a.sum(axis=-1))
    dw = np.subtract(t[:, 1:], t[:, :-1], out=w[:, 1:])
    growth = rising[:, :-1] * dw
    dw *= labels
    dw -= growth  # (C - m) gap, in place: with many labels memory traffic is the cost
    w.cumsum(axis=1, out=w)

    # t*: in the last segment that begins with w <= 0. Where w never exceeds 0 that is -1: the last breakpoint.
    last = (w > 0.0).argmax(axis=1) - 1
    m = rising[row, last]
    turn = t[row, last] - w[row, last] / np.maximum(labels - m, 1.0)
    deviation = np.minimum(np.maximum(turn[:, None], a), top) - turn[:, None]
    least = labels * np.vecdot(deviation, deviation)

    # The rise over a segment is m gap (w at its begin + w at its end); the one with t* begins there, at w = 0.
    growth[row, last] = m * (t[row, last + 1] - turn)
    np.maximum(w, 0.0, out=w)
    growth *= w[:, 1:] + w[:, :-1]
    rise = np.empty_like(t)
    rise[:, 0] = 0.0
    growth.cumsum(axis=1, out=rise[:, 1:])

    # The root of m (C - m) x^2 + 2 m w x = rest where V is crossed, in the form that does not cancel.
    room = np.maximum(limit - least, 0.0)
    j = (rise > room[:, None]).argmax(axis=1) - 1
    m = rising[row, j]
    rest = room - rise[row, j]
    b = m * w[row, j]
    root = b + np.sqrt(b * b + m * (labels - m) * rest)
    crossing = np.maximum(t[row, j], turn) + rest / np.maximum(root, _TINY)
    # Again -1 is the last breakpoint: V is never crossed, and every label is full there.
    return np.where(j < 0, t[:, -1], crossing), turn, least


def _that_rise(a: Reals, top: Reals) -> tuple[Reals, Reals]:
    """`a` and `top` of the labels that the nodes hold, where these are few; else both as they are.

    A label with l_c = 0 never rises, so its two breakpoints change neither m nor the rise. Only the lowest a_c is
    needed, as the level to begin from: w <= 0 there. It also fills the rows of nodes that hold fewer labels. The
    answer may be another level at which the labels are filled alike, so sums must be exact to come out the same.
    """
    labels = top.shape[1]
    lowest = a.min()
    if a.ndim == 2 or labels < _MANY or not _is_exact(a, top):
        return a, top
    held = top > a
    count = np.count_nonzero(held, axis=1)
    width = int(count.max()) + 1
    if _SPARSE * width > labels:
        return a, top
    row, label = held.nonzero()
    column = np.arange(row.size) - np.repeat(count.cumsum() - count, count)
    starts = np.full((len(top), width), lowest)
    ends = starts.copy()
    starts[row, column] = a[label]
    ends[row, column] = top[row, label]
    return starts, ends


def _breakpoints(a: Reals, top: Reals) -> tuple[Reals, Reals]:
    """The sorted breakpoints of every row, and how many labels rise from each to the next."""
    # The last bit of each number says whether a label starts there (0) or is full (1), so that one plain
    # sort does: bit patterns of non-negative floats order as the floats do, and whole numbers below 2^52
    # leave that bit free. A fraction moves by one unit in its last place.
    labels = top.shape[1]
    bits = np.empty((len(top), 2 * labels), dtype=np.int64)
    bits[:, :labels] = a.view(np.int64) & ~1
    np.bitwise_or(top.view(np.int64), 1, out=bits[:, labels:])
    bits.sort(axis=1)
    # Moved to the place of the sign, that bit makes 1.0 of a start and -1.0 of a full label.
    sign = bits << 63
    sign |= _ONE
    bits &= ~1
    rising = sign.view(np.float64)
    return bits.view(np.float64), rising.cumsum(axis=1, out=rising)


def _fractions(a: Reals, top: Reals, limit: float) -> tuple[Reals, Reals, NDArray[np.bool_]]:
    """The continuous optimum: samples, variance, feasible."""
    labels = top.shape[1]
    level, turn, least = _levels(a, top, _breakpoints(a, top), limit * labels**2)
    y, variance = _filled(a, top, level)
    # With large counts and a small V one unit in the level's last place is a violation: stay below it.
    over = (variance > limit * (1.0 + MARGIN)) & (level > turn)
    if over.any():
        level[over] = np.maximum(level[over] * (1.0 - _ULPS), turn[over])
        y, variance = _filled(a, top, level)
    # Equal fractions may differ in their last digit: what such noise adds is no violation.
    noise = (4.0 * np.finfo(np.float64).eps * top.max(axis=1)) ** 2
    return y - a, variance, least <= (limit * (1.0 + MARGIN) + noise) * labels**2


def _filled(a: Reals, top: Reals, level: Reals) -> tuple[Reals, Reals]:
    """At a level: the filled labels y_c and their variance, measured from their mean."""
    y = np.minimum(np.maximum(level[:, None], a), top)
    deviation = y - y.mean(axis=1, keepdims=True)
    return y, np.vecdot(deviation, deviation) / top.shape[1]


def _whole_samples(a: Reals, top: Reals, limit: float) -> tuple[Reals, Reals, NDArray[np.bool_]]:
    """The integer optimum: samples, variance, feasible."""
    labels = top.shape[1]
    if labels < _MANY or not _is_exact(a, top):
        return _by_level(a, top, limit)
    # A node whose whole stock meets V needs no level.
    deviation = top - a.min()
    scaled = labels * np.vecdot(deviation, deviation) - deviation.sum(axis=1) ** 2
    variance = scaled / (labels * labels)
    samples = top - a
    (rest,) = (scaled > limit * labels * labels * (1.0 + MARGIN)).nonzero()
    feasible = np.ones(len(top), dtype=np.bool_)
    if rest.size:
        samples[rest], variance[rest], feasible[rest] = _by_level(a[rest] if a.ndim == 2 else a, top[rest], limit)
    return samples, variance, feasible


def _is_exact(a: Reals, top: Reals) -> bool:
    """Whether C^2 Var at a whole level is an exact sum of whole numbers, from whatever level it is taken."""
    return bool(top.shape[1] * (top.max() - a.min() + 1.0) < _EXACT)


def _by_level(a: Reals, top: Reals, limit: float) -> tuple[Reals, Reals, NDArray[np.bool_]]:
    """The integer optimum from the highest level that meets V."""
    labels = top.shape[1]
    # Aimed half-way between V and what the test admits, so that rounding on either side costs no sample.
    aim = limit * labels * labels * (1.0 + 0.5 * MARGIN)
    admitted = limit * labels * labels * (1.0 + MARGIN)
    highest, turn, _ = _levels(a, top, _breakpoints(*_that_rise(a, top)), aim)
    level = np.floor(highest * (1.0 + _ULPS))
    y, below, scaled = _spread(a, top, level)
    feasible = scaled <= admitted
    if not feasible.all():
        # Rounding led one level too high; or V is met nowhere, and the least is on either side of t*.
        (failed,) = (~feasible).nonzero()
        other = np.where(level > turn, level - 1.0, level + 1.0)[failed]
        y_other, below_other, scaled_other = _spread(a[failed] if a.ndim == 2 else a, top[failed], other)
        better = scaled_other < scaled[failed]
        chosen = failed[better]
        level[chosen] = other[better]
        y[chosen], below[chosen], scaled[chosen] = y_other[better], below_other[better], scaled_other[better]
        feasible = scaled <= admitted

    column = level[:, None]
    at_level = (a <= column) & (column < top)
    rank = at_level.cumsum(axis=1)
    raised = _how_many_rise(rank[:, -1], below, admitted - scaled, labels)
    y += at_level & (rank <= raised[:, None])
    y -= a
    return y, (scaled + raised * (labels - 2.0 * below - raised)) / (labels * labels), feasible


def _spread(a: Reals, top: Reals, level: Reals) -> tuple[Reals, Reals, Reals]:
    """At a whole level T: the filled labels y_c, S = sum_c (y_c - T), and C^2 Var, all whole numbers."""
    y = np.minimum(np.maximum(level[:, None], a), top)
    deviation = y - level[:, None]
    below = deviation.sum(axis=1)
    return y, below, top.shape[1] * np.vecdot(deviation, deviation) - below * below


def _how_many_rise(available: NDArray[np.int64], below: Reals, room: Reals, labels: int) -> Reals:
    """The most labels at the level that may rise by one: the lower root of (C - 2 S) j - j^2 = room.

    None where V is exceeded already, that is where `room` is negative.
    """
    b = labels - 2.0 * below
    # Where labels can rise, a whole level above this one is infeasible: b >= 1, and there are roots.
    root = np.maximum(b + np.sqrt(np.maximum(b * b - 4.0 * room, 0.0)), 1.0)
    return np.minimum(np.maximum(np.floor(2.0 * room / root), 0.0), available)

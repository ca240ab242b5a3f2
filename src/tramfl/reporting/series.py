"""The numbers behind the figures: curves, bands over seeds and counts.

Long runs are thinned here so that a figure stays quick whatever the run's length; sums and extremes survive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tramfl.notation import Reals
from tramfl.record import Row
from tramfl.reporting.colours import in_order
from tramfl.reporting.intervals import t_quantile
from tramfl.reporting.runs import Run
from tramfl.reporting.summary import times_to_target


@dataclass(frozen=True)
class Curve:
    """One quantity of one run over rounds or over seconds."""

    x: Reals
    y: Reals

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Band:
    """The same quantity over the seeds of a policy: mean, least and greatest, and how sure the mean is."""

    x: Reals
    mean: Reals
    low: Reals
    high: Reals
    seeds: int
    interval: Reals
    """Half the width of the mean's 95 % confidence interval; 0 for a single seed."""
    curves: tuple[Curve, ...] = ()
    """Every seed by itself, where there are several."""


@dataclass(frozen=True)
class NodeUsage:
    """Samples each node trained on, round by round or in groups of rounds."""

    first: Reals
    """First round of each group."""
    last: Reals
    samples: Reals
    """Nodes by groups."""


@dataclass(frozen=True)
class LabelUsage:
    """Samples of each label used so far, with their variance."""

    rounds: Reals
    used: Reals
    """Labels by rounds."""
    variance: Reals
    """The greatest since the round before in this list, so that thinning hides no breach of V."""


Quantity = Callable[[Run], Curve]


def metric_over_time(run: Run) -> Curve:
    """What the run's targets are of, accuracy by default, on the test samples where it was measured, over T_total."""
    return _curve([(row.total_seconds, row.measured(run.measure.metric)) for row in run.rows])


def time_over_rounds(run: Run) -> Curve:
    """T_total over rounds."""
    return _curve([(row.round, row.total_seconds) for row in run.rows])


def test_loss(run: Run) -> Curve:
    """Global test loss over rounds."""
    return _curve([(row.round, row.test_loss) for row in run.rows])


test_loss.__test__ = False  # type: ignore[attr-defined]  # a quantity, whatever pytest makes of its name


def validation_loss(run: Run) -> Curve:
    """Validation loss at the node that trained, over rounds."""
    return _curve([(row.round, row.validation_loss) for row in run.rows])


def bands(
    runs: Sequence[Run], quantity: Quantity, *, points: int, keep_last: bool = False, focus: float | None = None
) -> dict[str, Band]:
    """One band per policy that has the quantity at all, policies in their usual order.

    Most of the `points` lie before `focus`, where there is one. With `keep_last` a run that has ended
    counts with its last value; without, a band ends where the first of its runs does.
    """
    found: dict[str, Band] = {}
    for policy in in_order(run.policy for run in runs):
        curves = [curve for run in runs if run.policy == policy and len(curve := quantity(run))]
        if curves:
            found[policy] = _band(curves, points, keep_last, focus)
    return found


def useful_seconds(runs: Sequence[Run]) -> float | None:
    """Where a plot over time may end at first sight, if showing all would squeeze what matters to the left."""
    end = max(run.summary.total_seconds for run in runs)
    reached = [time.mean for time in times_to_target(runs) if time.mean is not None]
    return 2.5 * max(reached) if reached and 2.5 * max(reached) < 0.6 * end else None


def useful_rounds(runs: Sequence[Run]) -> float | None:
    """Where a plot over rounds may end at first sight: a policy of many short rounds would squeeze all others."""
    last: dict[str, float] = {}
    for run in runs:
        last[run.policy] = max(last.get(run.policy, 0.0), float(run.rows[-1].round))
    ends = sorted(last.values())
    cut = len(ends)
    while cut > 1 and ends[cut - 1] > 2.5 * ends[cut - 2]:
        cut -= 1
    return 1.25 * ends[cut - 1] if cut < len(ends) else None


class Spent(NamedTuple):
    """Seconds of a run, by what they were spent on."""

    compute: float
    transfer: float
    waiting: float
    lost: float
    """On attempts that failed."""
    overhead: float
    """Gathering, deciding, the register and the disk, at real sites."""


def seconds_spent(runs: Sequence[Run]) -> dict[str, Spent]:
    """Mean seconds per policy."""
    spent: dict[str, Spent] = {}
    for policy in in_order(run.policy for run in runs):
        rows = [np.array([_spent_in(r) for r in run.rows]).sum(axis=0) for run in runs if run.policy == policy]
        spent[policy] = Spent(*np.mean(rows, axis=0).tolist())
    return spent


def _spent_in(row: Row) -> Spent:
    return Spent(row.compute_seconds, row.transfer_seconds, row.idle_seconds, row.lost_seconds, row.overhead)


def node_usage(run: Run, columns: int) -> NodeUsage:
    """Samples per node and round, or per group of consecutive rounds where there are more than `columns`."""
    edges = _edges(len(run.rows), columns)
    samples = np.zeros((run.nodes, len(edges) - 1))
    for group, (begin, end) in enumerate(pairwise(edges.tolist())):
        for row in run.rows[begin:end]:
            for trained in row.by_node:
                samples[trained.node, group] += sum(trained.samples)
    rounds = np.array([row.round for row in run.rows], dtype=np.float64)
    return NodeUsage(rounds[edges[:-1]], rounds[edges[1:] - 1], samples)


def label_usage(run: Run, columns: int) -> LabelUsage:
    """Samples used so far per label, at every round or at the last of each group of rounds."""
    edges = _edges(len(run.rows), columns)
    variance = np.array([row.label_variance for row in run.rows])
    ends = [run.rows[end - 1] for end in edges[1:]]
    return LabelUsage(
        np.array([row.round for row in ends], dtype=np.float64),
        np.array([row.used for row in ends], dtype=np.float64).T,
        np.maximum.reduceat(variance, edges[:-1]),
    )


def _curve(pairs: Sequence[tuple[float, float | None]]) -> Curve:
    measured = [(x, y) for x, y in pairs if y is not None]
    return Curve(np.array([x for x, _ in measured], dtype=np.float64), np.array([y for _, y in measured]))


def _band(curves: Sequence[Curve], points: int, keep_last: bool, focus: float | None) -> Band:
    """Between two measurements the last one holds: the model does not change in between."""
    if len(curves) == 1:
        curve = curves[0]
        chosen = _in_two(curve.x, points, focus, lambda begin, end, count: _extremes(curve.y, begin, end, count))
        y = curve.y[chosen]
        return Band(curve.x[chosen], y, y, y, 1, np.zeros_like(y))
    begin = max(curve.x[0] for curve in curves)
    end = (max if keep_last else min)(curve.x[-1] for curve in curves)
    places = np.unique(np.concatenate([curve.x for curve in curves]))
    places = places[(places >= begin) & (places <= max(begin, end))]
    places = places[_in_two(places, points, focus, _evenly)]
    values = np.array([c.y[np.maximum(np.searchsorted(c.x, places, side="right") - 1, 0)] for c in curves])
    interval = t_quantile(len(curves) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(curves))
    least, greatest = values.min(axis=0), values.max(axis=0)
    alone = tuple(_thinned(curve, points // len(curves), focus) for curve in curves)
    return Band(places, values.mean(axis=0), least, greatest, len(curves), interval, alone)


def _thinned(curve: Curve, points: int, focus: float | None) -> Curve:
    chosen = _in_two(curve.x, points, focus, lambda begin, end, count: _extremes(curve.y, begin, end, count))
    return Curve(curve.x[chosen], curve.y[chosen])


def _in_two(x: Reals, points: int, focus: float | None, choose: Callable[[int, int, int], set[int]]) -> list[int]:
    """Which of `x` to keep: about `points` in all, two thirds of them before `focus`."""
    if len(x) <= points:
        return list(range(len(x)))
    near = int(np.searchsorted(x, focus, side="right")) if focus is not None else len(x)
    if not 0 < near < len(x):
        return sorted(choose(0, len(x), points))
    return sorted(choose(0, near, 2 * points // 3) | choose(near, len(x), points // 3))


def _evenly(begin: int, end: int, points: int) -> set[int]:
    return set(np.linspace(begin, end - 1, min(points, end - begin)).astype(np.intp).tolist())


def _extremes(y: Reals, begin: int, end: int, points: int) -> set[int]:
    """The ends, and the least and the greatest of every stretch: a jump stays a jump."""
    keep = {begin, end - 1}
    for left, right in pairwise((begin + _edges(end - begin, max(points // 2, 1))).tolist()):
        keep |= {left + int(y[left:right].argmin()), left + int(y[left:right].argmax())}
    return keep


def _edges(length: int, columns: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Where each of at most `columns` groups of equal length begins, and the end of the last."""
    width = -(-length // columns)
    return np.append(np.arange(0, length, width), length).astype(np.intp)

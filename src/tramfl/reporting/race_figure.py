"""The figure of a race: the best test of every method so far, over virtual time and over traffic.

Both axes below are logarithmic, since methods differ by a factor of 1,000. Where a method has several seeds, its line
is their mean. A line ends where the last of its runs ended: a run that is over counts with its best test until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tramfl.notation import Reals
from tramfl.reporting.colours import Look, in_order, kind_of, legible
from tramfl.reporting.runs import Run
from tramfl.reporting.several import sent_bits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Spending = Callable[[Run], Reals]
INCHES = (9.0, 3.6)


def is_race(runs: Sequence[Run]) -> bool:
    """Whether the runs are of methods that differ in more than the policy, and were tested."""
    methods = {run.policy for run in runs if _is_measured(run)}
    return len(methods) > 1 and kind_of(methods) == "method"


def draw_race(runs: Sequence[Run], chosen: Mapping[str, Look], figure: Figure) -> None:
    """The runs of one scenario, with targets of one metric: over time on the left, over traffic on the right."""
    runs = [run for run in runs if _is_measured(run)]
    measure = runs[0].measure
    factor = 100.0 if measure.is_accuracy else 1.0
    figure.set_size_inches(*INCHES)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, spent) in zip(panels, (("Virtual time (s)", seconds), ("Sent (Gbit)", gigabits)), strict=True):
        for method in in_order(run.policy for run in runs):
            group = [run for run in runs if run.policy == method and spent(run)[-1] > 0]
            if not group:
                continue  # on a logarithmic axis there is no place for a method that sent nothing
            x, best = best_so_far(group, spent)
            look = chosen[method]
            axes.plot(
                x,
                factor * best,
                color=look.colour,
                linestyle=look.line,
                drawstyle="steps-post",
                label=legible(method),
            )
        for target in sorted({target for run in runs for target in run.settings.budget.targets}):
            axes.axhline(factor * target, color="#666666", linewidth=0.6, linestyle=(0, (1, 2)))
        axes.set(xlabel=name, xscale="log")
        if measure.is_accuracy:
            axes.set_ylim(bottom=0)
    panels[0].set_ylabel(f"Best test {measure.name} so far{' (%)' if measure.is_accuracy else ''}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", handlelength=3)


def _is_measured(run: Run) -> bool:
    """Whether a test has found what the run's targets are of."""
    return any(row.measured(run.measure.metric) is not None for row in run.rows)


def seconds(run: Run) -> Reals:
    """Virtual time up to the end of every row."""
    return np.array([row.total_seconds for row in run.rows])


def gigabits(run: Run) -> Reals:
    """Traffic up to the end of every row."""
    return np.asarray(sent_bits(run)) / 1e9


def best_so_far(runs: Sequence[Run], spent: Spending) -> tuple[Reals, Reals]:
    """Points of a line: the mean over the runs of the best test until then, as soon as each of them has one."""
    steps = []
    for run in runs:
        measure = run.measure
        values = [row.measured(measure.metric) for row in run.rows]
        at, tests = np.array([(at, v) for at, v in zip(spent(run), values, strict=True) if v is not None]).T
        # A logarithmic axis has no zero: a test before anything was sent stands where the first sending ends.
        steps.append((np.maximum(at, min(spent(run)[spent(run) > 0])), measure.best_so_far(tests)))
    x = np.unique(np.concatenate([at for at, _ in steps]))
    x = x[x >= max(at[0] for at, _ in steps)]
    return x, np.mean([best[np.searchsorted(at, x, side="right") - 1] for at, best in steps], axis=0)

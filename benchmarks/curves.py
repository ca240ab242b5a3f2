"""The figures of docs/methods.md, from kept runs: the best test so far over virtual time and over traffic.

    python -m benchmarks.curves OUT [PLACE...] [--methods a,b] [--seeds 3] [--layouts cifar10-3,cifar10-5]

For every scenario that has kept runs below PLACE, one file OUT/SCENARIO.svg. Both axes below are logarithmic, since
methods differ by a factor of 1,000. Where a method has several seeds, the line is their mean. A line ends where the
last of its runs ended: a run that is over counts with its best test until then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.results import PLACE, chosen_runs, kept_runs
from tramfl.notation import BadInput, Reals
from tramfl.reporting.colours import in_order, looks
from tramfl.reporting.figures import STYLE, UNDATED
from tramfl.reporting.runs import Run, by_scenario
from tramfl.reporting.several import sent_bits

Spending = Callable[[Run], Reals]


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
        tested = [(at, row.test_accuracy) for at, row in zip(spent(run), run.rows, strict=True) if row.is_tested]
        at, accuracy = np.array([(at, value) for at, value in tested if value is not None]).T
        # Tested before anything was sent: a logarithmic axis has no zero, so it stands where the rest begins.
        steps.append((np.maximum(at, at[at > 0].min()), np.maximum.accumulate(accuracy)))
    x = np.unique(np.concatenate([at for at, _ in steps]))
    x = x[x >= max(at[0] for at, _ in steps)]
    values = [best[np.searchsorted(at, x, side="right") - 1] for at, best in steps]
    return x, np.mean(values, axis=0)


def draw(runs: Sequence[Run], to: Path) -> None:
    """One scenario's figure: accuracy over time on the left, over traffic on the right."""
    chosen = looks(run.policy for run in runs)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    shown = (("Virtual time (s)", seconds), ("Sent (Gbit)", gigabits))
    for axes, (name, spent) in zip(panels, shown, strict=True):
        for method in in_order(chosen):
            x, best = best_so_far([run for run in runs if run.policy == method and run.tested], spent)
            look = chosen[method]
            axes.plot(x, 100 * best, color=look.colour, linestyle=look.line, drawstyle="steps-post", label=method)
        for target in sorted({target for run in runs for target in run.settings.budget.targets}):
            axes.axhline(100 * target, color="#666666", linewidth=0.6, linestyle=(0, (1, 2)))
        axes.set(xlabel=name, xscale="log")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("Best test accuracy so far (%)")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", handlelength=3)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, format="svg", metadata=UNDATED["svg"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figures of the kept runs that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("places", type=Path, nargs="*", default=[PLACE], metavar="PLACE")
    parser.add_argument("--methods", help="only load-aware and these")
    parser.add_argument("--seeds", help="only these, written as 3, 0-2 or 0,4")
    parser.add_argument("--layouts", help="only these scenarios")
    chosen = parser.parse_args(arguments)
    only = chosen.layouts and {name.strip() for name in chosen.layouts.split(",")}
    try:
        groups = by_scenario(chosen_runs(kept_runs(chosen.places), chosen.methods, chosen.seeds))
    except BadInput as error:
        sys.exit(str(error))
    drawn = [name for name in groups if not only or name in only]
    if not drawn:
        sys.exit(f"no such kept run below {', '.join(map(str, chosen.places))}.")
    mpl.rcdefaults()  # what a machine's own matplotlibrc says must not change the figures
    settings: Any = mpl.rcParams
    settings.update(STYLE)
    for name in drawn:
        draw(groups[name], chosen.out / f"{name}.svg")
    print(f"Drew {', '.join(drawn)} into {chosen.out}.")


if __name__ == "__main__":
    main()

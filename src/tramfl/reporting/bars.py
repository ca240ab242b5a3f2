"""Methods against load-aware, as Markdown: their times to each target over its own on equal seeds, and the floor.

The floor is what no schedule can beat with the same training: the samples to the target, trained without a pause or a
hop at the fastest node when it is idle, S M / max r_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from tramfl.reporting.colours import in_order
from tramfl.reporting.paper import LAYOUTS
from tramfl.reporting.reproduction import KINDS, NAMES
from tramfl.reporting.runs import Run
from tramfl.reporting.summary import OURS, Kind, seconds, seconds_by_seed


def bars_tables(runs: Sequence[Run]) -> str:
    """One table per data set and target: every other method's time over load-aware's, layout by layout."""
    parts: list[str] = []
    for dataset in sorted({run.settings.dataset for run in runs}, key=lambda name: name != "mnist"):
        alike = [run for run in runs if run.settings.dataset == dataset]
        for target in sorted({target for run in alike for target in run.settings.budget.targets}):
            parts += _table(dataset, target, alike)
    return "\n".join(parts) + "\n"


def _table(dataset: str, target: float, runs: Sequence[Run]) -> Iterator[str]:
    layouts = [layout for layout in LAYOUTS if any(run.scenario == f"{dataset}-{layout}" for run in runs)]
    yield f"\n### {dataset}, {100 * target:.4g}% test accuracy: time over {OURS}'s, mean seconds of both, floor\n"
    yield "| method | | " + " | ".join(NAMES[layout] for layout in layouts) + " |"
    yield "|---|---|" + "---|" * len(layouts)
    for method in in_order(run.policy for run in runs):
        for kind, words in KINDS.items():
            groups = [[run for run in runs if run.scenario == f"{dataset}-{layout}"] for layout in layouts]
            cells = [_cell(group, method, target, kind) for group in groups]
            if method != OURS and any(cells):
                yield f"| {method} | {words} | " + " | ".join(cell or "--" for cell in cells) + " |"


def _cell(runs: Sequence[Run], method: str, target: float, kind: Kind) -> str | None:
    """`0.17 (2.12 / 12.5 s, floor 0.09 s; 5 seeds)`; None where no seed reached the target with both."""
    theirs, ours = (seconds_by_seed(runs, name, target, kind) for name in (method, OURS))
    both = sorted(theirs.keys() & ours.keys())
    if not both:
        return None
    mean, reference = fmean(theirs[seed] for seed in both), fmean(ours[seed] for seed in both)
    floor = fmean(_floor(run, theirs[run.seed]) for run in runs if run.policy == method and run.seed in both)
    all_seeds = {run.seed for run in runs if run.policy in (method, OURS)}
    count = f"{len(both)} of {len(all_seeds)} seeds"
    if len(both) == len(all_seeds):
        count = "1 seed" if len(both) == 1 else f"{len(both)} seeds"
    return f"{mean / reference:.2f} ({seconds(mean)} / {seconds(reference)} s, floor {seconds(floor)} s; {count})"


def _floor(run: Run, at: float) -> float:
    """Seconds that the samples trained by `at` take at the fastest node when it is idle."""
    samples = next(sum(row.used) for row in run.rows if row.total_seconds >= at)
    flops = run.settings.loads.flops
    return samples * run.summary.cost.flops_per_sample / (max(flops) if isinstance(flops, tuple) else flops)

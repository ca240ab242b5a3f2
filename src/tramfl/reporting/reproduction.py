"""Table I, ours beside the paper's, as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from tramfl.reporting.paper import LAYOUTS, POLICIES, TARGETS, paper_seconds
from tramfl.reporting.runs import Run
from tramfl.reporting.summary import NOT_REACHED, Kind, TargetTime, cell_text, times_to_target

KINDS: dict[Kind, str] = {"first": "first reached", "held": "held"}
NAMES = {"3": "3 nodes", "5": "5 nodes", "10": "10 nodes", "5-uneven": "5 nodes (uneven)"}
LAST_TESTS = 5
"""One test alone says little: on such data the curves are jagged."""


def reproduction_tables(runs: Sequence[Run]) -> str:
    """One table per data set and target: ours, first reached and held, and the paper's; and where budgets ended."""
    times = {(t.scenario, t.policy, t.target, t.kind): t for kind in KINDS for t in times_to_target(runs, kind)}
    datasets = sorted({run.settings.dataset for run in runs}, key=lambda name: name != "mnist")
    parts: list[str] = []
    for dataset in datasets:
        targets = sorted({t.target for t in times.values() if t.scenario.startswith(f"{dataset}-")})
        for target in targets:
            parts.extend(_table(dataset, target, times))
        parts.extend(_ends(dataset, [run for run in runs if run.settings.dataset == dataset]))
    return "\n".join(parts) + "\n"


_Times = dict[tuple[str, str, float, Kind], TargetTime]
"""By scenario, policy, target and kind."""


def _table(dataset: str, target: float, times: _Times) -> Iterator[str]:
    of_paper = target in TARGETS.get(dataset, ())
    layouts = [lay for lay in LAYOUTS if any((f"{dataset}-{lay}", p, target, "first") in times for p in POLICIES)]
    measures = [time.aim.measure for time in times.values() if time.target == target]
    named = f"{100 * target:.4g}% test accuracy" if measures[0].is_accuracy else f"test {measures[0].target(target)}"
    yield f"\n### {dataset}, {named}{'' if of_paper else ' (a target of our own)'}\n"
    yield from _head(["policy", ""], layouts)
    for policy in POLICIES:
        for kind, words in KINDS.items():
            found = [times.get((f"{dataset}-{lay}", policy, target, kind)) for lay in layouts]
            if kind == "first" or any(found):
                cells = [_cell(time, dataset, lay, of_paper) for time, lay in zip(found, layouts, strict=True)]
                yield f"| {policy} | {words} | " + " | ".join(cells) + " |"


def _ends(dataset: str, runs: Sequence[Run]) -> Iterator[str]:
    """How far the runs had come that ended with their budget, short of their last target, and when that was."""
    cells: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.scenario, run.policy].append(run)
    layouts = [lay for lay in LAYOUTS if any((f"{dataset}-{lay}", policy) in cells for policy in POLICIES)]
    yield f"\n### {dataset}, where the budget ended: mean of the last {LAST_TESTS} tests, and virtual seconds\n"
    yield from _head(["policy"], layouts)
    for policy in POLICIES:
        yield f"| {policy} | " + " | ".join(_end(cells[f"{dataset}-{lay}", policy]) for lay in layouts) + " |"


def _end(runs: Sequence[Run]) -> str:
    if not runs:
        return "not run"
    if not all(run.tested for run in runs):
        return "not tested"
    ended = [run for run in runs if None in run.summary.seconds_to_target.values()]
    if not ended:
        return "at its last target"
    tests = [_last_tests(run) for run in ended]
    reached, seconds = fmean(map(fmean, tests)), fmean(run.summary.total_seconds for run in ended)
    share = f" ({len(ended)} of {len(runs)})" if len(ended) < len(runs) else ""
    measure = runs[0].measure
    value = f"{reached:.0%}" if measure.is_accuracy else measure.target(reached)
    return f"{value} after {seconds:.0f} s{share}"


def _last_tests(run: Run) -> list[float]:
    values = [row.measured(run.measure.metric) for row in run.rows]
    return [value for value in values if value is not None][-LAST_TESTS:]


def _head(first: Sequence[str], layouts: Sequence[str]) -> Iterator[str]:
    names = [*first, *(NAMES[lay] for lay in layouts)]
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)


def _cell(time: TargetTime | None, dataset: str, layout: str, of_paper: bool) -> str:
    """`**12.3 ± 1.2** (paper 15.69, ratio 0.78)`: the paper has figures for what was first reached only."""
    if time is None:
        return "not run"
    ours = f"**{cell_text(time)}**" if time.wins else cell_text(time)
    if not of_paper or time.kind == "held":
        return ours
    paper = paper_seconds(dataset, layout, time.policy, time.target)
    if paper is None:
        return f"{ours} (paper {NOT_REACHED})"
    ratio = f", ratio {time.mean / paper:.2f}" if time.mean is not None else ""
    return f"{ours} (paper {paper:.2f}{ratio})"

"""Methods of every kind side by side, as Markdown: time and traffic to targets, accuracy at equal time and traffic.

An overview has the layouts side by side; the tables of the race have a scenario each. Where the nodes' models differ,
a second row has the mean of them, which the run delivers.

Equal time and equal traffic are what load-aware needed to its last target, or had spent at its end where it did not
get there: how good was each other method after as many seconds, and after as many bits? A method that had used up its
budget before, short of its last target, might have been better by then: its accuracy is marked as that of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import numpy as np

from tramfl.notation import Reals
from tramfl.reporting.bars import bars_tables
from tramfl.reporting.colours import in_order
from tramfl.reporting.paper import LAYOUTS
from tramfl.reporting.reproduction import NAMES
from tramfl.reporting.runs import Run, by_scenario
from tramfl.reporting.several import judged_by_mean_model, sent_bits
from tramfl.reporting.summary import NOT_REACHED, OURS, seconds


def race_report(runs: Sequence[Run]) -> str:
    """Time and traffic of every method, layout by layout; times over load-aware's; and each scenario's race."""
    return overview_tables(runs) + bars_tables(runs) + race_tables(runs)


def race_tables(runs: Sequence[Run]) -> str:
    """One table per scenario that has a run of load-aware."""
    runs = [*runs, *judged_by_mean_model(runs)]
    parts = [line for name, group in by_scenario(runs).items() for line in _table(name, group)]
    return "\n".join(parts) + "\n"


def overview_tables(runs: Sequence[Run]) -> str:
    """One table per data set and target: every method's seconds and Gbit to it, layout by layout."""
    runs = [*runs, *judged_by_mean_model(runs)]
    parts: list[str] = []
    for dataset in sorted({run.settings.dataset for run in runs}, key=lambda name: name != "mnist"):
        alike = [run for run in runs if run.settings.dataset == dataset and run.tested]
        for target in sorted({target for run in alike for target in run.settings.budget.targets}):
            parts += _overview(dataset, target, alike)
    return "\n".join(parts) + "\n"


def _overview(dataset: str, target: float, runs: Sequence[Run]) -> Iterator[str]:
    layouts = [layout for layout in LAYOUTS if any(run.scenario == f"{dataset}-{layout}" for run in runs)]
    if not layouts:
        return
    groups = {layout: [run for run in runs if run.scenario == f"{dataset}-{layout}"] for layout in layouts}
    seeds = sorted({len({run.seed for run in group}) for group in groups.values()})
    of_seeds = f"{' or '.join(map(str, seeds))} {'seed' if seeds == [1] else 'seeds'}"
    best = {layout: _least(group, target) for layout, group in groups.items()}
    yield f"\n### {dataset}, {100 * target:g} %: virtual seconds (Gbit), mean of {of_seeds}\n"
    yield "| method | " + " | ".join(NAMES[layout] for layout in layouts) + " |"
    yield "|---|" + "---|" * len(layouts)
    for method in in_order(run.policy for run in runs):
        cells = []
        for layout, group in groups.items():
            own = [run for run in group if run.policy == method]
            text = _cell([_seconds(run, target) for run in own], seconds)
            if own and _mean_of_all(own, target) == best[layout]:
                text = f"**{text}**"
            sent = [bits for run in own if (bits := _gigabits(run, target)) is not None]
            cells.append(f"{text} ({fmean(sent):.3g})" if sent else text if own else "")
        yield f"| {method} | " + " | ".join(cells) + " |"


def _mean_of_all(runs: Sequence[Run], target: float) -> float | None:
    """Mean seconds to a target; None where not every run got there."""
    found = [at for run in runs if (at := _seconds(run, target)) is not None]
    return fmean(found) if len(found) == len(runs) else None


def _least(runs: Sequence[Run], target: float) -> float:
    """The quickest method's mean seconds; -1 where none gets there with every seed."""
    means = [_mean_of_all([run for run in runs if run.policy == name], target) for name in {r.policy for r in runs}]
    return min((mean for mean in means if mean is not None), default=-1.0)


def _table(name: str, runs: Sequence[Run]) -> Iterator[str]:
    limits = {run.seed: _spent(run) for run in runs if run.policy == OURS}
    runs = [run for run in runs if run.seed in limits and run.tested]
    targets = sorted({target for run in runs for target in run.settings.budget.targets})
    if not runs or not targets:
        return
    names = [f"{100 * target:g} %" for target in targets]
    seeds = f"{len(limits)} {'seed' if len(limits) == 1 else 'seeds'}"
    yield f"\n### {name}: virtual seconds and Gbit to a target, {seeds}\n"
    times, bits = "".join(f" s to {n} |" for n in names), "".join(f" Gbit to {n} |" for n in names)
    yield f"| method |{times}{bits} at equal time | at equal traffic |"
    yield "|---|" + "---|" * (2 * len(targets) + 2)
    for method in in_order(run.policy for run in runs):
        group = [run for run in runs if run.policy == method]
        found = [_cell([_seconds(run, target) for run in group], seconds) for target in targets]
        found += [
            _cell([_gigabits(run, target) for run in group], lambda value: f"{value:.3g}") for target in targets
        ]
        for place in (0, 1):
            reached = [_accuracy(run, limits[run.seed][place], by_bits=bool(place)) for run in group]
            known = [value for value in reached if value is not None]
            ended = any(_ended_before(run, limits[run.seed][place], by_bits=bool(place)) for run in group)
            value = group[0].measure.value(fmean(known)) if known else NOT_REACHED
            found.append(f"{value} (ended)" if ended else value)
        yield f"| {method} | " + " | ".join(found) + " |"


def _cell(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """The mean, where every seed got there; how many did, where only some; else that none did."""
    known = [value for value in values if value is not None]
    if not known:
        return NOT_REACHED
    shown = text(fmean(known))
    return shown if len(known) == len(values) else f"{shown} ({len(known)} of {len(values)})"


def _seconds(run: Run, target: float) -> float | None:
    return run.summary.seconds_to_target.get(f"{target:g}")


def _gigabits(run: Run, target: float) -> float | None:
    """What was sent until a target was first reached."""
    at = _seconds(run, target)
    if at is None:
        return None
    times: Reals = np.array([row.total_seconds for row in run.rows])
    return float(sent_bits(run)[min(int(np.searchsorted(times, at)), len(times) - 1)]) / 1e9


def _spent(run: Run) -> tuple[float, float]:
    """Seconds and bits until the last target, or until the end."""
    last = max(run.settings.budget.targets, default=0.0)
    at, sent = _seconds(run, last), _gigabits(run, last)
    if at is None or sent is None:
        return run.rows[-1].total_seconds, float(sent_bits(run)[-1])
    return at, sent * 1e9


def _spending(run: Run, by_bits: bool) -> Reals:
    """Bits, or seconds, up to the end of every row."""
    return sent_bits(run) if by_bits else np.array([row.total_seconds for row in run.rows])


def _ended_before(run: Run, limit: float, *, by_bits: bool) -> bool:
    """Whether the run ended before it had spent so much, short of its last target."""
    short = None in run.summary.seconds_to_target.values()
    return short and float(_spending(run, by_bits)[-1]) < limit * (1 - 1e-9)


def _accuracy(run: Run, limit: float, *, by_bits: bool) -> float | None:
    """What was measured last before the run had spent as many seconds, or bits."""
    spent = _spending(run, by_bits)
    metric = run.measure.metric
    values = [
        value
        for row, used in zip(run.rows, spent.tolist(), strict=True)
        if used <= limit * (1 + 1e-9) and (value := row.measured(metric)) is not None
    ]
    return values[-1] if values else None

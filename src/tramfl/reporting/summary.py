"""Time to target: which policy was first, and how sure that is.

Two times are kept apart. "First" is when a test first reached the target: the paper's measure, of a jagged curve.
"Held" is when the mean of the last `budget.held_for` tests reached the target and stayed there until the run's end.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from tramfl.config import ACCURACY
from tramfl.record import Regret, Summary
from tramfl.reporting.colours import in_order, kind_of
from tramfl.reporting.intervals import half_width, mean_of
from tramfl.reporting.measures import Measure, Target, in_order_of_difficulty
from tramfl.reporting.runs import Run, by_measure, by_scenario

NOT_REACHED = "--"
OURS = "load-aware"
"""The policy that the others are set against, where it was run."""

Kind = Literal["first", "held"]


class _OfTarget:
    """What is about one target of one metric."""

    target: float
    metric: str
    lower: bool

    @property
    def aim(self) -> Target:
        """The target with its metric."""
        return Target(Measure(self.metric, self.lower), self.target)


@dataclass(frozen=True)
class TargetTime(_OfTarget):
    """How long one policy took to one target, over the seeds it was run with."""

    scenario: str
    policy: str
    target: float
    mean: float | None
    """Seconds by the runs' clock, over the seeds that reached it; None where none did."""
    spread: float | None
    """Sample standard deviation of the same; None below two seeds."""
    interval: float | None
    """Half the width of the mean's 95 % confidence interval; None below two seeds."""
    reached: int
    seeds: int
    wins: bool
    """Whether no other policy was faster; only where every seed reached it and there is another policy."""
    kind: Kind = "first"
    metric: str = ACCURACY
    """What the target is of ..."""
    lower: bool = False
    """... and whether lower values of it are better."""

    @property
    def always(self) -> bool:
        """Whether every seed reached the target."""
        return 0 < self.reached == self.seeds


@dataclass(frozen=True)
class Difference(_OfTarget):
    """How much later than the reference a policy reached a target, seed by seed."""

    scenario: str
    policy: str
    reference: str
    target: float
    mean: float
    """Seconds, over the seeds with which both reached it; above 0 where the reference was sooner."""
    interval: float | None
    """Half the width of the 95 % confidence interval; None below two such seeds."""
    seeds: int
    kind: Kind = "first"
    metric: str = ACCURACY
    lower: bool = False

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and abs(self.mean) > self.interval


def times_to_target(runs: Sequence[Run], kind: Kind = "first") -> list[TargetTime]:
    """The time to every target of every scenario that was trained, policy by policy, winners marked."""
    times: list[TargetTime] = []
    for scenario, measure, group in _races(runs):
        if not any(run.tested for run in group):
            continue  # a table of dashes would say that nobody got there
        policies = in_order(run.policy for run in group)
        for target in _targets(group, kind):
            entries = [_time(scenario, policy, Target(measure, target), group, kind) for policy in policies]
            times += _with_winner([entry for entry in entries if entry.seeds])
    return times


def differences(runs: Sequence[Run], kind: Kind = "first") -> list[Difference]:
    """Each policy against the reference on equal seeds: load-aware where it was run, else the first policy."""
    found: list[Difference] = []
    for scenario, measure, group in _races(runs):
        policies = in_order(run.policy for run in group)
        reference = OURS if OURS in policies else policies[0]
        for target in _targets(group, kind):
            ours = seconds_by_seed(group, reference, target, kind)
            for policy in policies:
                theirs = seconds_by_seed(group, policy, target, kind)
                apart = [theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())]
                if policy != reference and (mean := mean_of(apart)) is not None:
                    interval = half_width(apart)
                    counts = (mean, interval, len(apart), kind, measure.metric, measure.lower)
                    found.append(Difference(scenario, policy, reference, target, *counts))
    return found


def _races(runs: Sequence[Run]) -> Iterator[tuple[str, Measure, list[Run]]]:
    """The runs that can be set side by side: those of one scenario whose targets are of the same metric."""
    for scenario, group in by_scenario(runs).items():
        for measure, alike in by_measure(group).items():
            yield scenario, measure, alike


def _targets(group: Iterable[Run], kind: Kind) -> list[float]:
    return sorted({float(key) for run in group for key in _seconds(run, kind)})


def _seconds(run: Run, kind: Kind) -> Mapping[str, float | None]:
    return run.summary.seconds_to_target if kind == "first" else run.summary.seconds_held or {}


def seconds_by_seed(group: Iterable[Run], policy: str, target: float, kind: Kind = "first") -> dict[int, float]:
    """The time of every seed that reached the target."""
    return {
        run.seed: value
        for run in group
        if run.policy == policy
        for key, value in _seconds(run, kind).items()
        if float(key) == target and value is not None
    }


def as_data(times: Iterable[TargetTime | Difference]) -> list[dict[str, Any]]:
    """The table as plain values that JSON can hold."""
    return [asdict(time) for time in times]


def as_table(times: Sequence[TargetTime]) -> Table:
    """The table for a terminal: a row per policy, a column per target, the winner in bold with a star."""
    held = bool(times) and times[0].kind == "held"
    title = f"Virtual seconds to {'hold' if held else 'reach'} {_of_what(times)}"
    cells = {(time.scenario, time.policy, time.aim): _terminal_cell(time) for time in times}
    return _policies_by_targets(title, cells)


def _of_what(times: Sequence[TargetTime]) -> str:
    """What the times of a table are to, with its direction where that is not plain."""
    measures = list(dict.fromkeys(time.aim.measure for time in times))
    if len(measures) > 1:
        return "a target"
    if not measures or measures[0].is_accuracy:
        return "an accuracy"
    return f"a value of {measures[0].name} ({'lower' if measures[0].lower else 'higher'} is better)"


def differences_table(found: Sequence[Difference]) -> Table:
    """The differences for a terminal: a row per policy, a column per target."""
    reference = found[0].reference
    title = f"Seconds later than {reference}"
    return _policies_by_targets(title, {(d.scenario, d.policy, d.aim): Text(difference_text(d)) for d in found})


def _policies_by_targets(title: str, cells: Mapping[tuple[str, str, Target], Text]) -> Table:
    scenarios = list(dict.fromkeys(scenario for scenario, _, _ in cells))
    aims = in_order_of_difficulty(aim for _, _, aim in cells)
    table = Table(title=title, title_justify="left")
    for heading in ["Scenario"] * (len(scenarios) > 1) + [kind_of(policy for _, policy, _ in cells).capitalize()]:
        table.add_column(heading)
    for aim in aims:
        table.add_column(str(aim), justify="right")
    for scenario in scenarios:
        for policy in in_order(policy for where, policy, _ in cells if where == scenario):
            shown = [cells.get((scenario, policy, aim), Text("")) for aim in aims]
            table.add_row(*[Text(scenario)] * (len(scenarios) > 1), Text(policy), *shown)
        table.add_section()
    return table


def difference_text(difference: Difference) -> str:
    """One difference as people read it: `+12.3 ± 1.2 (5 seeds)`."""
    sign = "+" if difference.mean >= 0 else "\N{MINUS SIGN}"
    interval = f" ± {seconds(difference.interval)}" if difference.interval is not None else ""
    count = "1 seed" if difference.seeds == 1 else f"{difference.seeds} seeds"
    return f"{sign}{seconds(abs(difference.mean))}{interval} ({count})"


def cell_text(time: TargetTime) -> str:
    """One time as people read it: `12.3 ± 1.2`, `12.3 (3 of 5)` where some seeds failed, `--` where all did."""
    if time.mean is None:
        return NOT_REACHED
    interval = f" ± {seconds(time.interval)}" if time.interval is not None else ""
    return seconds(time.mean) + interval + ("" if time.always else f" ({time.reached} of {time.seeds})")


def seconds(value: float) -> str:
    """Seconds with about three digits that count."""
    if 0 < value < 0.1:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def reached_text(summary: Summary, target: str) -> str:
    """When a run first reached a target and, where the run asks for it, since when it held the target."""
    after = summary.seconds_to_target[target]
    if after is None:
        return "not reached"
    text = f"first reached after {seconds(after)} s"
    if not summary.seconds_held:
        return text
    since = summary.seconds_held[target]
    return text + (", not held" if since is None else f", held from {seconds(since)} s on")


def seeds_text(times: Iterable[TargetTime]) -> str:
    """Over how many seeds these times are, where that is more than one."""
    counts = sorted({time.seeds for time in times})
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def rounds_text(count: int) -> str:
    """A number of rounds in words, the singular included."""
    return "1 round" if count == 1 else f"{count:,} rounds"


def _time(scenario: str, policy: str, aim: Target, group: Iterable[Run], kind: Kind) -> TargetTime:
    found = [
        value
        for run in group
        if run.policy == policy
        for key, value in _seconds(run, kind).items()
        if float(key) == aim.target
    ]
    reached = [value for value in found if value is not None]
    return TargetTime(
        scenario,
        policy,
        aim.target,
        mean=mean_of(reached),
        spread=statistics.stdev(reached) if len(reached) > 1 else None,
        interval=half_width(reached),
        reached=len(reached),
        seeds=len(found),
        wins=False,
        kind=kind,
        metric=aim.measure.metric,
        lower=aim.measure.lower,
    )


def _with_winner(entries: Sequence[TargetTime]) -> list[TargetTime]:
    best = min((entry.mean for entry in entries if entry.always and entry.mean is not None), default=None)
    return [replace(entry, wins=len(entries) > 1 and entry.always and entry.mean == best) for entry in entries]


def _terminal_cell(time: TargetTime) -> Text:
    return Text(f"★ {cell_text(time)}", style="bold green") if time.wins else Text(cell_text(time))


def regret_text(regret: Regret) -> str:
    """How much longer a run took than with an oracle, in a few words."""
    much = f"{seconds(abs(regret.seconds))} s {'longer' if regret.seconds >= 0 else 'shorter'}"
    return f"{much} than with loads known exactly ({regret.ratio:.3f} times as long)"

"""Time to target: which policy was first, and how sure that is. Imports only rich and reporting.runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from tramfl.reporting.colours import in_order
from tramfl.reporting.runs import Run, by_scenario

NOT_REACHED = "--"


@dataclass(frozen=True)
class TargetTime:
    """How long one policy took to one target, over the seeds it was run with."""

    scenario: str
    policy: str
    target: float
    mean: float | None
    """Seconds by the runs' clock, over the seeds that reached it; None where none did."""
    spread: float | None
    """Sample standard deviation of the same; None below two seeds."""
    reached: int
    seeds: int
    wins: bool
    """Whether no other policy was faster; only where every seed reached it and there was somebody to beat."""

    @property
    def always(self) -> bool:
        """Whether every seed reached the target."""
        return 0 < self.reached == self.seeds


def times_to_target(runs: Sequence[Run]) -> list[TargetTime]:
    """The time to every target of every scenario that was trained, policy by policy, winners marked."""
    times: list[TargetTime] = []
    for scenario, group in by_scenario(runs).items():
        if not any(run.tested for run in group):
            continue  # a table of dashes would say that nobody got there
        policies = in_order(run.policy for run in group)
        for target in sorted({float(key) for run in group for key in run.summary.seconds_to_target}):
            entries = [_time(scenario, policy, target, group) for policy in policies]
            times += _with_winner([entry for entry in entries if entry.seeds])
    return times


def as_data(times: Iterable[TargetTime]) -> list[dict[str, Any]]:
    """The table as plain values that JSON can hold."""
    return [asdict(time) for time in times]


def as_table(times: Sequence[TargetTime]) -> Table:
    """The table for a terminal: a row per policy, a column per target, the winner in bold with a star."""
    scenarios = list(dict.fromkeys(time.scenario for time in times))
    targets = sorted({time.target for time in times})
    table = Table(title="Virtual seconds to reach a test accuracy")
    for heading in ["Scenario"] * (len(scenarios) > 1) + ["Policy"]:
        table.add_column(heading)
    for target in targets:
        table.add_column(percent(target), justify="right")
    cells = {(time.scenario, time.policy, time.target): time for time in times}
    for scenario in scenarios:
        for policy in in_order(time.policy for time in times if time.scenario == scenario):
            shown = [_terminal_cell(cells.get((scenario, policy, target))) for target in targets]
            table.add_row(*[Text(scenario)] * (len(scenarios) > 1), Text(policy), *shown)
        table.add_section()
    return table


def cell_text(time: TargetTime) -> str:
    """One time as people read it: `12.3 ± 1.2`, `12.3 (3 of 5)` where some seeds failed, `--` where all did."""
    if time.mean is None:
        return NOT_REACHED
    spread = f" ± {seconds(time.spread)}" if time.spread is not None else ""
    return seconds(time.mean) + spread + ("" if time.always else f" ({time.reached} of {time.seeds})")


def seconds(value: float) -> str:
    """Seconds with about three digits that count."""
    if 0 < value < 0.1:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def rounds_text(count: int) -> str:
    """So many rounds, in words that fit one, too."""
    return "1 round" if count == 1 else f"{count:,} rounds"


def percent(share: float) -> str:
    """A share as per cent, without digits that say nothing."""
    return f"{100 * share:.4g} %"


def _time(scenario: str, policy: str, target: float, group: Iterable[Run]) -> TargetTime:
    found = [
        value
        for run in group
        if run.policy == policy
        for key, value in run.summary.seconds_to_target.items()
        if float(key) == target
    ]
    reached = [value for value in found if value is not None]
    return TargetTime(
        scenario,
        policy,
        target,
        mean=math.fsum(reached) / len(reached) if reached else None,
        spread=statistics.stdev(reached) if len(reached) > 1 else None,
        reached=len(reached),
        seeds=len(found),
        wins=False,
    )


def _with_winner(entries: Sequence[TargetTime]) -> list[TargetTime]:
    best = min((entry.mean for entry in entries if entry.always and entry.mean is not None), default=None)
    return [
        TargetTime(**{**asdict(entry), "wins": len(entries) > 1 and entry.always and entry.mean == best})
        for entry in entries
    ]


def _terminal_cell(time: TargetTime | None) -> Text:
    if time is None:
        return Text("")
    return Text(f"★ {cell_text(time)}", style="bold green") if time.wins else Text(cell_text(time))

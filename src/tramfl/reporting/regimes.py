"""Which policy wins on which kind of load: seconds a sample over those of the first policy, on equal seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from rich.table import Table

from tramfl.reporting.runs import Run

Interval = tuple[float, float, float]
"""Geometric mean, and the ends of its 95 % confidence interval."""
Ratios = dict[tuple[str, str], Interval]
"""By scenario and policy."""

T_95 = (math.nan, math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t by the number of seeds; 2 is near enough for more."""


def time_ratios(runs: Sequence[Run], policies: Sequence[str]) -> Ratios:
    """Seconds a sample of every policy over the first one's, paired by seed."""
    speed = {
        (run.scenario, run.policy, run.seed): run.summary.total_seconds / run.summary.samples
        for run in runs
        if run.summary.samples
    }
    found: Ratios = {}
    for scenario in dict.fromkeys(run.scenario for run in runs):
        for policy in policies:
            pairs = [
                math.log(value / speed[scenario, policies[0], seed])
                for (name, who, seed), value in speed.items()
                if (name, who) == (scenario, policy) and (scenario, policies[0], seed) in speed
            ]
            if pairs:
                found[scenario, policy] = _interval(pairs)
    return found


def _interval(logs: list[float]) -> Interval:
    mean, count = statistics.fmean(logs), len(logs)
    t = T_95[count] if count < len(T_95) else 2.0
    half = t * statistics.stdev(logs) / math.sqrt(count) if count > 1 else math.nan
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def as_rows(ratios: Ratios) -> list[dict[str, str | float | None]]:
    """The ratios for JSON; the ends of an interval are null where there is one seed."""
    return [
        {"scenario": scenario, "policy": policy}
        | {
            name: value if math.isfinite(value) else None
            for name, value in zip(("ratio", "low", "high"), interval, strict=True)
        }
        for (scenario, policy), interval in ratios.items()
    ]


def regime_table(ratios: Ratios, policies: Sequence[str]) -> Table:
    """One row a kind of load, one column a policy; the least is marked."""
    table = Table(title=f"seconds a sample over those of {policies[0]}, with 95 % confidence intervals")
    table.add_column("scenario, loads")
    for policy in policies:
        table.add_column(policy, justify="right")
    for scenario in dict.fromkeys(scenario for scenario, _ in ratios):
        least = min(ratios[scenario, p][0] for p in policies if (scenario, p) in ratios)
        table.add_row(scenario, *(_cell(ratios.get((scenario, policy)), least) for policy in policies))
    return table


def _cell(interval: Interval | None, least: float) -> str:
    if interval is None:
        return "trained nothing"
    mean, low, high = interval
    ends = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else ""
    return f"{mean:.2f}{ends}{' *' if mean == least else ''}"


TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 6, 8)
"""Ratios that the figure names, as far as they lie within it."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def as_svg(ratios: Ratios, policies: Sequence[str]) -> str:
    """The same as a figure: a dot with its interval for every kind of load and policy, on a logarithmic scale."""
    scenarios = list(dict.fromkeys(scenario for scenario, _ in ratios))
    ends = [v for interval in ratios.values() for v in interval if math.isfinite(v)]
    low, high = math.log(min([0.5, *ends])), math.log(min(8.0, max([1.5, *ends])))
    left, width, line = 300, 520, 16 * len(policies) + 14
    height = 78 + line * len(scenarios)

    def x(value: float) -> float:
        return left + width * (min(max(math.log(value), low), high) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="30" y2="{height - 38}" stroke="#888" stroke-dasharray="4"/>',
    ]
    for number, policy in enumerate(policies):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<text x="{left + 130 * number}" y="18" fill="{colour}">{escape(policy)}</text>')
    for row, scenario in enumerate(scenarios):
        top = 44 + row * line
        parts.append(f'<text x="8" y="{top + line / 2:.1f}">{escape(scenario)}</text>')
        for number, policy in enumerate(policies):
            if (scenario, policy) in ratios:
                mean, least, most = ratios[scenario, policy]
                y, colour = top + 16 * number + 6, COLOURS[number % len(COLOURS)]
                if math.isfinite(least):
                    parts.append(
                        f'<line x1="{x(least):.1f}" x2="{x(most):.1f}" y1="{y}" y2="{y}" stroke="{colour}"/>'
                    )
                parts.append(
                    f'<circle cx="{x(mean):.1f}" cy="{y}" r="4" fill="{colour}"><title>{escape(policy)}:'
                    f" {mean:.3f}</title></circle>"
                )
    parts += [
        f'<text x="{x(tick):.1f}" y="{height - 24}" text-anchor="middle">{tick:g}</text>'
        for tick in TICKS
        if low <= math.log(tick) <= high
    ]
    parts.append(
        f'<text x="{left + width / 2}" y="{height - 6}" text-anchor="middle">seconds a sample over those of'
        f" {escape(policies[0])}</text></svg>"
    )
    return "\n".join(parts)

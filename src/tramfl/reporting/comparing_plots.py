"""The page's figures that set the runs of several policies side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tramfl.reporting import series
from tramfl.reporting.colours import COMPUTE, LOST, OVERHEAD, TRANSFER, WAITING
from tramfl.reporting.plots import (
    POINTS,
    Looks,
    Plot,
    Spec,
    as_text,
    five_digits,
    layout_of,
    level_line,
    level_name,
    time_axis,
)
from tramfl.reporting.runs import Run, by_measure, virtual
from tramfl.reporting.several import tested_in_words
from tramfl.reporting.summary import rounds_text, seconds

PARTS = (
    ("Compute", COMPUTE, "#FFFFFF"),
    ("Transfer", TRANSFER, "#1B1F24"),
    ("Waiting", WAITING, "#1B1F24"),
    ("Lost to failures", LOST, "#FFFFFF"),
    ("Overhead", OVERHEAD, "#1B1F24"),
)
"""Where time goes, with the colour of its bar and of the text on it."""
MOST_IN_WORDS = 8
"""Lines whose ends a caption lists; of more, the tables above the figures have them."""
ALWAYS_SHOWN = ("Compute", "Transfer", "Waiting")


def comparison(runs: Sequence[Run], looks: Looks) -> list[Plot]:
    """The figures that set the policies side by side; those without data are left out."""
    metrics = [_metric(alike, looks, place) for place, alike in enumerate(by_measure(runs).values())]
    plots = [*metrics, _time(runs, looks), *_losses(runs, looks), _spent(runs)]
    return [plot for plot in plots if plot is not None]


def _metric(runs: Sequence[Run], looks: Looks, place: int) -> Plot | None:
    """What the targets of these runs are of, over time; `place` is that of the figure among those of its kind."""
    measure = runs[0].measure
    cut = series.useful_seconds(runs)
    found = series.bands(runs, series.metric_over_time, points=POINTS, keep_last=True, focus=cut)
    if not found:
        return None
    targets = sorted({float(key) for run in runs for key in run.summary.seconds_to_target})
    name, factor = f"Test {as_text(measure.name)}", 100.0 if measure.is_accuracy else 1.0
    least = min([*(float(band.low.min()) for band in found.values()), *targets, 0.0])
    layout = layout_of(time_axis(runs), name, from_zero="x" if least < 0 else "xy", legend=len(found) > 1)
    if measure.is_accuracy:
        layout["yaxis"] |= {"ticksuffix": " %", "range": [0, 102], "rangemode": "normal"}
    layout["margin"]["r"] = 48
    layout["shapes"] = [level_line(factor * target, "y") for target in targets]
    layout["annotations"] = [
        level_name(measure.target(target) if measure.is_accuracy else f"{target:.6g}", factor * target, "y")
        for target in targets
    ]
    if cut:
        layout["xaxis"] |= {"range": [0, cut], "autorange": False}
    lasted = {policy: sum(parts) for policy, parts in series.seconds_spent(runs).items()}
    last = {policy: measure.value(band.mean[-1]) for policy, band in found.items()}
    ends = _in_words({p: f"{p} ends at {last[p]} after {seconds(lasted[p])} s" for p in found})
    words = (
        f"{'Lower' if measure.lower else 'Higher'} and further left is better.{ends}"
        + (" Dotted lines are the targets." if targets else "")
        + (" After a run has ended, its last value counts." if any(b.seeds > 1 for b in found.values()) else "")
        + (" Double-click shows the whole time." if cut else "")
        + (f" Tested: {tested}." if (tested := tested_in_words(runs)) else "")
    )
    hover = "%{y:.1f} % after %{x:.4g} s" if measure.is_accuracy else f"{name} %{{y:.4g}} after %{{x:.4g}} s"
    limits = (0.0, 1.0) if measure.is_accuracy else (-math.inf if least < 0 else 0.0, math.inf)
    data = _lines(found, looks, hover, shape="hv", factor=factor, limits=limits)
    title = f"Test {measure.name} over {'virtual time' if virtual(runs) else 'time'}"
    return Plot(
        "accuracy" if measure.is_accuracy else f"metric{place}",
        title,
        words,
        [{"data": data, "layout": layout}],
        wide=True,
    )


def _time(runs: Sequence[Run], looks: Looks) -> Plot | None:
    cut = series.useful_rounds(runs)
    found = series.bands(runs, series.time_over_rounds, points=POINTS, focus=cut)
    rounds = _means(runs, lambda run: run.summary.rounds)
    lasted = _means(runs, lambda run: run.summary.total_seconds)
    ends = _in_words({p: f"{p}: {seconds(lasted[p])} s after {rounds_text(round(rounds[p]))}" for p in found})
    ends += f"{_on_average(runs)}{_cut_in_words(cut)}"
    words = f"A jump is a round that waited for a busy node or a slow link.{ends}"
    layout = layout_of("Round", time_axis(runs), from_zero="xy", legend=len(found) > 1)
    _cut_rounds(layout, cut, found)
    return Plot(
        "time",
        "Time over rounds",
        words,
        [{"data": _lines(found, looks, "%{y:.4g} s at round %{x}"), "layout": layout}],
    )


def _losses(runs: Sequence[Run], looks: Looks) -> Iterable[Plot | None]:
    kinds = (
        (
            "local-loss",
            "Local validation loss",
            series.validation_loss,
            "On data held back at the node that trained.",
        ),
        (
            "global-loss",
            "Global test loss",
            series.test_loss,
            "Low at the nodes but high here means overfitting to some labels.",
        ),
    )
    for key, title, quantity, meaning in kinds:
        cut = series.useful_rounds(runs)
        found = series.bands(runs, quantity, points=POINTS, focus=cut)
        if not found:
            yield None
            continue
        first, last = _first_and_last(runs, quantity)
        ends = _in_words({p: f"{p}: from {first[p]:.2f} to {last[p]:.2f}" for p in found})
        ends += f"{_on_average(runs)}{_cut_in_words(cut)}"
        layout = layout_of("Round", "Loss", from_zero="xy", legend=len(found) > 1)
        _cut_rounds(layout, cut, found)
        data = _lines(found, looks, "%{y:.3f} at round %{x}")
        yield Plot(key, title, f"{meaning}{ends}", [{"data": data, "layout": layout}])


def _in_words(ends: Mapping[str, str]) -> str:
    """How every line of a figure ends, in one sentence; nothing where there are too many to be read."""
    return f" {'; '.join(ends.values())}." if 0 < len(ends) <= MOST_IN_WORDS else ""


def _means(runs: Sequence[Run], figure: Callable[[Run], float]) -> dict[str, float]:
    """The mean of a figure over each policy's runs, as the tables have it."""
    values: dict[str, list[float]] = {}
    for run in runs:
        values.setdefault(run.policy, []).append(figure(run))
    return {policy: math.fsum(found) / len(found) for policy, found in values.items()}


def _first_and_last(runs: Sequence[Run], quantity: series.Quantity) -> tuple[dict[str, float], dict[str, float]]:
    """The means over each policy's runs of what was measured first and last."""
    measured = [run for run in runs if len(quantity(run))]
    return _means(measured, lambda run: quantity(run).y[0]), _means(measured, lambda run: quantity(run).y[-1])


def _on_average(runs: Sequence[Run]) -> str:
    """What to add to a caption whose figures are means of runs that end at different rounds."""
    several = len(runs) > len({run.policy for run in runs})
    return " Means over seeds; a line ends where the first of its seeds does." if several else ""


def _cut_in_words(cut: float | None) -> str:
    return f" The first {cut:,.0f} rounds are shown; double-click shows all." if cut else ""


def _cut_rounds(layout: Spec, cut: float | None, found: dict[str, series.Band]) -> None:
    """Show the rounds up to `cut`, and as much height as they need."""
    if cut is None:
        return
    highest = max((float(b.high[b.x <= cut].max(initial=0.0)) for b in found.values()), default=1.0)
    layout["xaxis"] |= {"range": [0, cut], "autorange": False}
    layout["yaxis"] |= {"range": [0, 1.06 * highest or 1.0], "autorange": False}


def _spent(runs: Sequence[Run]) -> Plot | None:
    spent = series.seconds_spent(runs)
    totals = {policy: sum(parts) for policy, parts in spent.items()}
    if not any(totals.values()):
        return None
    layout = layout_of("Share of virtual time" if virtual(runs) else "Share of time", "")
    layout |= {"barmode": "stack", "bargap": 0.35 if len(spent) > 2 else 0.7}
    layout["legend"]["traceorder"] = "normal"
    layout["xaxis"] |= {"ticksuffix": " %", "range": [0, 100]}
    layout["yaxis"] = {"autorange": "reversed", "automargin": True, "ticks": ""}
    data = []
    for part, (name, colour, ink) in enumerate(PARTS):
        values = [parts[part] for parts in spent.values()]
        shares = [100 * value / (total or 1.0) for value, total in zip(values, totals.values(), strict=True)]
        if name in ALWAYS_SHOWN or any(values):
            data.append(
                _bars(name, spent, totals, values, shares) | {"marker": {"color": colour}, "textfont": {"color": ink}}
            )
    ends = "; ".join(
        f"{policy}: {seconds(parts.compute)} s compute, {seconds(parts.transfer)} s transfer,"
        f" {seconds(parts.waiting)} s waiting{_overhead_in_words(parts.overhead)}"
        for policy, parts in spent.items()
    )
    mean = " Means over seeds." if len(runs) > len(spent) else ""
    return Plot("spent", "Where the time went", f"{ends}.{mean}", [{"data": data, "layout": layout}])


def _overhead_in_words(overhead: float) -> str:
    if not overhead:
        return ""
    return f", {seconds(overhead)} s overhead (gathering, deciding, the register and the disk)"


def _bars(
    name: str, policies: Iterable[str], totals: dict[str, float], values: Sequence[float], shares: Sequence[float]
) -> Spec:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [f"{as_text(policy)}<br>{seconds(totals[policy])} s" for policy in policies],
        "x": five_digits(shares),
        "customdata": five_digits(values),
        "text": [f"{share:.0f} %" if share >= 8 else "" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertemplate": f"{name}: %{{x:.1f}} %, %{{customdata:.4g}} s<extra></extra>",
    }


def _lines(
    found: dict[str, series.Band],
    looks: Looks,
    hover: str,
    shape: str = "linear",
    factor: float = 1.0,
    limits: tuple[float, float] = (0.0, math.inf),
) -> list[Spec]:
    """A line for each policy; where there are several seeds also the mean's confidence band, and every seed.

    `meta` says which of them a trace is, so that the page can show one kind at a time.
    """
    behind: list[Spec] = []
    lines: list[Spec] = []
    for policy, band in found.items():
        look, name = looks[policy], as_text(policy)
        common = {"type": "scatter", "mode": "lines", "legendgroup": name}
        if band.seeds > 1:
            edge = common | {"x": five_digits(band.x), "hoverinfo": "skip", "showlegend": False, "meta": "band"}
            edge |= {"line": {"width": 0, "shape": shape}}
            low = np.maximum(band.mean - band.interval, limits[0])
            high = np.minimum(band.mean + band.interval, limits[1])
            behind.append(edge | {"y": five_digits(factor * low)})
            behind.append(
                edge | {"y": five_digits(factor * high), "fill": "tonexty", "fillcolor": _faint(look.colour)}
            )
        for curve in band.curves:
            alone = common | {"x": five_digits(curve.x), "y": five_digits(factor * curve.y), "showlegend": False}
            line = {"color": look.colour, "width": 1, "shape": shape}
            behind.append(alone | {"hoverinfo": "skip", "meta": "seeds", "opacity": 0.45, "line": line})
        line = {"color": look.colour, "dash": look.dash, "width": 2, "shape": shape}
        template = f"{name}: {hover}<extra></extra>"
        mean = {"x": five_digits(band.x), "y": five_digits(factor * band.mean), "name": name}
        lines.append(common | mean | {"line": line, "hovertemplate": template})
    return behind + lines


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"

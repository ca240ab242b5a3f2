"""The page's interactive figures as plain values for plotly.js.

Plain values rather than `plotly.graph_objects`: they take no second to import and carry no template.
Colours of text and grid are the page's business, since they follow its light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import UNSET

from tramfl.reporting import series
from tramfl.reporting.colours import COMPUTE, LOST, OVERHEAD, TRANSFER, WAITING, Look
from tramfl.reporting.runs import Run, by_measure, virtual
from tramfl.reporting.several import keeps_models, last_scores, scores_of, tested_in_words, what_is_tested
from tramfl.reporting.summary import regret_text, seconds

POINTS = 800
BUBBLES_PER_NODE = 60
LABEL_COLUMNS = 200
LARGEST_BUBBLE = 22
"""Pixels across."""
MANY_NODES = 20
"""Above this many nodes a heat map takes the place of bubbles, and a list that can be sorted that of a table."""
ROUTE_AT_FIRST = 100
"""Rounds of the route shown before the reader moves on."""

PARTS = (
    ("Compute", COMPUTE, "#FFFFFF"),
    ("Transfer", TRANSFER, "#1B1F24"),
    ("Waiting", WAITING, "#1B1F24"),
    ("Lost to failures", LOST, "#FFFFFF"),
    ("Overhead", OVERHEAD, "#1B1F24"),
)
"""Where time goes, with the colour of its bar and of the text upon it."""
ALWAYS_SHOWN = ("Compute", "Transfer", "Waiting")

Looks = dict[str, Look]
Spec = dict[str, Any]
"""`data` and `layout` as plotly.js takes them."""


@dataclass(frozen=True)
class Plot:
    """One figure of the page: what it is called, what it says in words, and one view for each run or one in all."""

    key: str
    title: str
    words: str
    """What the figure shows, for those who do not see it and for those who do."""
    views: list[Spec]
    wide: bool = False
    view_words: list[str] = field(default_factory=list)


def comparison(runs: Sequence[Run], looks: Looks) -> list[Plot]:
    """The figures that set the policies side by side; those without data are left out."""
    metrics = [_metric(alike, looks, place) for place, alike in enumerate(by_measure(runs).values())]
    plots = [*metrics, _time(runs, looks), *_losses(runs, looks), _spent(runs)]
    return [plot for plot in plots if plot is not None]


def inside(runs: Sequence[Run], looks: Looks) -> list[Plot]:
    """The figures that look into one run at a time, with a view for each run."""
    foreseen = [
        _one_by_one("foreseen", "Predicted and actual times", runs, _times_foreseen, looks),
        _one_by_one("foreseen-loads", "Predicted and actual loads", runs, _loads_foreseen, looks),
    ]
    return [
        *(foreseen if any(row.actual is not UNSET for run in runs for row in run.rows) else []),
        _one_by_one("usage", "Data usage by node", runs, _node_usage, looks),
        _one_by_one("labels", "Samples per label and their balance", runs, _label_usage, looks),
        _one_by_one("route", _journey_title(runs), runs, _journey, looks, wide=True),
    ]


def _metric(runs: Sequence[Run], looks: Looks, place: int) -> Plot | None:
    """What the targets of these runs are of, over time; `place` is that of the figure among those of its kind."""
    measure = runs[0].measure
    cut = series.useful_seconds(runs)
    found = series.bands(runs, series.metric_over_time, points=POINTS, keep_last=True, focus=cut)
    if not found:
        return None
    targets = sorted({float(key) for run in runs for key in run.summary.seconds_to_target})
    name, factor = f"Test {_shown(measure.name)}", 100.0 if measure.is_accuracy else 1.0
    least = min([*(float(band.low.min()) for band in found.values()), *targets, 0.0])
    layout = _layout(_time_axis(runs), name, from_zero="x" if least < 0 else "xy", legend=len(found) > 1)
    if measure.is_accuracy:
        layout["yaxis"] |= {"ticksuffix": " %", "range": [0, 102], "rangemode": "normal"}
    layout["margin"]["r"] = 48
    layout["shapes"] = [_level(factor * target, "y") for target in targets]
    layout["annotations"] = [
        _level_name(measure.target(target) if measure.is_accuracy else f"{target:.6g}", factor * target, "y")
        for target in targets
    ]
    if cut:
        layout["xaxis"] |= {"range": [0, cut], "autorange": False}
    lasted = {policy: sum(parts) for policy, parts in series.seconds_spent(runs).items()}
    last = {policy: measure.value(band.mean[-1]) for policy, band in found.items()}
    ends = "; ".join(f"{policy} ends at {last[policy]} after {seconds(lasted[policy])} s" for policy in found)
    words = (
        f"{'Lower' if measure.lower else 'Higher'} and further left is better. {ends}."
        + (" Dotted lines are the targets." if targets else "")
        + (" A run that has ended keeps its last value." if any(b.seeds > 1 for b in found.values()) else "")
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
    ends = "; ".join(f"{p}: {seconds(lasted[p])} s after {rounds[p]:,.0f} rounds" for p in found)
    ends += f".{_on_average(runs)}{_cut_in_words(cut)}"
    words = f"A jump is a round that waited for a busy node or a slow link. {ends}"
    layout = _layout("Round", _time_axis(runs), from_zero="xy", legend=len(found) > 1)
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
        ends = "; ".join(f"{p}: from {first[p]:.2f} to {last[p]:.2f}" for p in found)
        ends += f".{_on_average(runs)}{_cut_in_words(cut)}"
        layout = _layout("Round", "Loss", from_zero="xy", legend=len(found) > 1)
        _cut_rounds(layout, cut, found)
        data = _lines(found, looks, "%{y:.3f} at round %{x}")
        yield Plot(key, title, f"{meaning} {ends}", [{"data": data, "layout": layout}])


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
    layout = _layout("Share of virtual time" if virtual(runs) else "Share of time", "")
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
        "y": [f"{_shown(policy)}<br>{seconds(totals[policy])} s" for policy in policies],
        "x": _short(shares),
        "customdata": _short(values),
        "text": [f"{share:.0f} %" if share >= 8 else "" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertemplate": f"{name}: %{{x:.1f}} %, %{{customdata:.4g}} s<extra></extra>",
    }


def _one_by_one(
    key: str,
    title: str,
    runs: Sequence[Run],
    view: Callable[[Run, str], tuple[Spec, str]],
    looks: Looks,
    *,
    wide: bool = False,
) -> Plot:
    """A figure with a view, and words for it, for each run."""
    views, words = zip(*(view(run, looks[run.policy].colour) for run in runs), strict=True)
    return Plot(key, title, words[0], list(views), wide, list(words))


def _times_foreseen(run: Run, colour: str) -> tuple[Spec, str]:
    """Seconds of every round that trained: as predicted, and as passed."""
    found = [
        (row.round, row.decision.predicted_seconds, row.compute_seconds + row.transfer_seconds)
        for row in run.rows
        if row.node is not None and row.decision.predicted_seconds > 0
    ]
    layout = _predicted_against_actual("Predicted seconds of a round", "Actual seconds", [found])
    words = "No round trained."
    if found:
        words = (
            "A dot is a round that trained; on the dotted line it took as long as predicted. Actual over predicted:"
            f" {_how_far_off(found)}."
        )
    if run.summary.regret:
        words += f" The run took {regret_text(run.summary.regret)}."
    return {"data": [_dots("Rounds", colour, found, " s")], "layout": layout}, words


def _loads_foreseen(run: Run, colour: str) -> tuple[Spec, str]:
    """What the node that trained and the link to it had to spare, as predicted and as it was."""
    compute: list[Foreseen] = []
    links: list[Foreseen] = []
    for row in run.rows:
        if row.node is None or row.actual is UNSET:
            continue
        told, was = row.loads.in_full, row.actual.in_full
        for found, predicted, actual in (
            (compute, told.flops[row.node], was.flops[row.node]),
            (links, told.bandwidth[row.node], was.bandwidth[row.node]),
        ):
            if predicted and actual:
                found.append((row.round, predicted, actual))
    kinds = [(_as_shares(compute), "Compute", COMPUTE), (_as_shares(links), "Links", TRANSFER)]
    layout = _predicted_against_actual("Predicted load", "Actual load", [found for found, _, _ in kinds], legend=True)
    data = [_dots(name, of, found) for found, name, of in kinds if found]
    for dots, symbol in zip(data, ("circle", "x-thin-open"), strict=False):
        dots["marker"] |= {"symbol": symbol}
    far = "; ".join(f"{name.lower()} {_how_far_off(found)}" for found, name, _ in kinds if found)
    words = (
        "Free compute of the node that trained and the bandwidth to it, as shares of the largest of the run; a load"
        f" on the dotted line was as predicted. Actual over predicted: {far}."
    )
    return {"data": data, "layout": layout}, words if data else "No round trained."


Foreseen = tuple[int, float, float]
"""A round, what was predicted for it, and what it was."""


def _as_shares(found: list[Foreseen]) -> list[Foreseen]:
    largest = max((max(predicted, actual) for _, predicted, actual in found), default=1.0)
    return [(number, predicted / largest, actual / largest) for number, predicted, actual in found]


def _dots(name: str, colour: str, found: list[Foreseen], unit: str = "") -> Spec:
    found = found[:: max(1, len(found) // POINTS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": _short(predicted for _, predicted, _ in found),
        "y": _short(actual for _, _, actual in found),
        "customdata": [[number, float(f"{actual / predicted:.4g}")] for number, predicted, actual in found],
        "marker": {"size": 5, "color": colour, "opacity": 0.6},
        "hovertemplate": f"round %{{customdata[0]}}: %{{x:.4g}}{unit} predicted, %{{y:.4g}}{unit} actual,"
        " ratio %{customdata[1]}<extra></extra>",
    }


def _predicted_against_actual(x: str, y: str, kinds: Sequence[list[Foreseen]], *, legend: bool = False) -> Spec:
    """Two axes alike, and the line on which a prediction was right."""
    layout = _layout(x, y, legend=legend)
    layout["xaxis"] |= {"type": "log"}
    layout["yaxis"] |= {"type": "log"}
    values = [value for found in kinds for _, *pair in found for value in pair]
    if values:
        low, high = min(values), max(values)
        line = {"width": 1, "dash": "dot", "color": "#888888"}
        layout["shapes"] = [{"type": "line", "x0": low, "y0": low, "x1": high, "y1": high, "line": line}]
    return layout


def _how_far_off(found: list[Foreseen]) -> str:
    low, middle, high = np.quantile([actual / predicted for _, predicted, actual in found], (0.1, 0.5, 0.9)).tolist()
    return f"{middle:.2f} in the median, {low:.2f} to {high:.2f} in eight of ten rounds"


def _node_usage(run: Run, colour: str) -> tuple[Spec, str]:
    return _node_heat(run) if run.nodes > MANY_NODES else _node_bubbles(run, colour)


def _node_heat(run: Run) -> tuple[Spec, str]:
    usage = series.node_usage(run, LABEL_COLUMNS)
    heat = {
        "type": "heatmap",
        "x": _short((usage.first + usage.last) / 2),
        "y": list(range(run.nodes)),
        "z": [_short(row) for row in usage.samples],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "Samples", "side": "right"}, "thickness": 10, "outlinewidth": 0},
        "hovertemplate": "%{z:,.0f} samples at node %{y}, round %{x:.0f}<extra></extra>",
    }
    layout = _by_node(run)
    layout["yaxis"] |= {"range": [run.nodes - 0.5, -0.5], "showgrid": False}
    layout["xaxis"] |= {"showgrid": False}
    width = int(usage.last[0] - usage.first[0]) + 1
    each = "one round" if width == 1 else f"{width} rounds together"
    return {"data": [heat], "layout": layout}, f"Samples that each node trained on in {each}. {_most_used(usage)}"


def _most_used(usage: series.NodeUsage) -> str:
    """Which nodes had most of the samples; of many nodes, only the first few."""
    trained = usage.samples.sum(axis=1)
    shares = 100 * trained / max(trained.sum(), 1.0)
    order = np.argsort(-shares, kind="stable")
    if len(shares) <= MANY_NODES:
        return "Of all samples, " + ", ".join(f"node {node} had {s:.0f} %" for node, s in enumerate(shares)) + "."
    most = ", ".join(f"node {node} ({shares[node]:.1f} %)" for node in order[:3])
    idle = int((trained == 0).sum())
    never = f" {idle:,} of {len(shares):,} nodes never trained." if idle else " Every node trained."
    return f"Most were used at {most}.{never}"


def held_map(run: Run) -> Plot:
    """Training samples per node and label as a heat map, for more nodes than a table can show."""
    heat = {
        "type": "heatmap",
        "x": [_shown(name) for name in run.labels],
        "y": list(range(run.nodes)),
        "z": [list(node) for node in run.held],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "Samples", "side": "right"}, "thickness": 10, "outlinewidth": 0},
        "hovertemplate": "node %{y} holds %{z:,.0f} samples of label %{x}<extra></extra>",
    }
    layout = _layout("Label", "Node", legend=False)
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout["yaxis"] |= {"range": [run.nodes - 0.5, -0.5], "showgrid": False}
    totals = [sum(node) for node in run.held]
    kinds = [sum(count > 0 for count in node) for node in run.held]
    words = (
        f"{run.nodes:,} nodes hold between {min(totals):,} and {max(totals):,} samples each, of {min(kinds)} to"
        f" {max(kinds)} labels."
    )
    return Plot("held", "Training samples per node and label", words, [{"data": [heat], "layout": layout}], wide=True)


def _node_bubbles(run: Run, colour: str) -> tuple[Spec, str]:
    # Twice as many still read, and a round of its own says more than two together.
    single = len(run.rows) <= 2 * BUBBLES_PER_NODE
    usage = series.node_usage(run, len(run.rows) if single else BUBBLES_PER_NODE)
    nodes, groups = np.nonzero(usage.samples)
    samples = usage.samples[nodes, groups]
    data = {
        "type": "scatter",
        "mode": "markers",
        "x": _short((usage.first + usage.last)[groups] / 2),
        "y": nodes.tolist(),
        "marker": {
            "size": _short(samples),
            "sizemode": "area",
            "sizemin": 1.5,
            "sizeref": 2 * float(samples.max(initial=1.0)) / LARGEST_BUBBLE**2,
            "color": colour,
            "opacity": 0.7,
            "line": {"width": 0},
        },
        "hovertemplate": "%{marker.size:,.0f} samples at node %{y}, round %{x}<extra></extra>",
    }
    layout = _by_node(run)
    margin = 0.03 * len(run.rows) + 0.5
    layout["xaxis"]["range"] = [run.rows[0].round - margin, run.rows[-1].round + margin]
    width = int(usage.last[0] - usage.first[0]) + 1
    each = "one round" if width == 1 else f"{width} rounds together"
    words = f"A bubble's area is the number of samples a node trained on in {each}. {_most_used(usage)}"
    return {"data": [data], "layout": layout}, words


def _label_usage(run: Run, colour: str) -> tuple[Spec, str]:
    usage = series.label_usage(run, LABEL_COLUMNS)
    limit = run.settings.variance_limit
    names = [_shown(name) for name in run.labels]
    heat = {
        "type": "heatmap",
        "x": _short(usage.rounds),
        "y": list(range(len(names))),
        "z": [_short(row) for row in usage.used],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "Samples", "side": "right"}, "thickness": 10, "outlinewidth": 0}
        | {"len": 0.58, "y": 0.42, "yanchor": "bottom"},
        "hovertemplate": "%{z:,.0f} samples of label %{y} by round %{x}<extra></extra>",
    }
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": _short(usage.rounds),
        "y": _short(usage.variance),
        "yaxis": "y2",
        "line": {"color": colour, "width": 2},
        "hovertemplate": "variance %{y:,.0f} at round %{x}<extra></extra>",
    }
    layout = _layout("Round", "Label", legend=False)
    layout["xaxis"] |= {"anchor": "y2", "showgrid": False}
    layout["yaxis"] |= {"domain": [0.42, 1], "autorange": "reversed", "showgrid": False}
    if len(names) <= 20:
        layout["yaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names}
    layout["yaxis2"] = {"domain": [0, 0.32], "title": {"text": "Variance"}, "automargin": True}
    layout["yaxis2"] |= _variance_axis(usage, limit)
    if math.isfinite(limit):
        layout["shapes"] = [_level(limit, "y2")]
        # On a logarithmic axis plotly.js places shapes by value but annotations by exponent.
        at = float(np.log10(limit)) if layout["yaxis2"].get("type") == "log" else limit
        layout["annotations"] = [_level_name("V", at, "y2")]
    return {"data": [heat, line], "layout": layout}, _balance_in_words(run, usage)


def _variance_axis(usage: series.LabelUsage, limit: float) -> dict[str, Any]:
    """Linear as long as V can be seen, logarithmic beyond; a level needs room above it for its name."""
    greatest = float(usage.variance.max(initial=0.0))
    if limit > 0 and greatest > 20 * limit:
        return {
            "type": "log",
            "range": [float(np.log10(limit / 20)), float(np.log10(greatest * 3))],
            "dtick": 1,
            "exponentformat": "power",
        }
    return {"range": [0, 1.3 * max(greatest, limit if math.isfinite(limit) else 0.0) or 1.0]}


def _balance_in_words(run: Run, usage: series.LabelUsage) -> str:
    final = usage.used[:, -1]
    limit, greatest = run.settings.variance_limit, float(usage.variance.max())
    kept = "stays within" if greatest <= limit else "exceeds"
    return (
        f"By the end each label was used between {final.min():,.0f} and {final.max():,.0f} times. "
        f"The variance over the labels {kept} V = {limit:,.6g}; its greatest value is {greatest:,.0f}."
    )


def _journey_title(runs: Sequence[Run]) -> str:
    several = {keeps_models(run) for run in runs}
    if several == {True}:
        return "Every node's model"
    return "Route of the model" if several == {False} else "Route of the model, or every node's model"


def _journey(run: Run, colour: str) -> tuple[Spec, str]:
    """Where the one model went, or how good each of several models is."""
    return _every_model(run, colour) if keeps_models(run) and last_scores(run) is not None else _route(run, colour)


def _every_model(run: Run, colour: str) -> tuple[Spec, str]:
    """What each node's model scores over time, their mean and the consensus."""
    measure = run.measure
    factor, unit = (100.0, " %") if measure.is_accuracy else (1.0, "")
    tested = [(row.total_seconds, scores) for row in run.rows if (scores := scores_of(row)) is not None]
    tested = [tested[at] for at in np.unique(np.linspace(0, len(tested) - 1, min(len(tested), POINTS)).astype(int))]
    seconds_ = _short(at for at, _ in tested)

    def line(name: str, values: Sequence[float | None], **style: Any) -> Spec:
        shown = [None if value is None else float(f"{factor * value:.5g}") for value in values]
        hover = f"{name}: %{{y:.4g}}{unit} after %{{x:.4g}} s<extra></extra>"
        drawn = {"type": "scatter", "mode": "lines", "name": name, "x": seconds_, "y": shown, "hovertemplate": hover}
        return drawn | {"line": {"color": colour, "shape": "hv"} | style}

    count = len(tested[0][1].nodes)
    data = [
        line(f"node {node}", [scores.nodes[node] for _, scores in tested], width=1)
        | {"opacity": 0.35, "showlegend": False}
        for node in range(count)
    ]
    if count:
        data.append(line("mean over nodes", [scores.mean for _, scores in tested], width=2.5))
    if any(scores.consensus is not None for _, scores in tested):
        data.append(line("consensus", [scores.consensus for _, scores in tested], width=2, dash="dot"))
    layout = _layout(_time_axis([run]), f"Test {_shown(measure.name)}", from_zero="x")
    if measure.is_accuracy:
        layout["yaxis"] |= {"ticksuffix": unit, "range": [0, 102]}
    last = tested[-1][1]
    nodes = (
        f"At the end the nodes' models are at {measure.value(last.mean)} on average, the worst at"
        f" {measure.value(last.worst)}. "
        if last.mean is not None and last.worst is not None
        else "Nodes keep no model between rounds. "
    )
    agreed = f"The consensus is at {measure.value(last.consensus)}. " if last.consensus is not None else ""
    return {"data": data, "layout": layout}, f"{nodes}{agreed}Targets are of {what_is_tested(run)}."


def _route(run: Run, colour: str) -> tuple[Spec, str]:
    places = [row.holder if row.node is None else row.node for row in run.rows]
    skipped = [row for row in run.rows if row.node is None]
    path = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "Trained here",
        "y": places,
        "line": {"color": colour, "width": 1.5, "shape": "hvh"},
        "marker": {"size": 6},
        "hovertemplate": "round %{x}: node %{y}<extra></extra>",
    } | _rounds_axis(run)
    waits = {
        "type": "scatter",
        "mode": "markers",
        "name": "Waited",
        "x": [row.round for row in skipped],
        "y": [row.holder for row in skipped],
        "marker": {"symbol": "circle-open", "size": 11, "color": colour, "line": {"width": 1.5}},
        "hovertemplate": "round %{x}: waited at node %{y}<extra></extra>",
    }
    layout = _by_node(run)
    layout |= {"showlegend": bool(skipped), "margin": layout["margin"] | {"t": 46}, "dragmode": "pan"}
    start = run.rows[0].round - 0.7
    layout["xaxis"] |= {"range": [start, start + min(len(places), ROUTE_AT_FIRST) + 0.9], "autorange": False}
    hops = sum(a != b for a, b in pairwise(places))
    words = f"The model moved {hops:,} times in {len(places):,} rounds"
    words += f" and waited {len(skipped):,} times." if skipped else "."
    if len(places) > ROUTE_AT_FIRST:
        words += f" The first {ROUTE_AT_FIRST} rounds are shown: drag to move on, double-click for all."
    return {"data": [path, waits] if skipped else [path], "layout": layout}, words


def _rounds_axis(run: Run) -> Spec:
    """The rounds as a start and a step, which weighs next to nothing, unless some are missing."""
    first, last = run.rows[0].round, run.rows[-1].round
    gaps = last - first + 1 != len(run.rows)
    return {"x": [row.round for row in run.rows]} if gaps else {"x0": first, "dx": 1}


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
        look, name = looks[policy], _shown(policy)
        common = {"type": "scatter", "mode": "lines", "legendgroup": name}
        if band.seeds > 1:
            edge = common | {"x": _short(band.x), "hoverinfo": "skip", "showlegend": False, "meta": "band"}
            edge |= {"line": {"width": 0, "shape": shape}}
            low = np.maximum(band.mean - band.interval, limits[0])
            high = np.minimum(band.mean + band.interval, limits[1])
            behind.append(edge | {"y": _short(factor * low)})
            behind.append(edge | {"y": _short(factor * high), "fill": "tonexty", "fillcolor": _faint(look.colour)})
        for curve in band.curves:
            alone = common | {"x": _short(curve.x), "y": _short(factor * curve.y), "showlegend": False}
            line = {"color": look.colour, "width": 1, "shape": shape}
            behind.append(alone | {"hoverinfo": "skip", "meta": "seeds", "opacity": 0.45, "line": line})
        line = {"color": look.colour, "dash": look.dash, "width": 2, "shape": shape}
        template = f"{name}: {hover}<extra></extra>"
        mean = {"x": _short(band.x), "y": _short(factor * band.mean), "name": name}
        lines.append(common | mean | {"line": line, "hovertemplate": template})
    return behind + lines


def _layout(x: str, y: str, *, from_zero: str = "", legend: bool = True) -> Spec:
    """What figures have in common; the axes named in `from_zero` begin there."""
    axes = {
        f"{axis}axis": {
            "title": {"text": text},
            "automargin": True,
            "rangemode": "tozero" if axis in from_zero else "normal",
        }
        for axis, text in (("x", x), ("y", y))
    }
    return axes | {
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 48, "r": 20, "t": 46 if legend else 28, "b": 44},
        "showlegend": legend,
        "hovermode": "closest",
    }


def _by_node(run: Run) -> Spec:
    layout = _layout("Round", "Node", legend=False)
    layout["yaxis"] |= {"range": [run.nodes - 0.4, -0.6], "dtick": 1 if run.nodes <= 20 else None, "zeroline": False}
    return layout


def _time_axis(runs: Sequence[Run]) -> str:
    return "Virtual time (s)" if virtual(runs) else "Time (s)"


def _level(value: float, axis: str) -> Spec:
    line = {"dash": "dot", "width": 1.2}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": value, "y1": value, "line": line}


def _level_name(text: str, value: float, axis: str) -> Spec:
    where = {"xref": "paper", "x": 1.005, "xanchor": "left", "yref": axis, "y": value, "yanchor": "middle"}
    return where | {"text": text, "showarrow": False, "font": {"size": 11}}


def _short(values: Iterable[float]) -> list[float]:
    """Five digits that count: more cannot be seen and only weigh."""
    rounded = (float(f"{value:.5g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]


def _shown(text: str) -> str:
    """Text that plotly.js shows as it is rather than as markup."""
    return escape(text if len(text) <= 32 else text[:31] + "…", quote=False)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"

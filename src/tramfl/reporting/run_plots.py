"""The page's figures that look into one run at a time, with a view for each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import UNSET

from tramfl.reporting import series
from tramfl.reporting.colours import COMPUTE, TRANSFER
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
from tramfl.reporting.runs import Run
from tramfl.reporting.several import keeps_models, last_scores, scores_of, what_is_tested
from tramfl.reporting.summary import regret_text

BUBBLES_PER_NODE = 60
LABEL_COLUMNS = 200
LARGEST_BUBBLE = 22
"""Pixels across."""
MANY_NODES = 20
"""Above this many nodes a heat map takes the place of bubbles, and a list that can be sorted that of a table."""
ROUTE_AT_FIRST = 100
"""Rounds of the route shown before the reader moves on."""


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
        loads, was = row.loads.in_full, row.actual.in_full
        for found, predicted, actual in (
            (compute, loads.flops[row.node], was.flops[row.node]),
            (links, loads.bandwidth[row.node], was.bandwidth[row.node]),
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
        "x": five_digits(predicted for _, predicted, _ in found),
        "y": five_digits(actual for _, _, actual in found),
        "customdata": [[number, float(f"{actual / predicted:.4g}")] for number, predicted, actual in found],
        "marker": {"size": 5, "color": colour, "opacity": 0.6},
        "hovertemplate": f"round %{{customdata[0]}}: %{{x:.4g}}{unit} predicted, %{{y:.4g}}{unit} actual,"
        " ratio %{customdata[1]}<extra></extra>",
    }


def _predicted_against_actual(x: str, y: str, kinds: Sequence[list[Foreseen]], *, legend: bool = False) -> Spec:
    """Two axes alike, and the line on which a prediction was right."""
    layout = layout_of(x, y, legend=legend)
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
        "x": five_digits((usage.first + usage.last) / 2),
        "y": list(range(run.nodes)),
        "z": [five_digits(row) for row in usage.samples],
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
        "x": [as_text(name) for name in run.labels],
        "y": list(range(run.nodes)),
        "z": [list(node) for node in run.held],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "Samples", "side": "right"}, "thickness": 10, "outlinewidth": 0},
        "hovertemplate": "node %{y} holds %{z:,.0f} samples of label %{x}<extra></extra>",
    }
    layout = layout_of("Label", "Node", legend=False)
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
        "x": five_digits((usage.first + usage.last)[groups] / 2),
        "y": nodes.tolist(),
        "marker": {
            "size": five_digits(samples),
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
    limit = math.inf if keeps_models(run) else run.settings.variance_limit
    names = [as_text(name) for name in run.labels]
    heat = {
        "type": "heatmap",
        "x": five_digits(usage.rounds),
        "y": list(range(len(names))),
        "z": [five_digits(row) for row in usage.used],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "Samples", "side": "right"}, "thickness": 10, "outlinewidth": 0}
        | {"len": 0.58, "y": 0.42, "yanchor": "bottom"},
        "hovertemplate": "%{z:,.0f} samples of label %{y} by round %{x}<extra></extra>",
    }
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": five_digits(usage.rounds),
        "y": five_digits(usage.variance),
        "yaxis": "y2",
        "line": {"color": colour, "width": 2},
        "hovertemplate": "variance %{y:,.0f} at round %{x}<extra></extra>",
    }
    layout = layout_of("Round", "Label", legend=False)
    layout["xaxis"] |= {"anchor": "y2", "showgrid": False}
    layout["yaxis"] |= {"domain": [0.42, 1], "autorange": "reversed", "showgrid": False}
    if len(names) <= 20:
        layout["yaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names}
    layout["yaxis2"] = {"domain": [0, 0.32], "title": {"text": "Variance"}, "automargin": True}
    layout["yaxis2"] |= _variance_axis(usage, limit)
    if math.isfinite(limit):
        layout["shapes"] = [level_line(limit, "y2")]
        # On a logarithmic axis plotly.js places shapes by value but annotations by exponent.
        at = float(np.log10(limit)) if layout["yaxis2"].get("type") == "log" else limit
        layout["annotations"] = [level_name("V", at, "y2")]
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
    used = f"By the end each label was used between {final.min():,.0f} and {final.max():,.0f} times."
    if keeps_models(run):
        return f"{used} The greatest variance over the labels is {greatest:,.0f}; the method has no limit on it."
    kept = "stays within" if greatest <= limit else "exceeds"
    return f"{used} The variance over the labels {kept} V = {limit:,.6g}; its greatest value is {greatest:,.0f}."


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
    seconds_ = five_digits(at for at, _ in tested)

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
    layout = layout_of(time_axis([run]), f"Test {as_text(measure.name)}", from_zero="x")
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


def _by_node(run: Run) -> Spec:
    layout = layout_of("Round", "Node", legend=False)
    layout["yaxis"] |= {"range": [run.nodes - 0.4, -0.6], "dtick": 1 if run.nodes <= 20 else None, "zeroline": False}
    return layout

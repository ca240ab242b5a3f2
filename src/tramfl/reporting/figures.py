"""The paper's figures, ready for a column of a paper.

The same runs give the same bytes: no timestamp, no random identifier.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tramfl.notation import BadInput
from tramfl.record import writing
from tramfl.reporting import series
from tramfl.reporting.colours import Look, in_order, legible, looks
from tramfl.reporting.measures import Measure
from tramfl.reporting.race_figure import draw_race, is_race
from tramfl.reporting.runs import Run, by_measure, by_scenario, virtual
from tramfl.reporting.several import keeps_models

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Format = Literal["pdf", "png", "svg"]
COLUMN_INCHES = 3.5
POINTS = 1500
USAGE_COLUMNS = 60
MOST_MARKS = 15
"""The most names or numbers that are legible along one side of a column."""
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same glyphs on every machine
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # TrueType, embedded: journals refuse Type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "tramfl",
    "savefig.dpi": 300,
}
UNDATED: dict[str, dict[str, None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}

Draw = Callable[["Figure"], None]


def write_figures(runs: Sequence[Run], out: Path, format: Format = "pdf") -> list[Path]:
    """Draw every figure the runs have data for, into the folder `out`; the files written."""
    return _write(_figures(runs), out, format)


def write_races(runs: Sequence[Run], out: Path, format: Format = "svg") -> list[Path]:
    """Draw the figure of the race of each scenario, into the folder `out`; the files written."""
    chosen = looks(run.policy for run in runs)
    races = [(name, group) for name, group in by_scenario(runs).items() if is_race(group)]
    return _write([(name, partial(draw_race, group, chosen)) for name, group in races], out, format)


def _write(figures: Iterable[tuple[str, Draw]], out: Path, format: Format) -> list[Path]:
    if format not in get_args(Format):
        raise BadInput(f"Figures can be written as {', '.join(get_args(Format))}, not as {format}.")
    try:
        import matplotlib as mpl  # optional: the base install has no Matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("Figures need Matplotlib: pip install 'tramfl[dashboard]'.") from None
    out = Path(out)
    written: list[Path] = []
    settings: Any = mpl.rcParams
    with writing(out), mpl.rc_context():
        out.mkdir(parents=True, exist_ok=True)
        mpl.rcdefaults()  # what a machine's own matplotlibrc says must not change the figures
        settings.update(STYLE)
        for name, draw in figures:
            figure = Figure(figsize=(COLUMN_INCHES, 2.4), layout="constrained")
            draw(figure)
            path = _free_path(out, name, format, written)
            figure.savefig(path, format=format, metadata=UNDATED[format])
            written.append(path)
    return written


def curve_svg(runs: Sequence[Run]) -> str:
    """The first figure that the runs have data for, as SVG for a notebook; empty without Matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    settings: Any = mpl.rcParams
    with mpl.rc_context():
        mpl.rcdefaults()
        settings.update(STYLE)
        for _, draw in _figures(runs):
            figure = Figure(figsize=(1.6 * COLUMN_INCHES, 2.8), layout="constrained")
            draw(figure)
            content = io.StringIO()
            figure.savefig(content, format="svg", metadata=UNDATED["svg"])
            return content.getvalue()[content.getvalue().index("<svg") :]
    return ""


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, Draw]]:
    """Each figure's file name with what draws it; a figure without data is left out."""
    groups, chosen = by_scenario(runs), looks(run.policy for run in runs)
    for scenario, group in groups.items():
        prefix = f"{scenario}-" if len(groups) > 1 else ""
        for measure, alike in by_measure(group).items():
            focus = series.useful_seconds(alike)
            if found := series.bands(alike, series.metric_over_time, points=POINTS, keep_last=True, focus=focus):
                yield f"{prefix}{measure.metric}-over-time", _curves(alike, found, chosen, _finish_metric(measure))
            if is_race(alike):
                yield f"{prefix}best-{measure.metric}-over-time-and-traffic", partial(draw_race, alike, chosen)
        for name, quantity, finish in CURVES:
            if found := series.bands(group, quantity, points=POINTS):
                yield prefix + name, _curves(group, found, chosen, finish)
        for policy in in_order(run.policy for run in group):
            run = min((run for run in group if run.policy == policy), key=lambda run: run.seed)
            yield f"{prefix}data-usage-by-node-{policy}", _node_usage(run, chosen[policy].colour)
            yield f"{prefix}data-usage-by-label-{policy}", _label_usage(run, chosen[policy].colour)
        if held := next((run for run in group if run.held), None):
            yield f"{prefix}label-layout", _layout(held)


def _curves(
    runs: Sequence[Run],
    found: dict[str, series.Band],
    chosen: dict[str, Look],
    finish: Callable[[Axes, Sequence[Run]], None],
) -> Draw:
    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for policy, band in found.items():
            look = chosen[policy]
            axes.plot(band.x, band.mean, color=look.colour, linestyle=look.line, label=legible(policy))
            if band.seeds > 1:
                axes.fill_between(band.x, band.low, band.high, color=look.colour, alpha=0.15, linewidth=0)
        finish(axes, runs)
        if len(found) > 1:
            figure.legend(
                loc="outside upper center",
                ncols=min(len(found), 2) if len(found) != 3 else 3,
                handlelength=2.2,
                columnspacing=1.2,
            )

    return draw


def _finish_metric(measure: Measure) -> Callable[[Axes, Sequence[Run]], None]:
    def finish(axes: Axes, runs: Sequence[Run]) -> None:
        for line in axes.lines:
            line.set_drawstyle("steps-post")  # between two measurements the model does not change
        for target in sorted({float(key) for run in runs for key in run.summary.seconds_to_target}):
            axes.axhline(target, color="#666666", linewidth=0.6, linestyle=(0, (1, 2)))
        unit = " (%)" if measure.is_accuracy else ""
        axes.set(xlabel="Virtual time (s)" if virtual(runs) else "Time (s)")
        axes.set_ylabel(f"Test {legible(measure.name)}{unit}")
        if measure.is_accuracy:
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
        elif axes.dataLim.ymin >= 0:
            axes.set_ylim(bottom=0)
        axes.set_xlim(0, series.useful_seconds(runs))

    return finish


def _finish_time(axes: Axes, runs: Sequence[Run]) -> None:
    axes.set(xlabel="Round", ylabel="Total training time (s)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _finish_loss(kind: str) -> Callable[[Axes, Sequence[Run]], None]:
    def finish(axes: Axes, runs: Sequence[Run]) -> None:
        axes.set(xlabel="Round", ylabel=f"{kind} loss")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)

    return finish


CURVES: tuple[tuple[str, series.Quantity, Callable[[Axes, Sequence[Run]], None]], ...] = (
    ("time-over-rounds", series.time_over_rounds, _finish_time),
    ("local-validation-loss", series.validation_loss, _finish_loss("Local validation")),
    ("global-test-loss", series.test_loss, _finish_loss("Global test")),
)


def _node_usage(run: Run, colour: str) -> Draw:
    def draw(figure: Figure) -> None:
        usage = series.node_usage(run, USAGE_COLUMNS)
        nodes, groups = np.nonzero(usage.samples)
        samples = usage.samples[nodes, groups]
        axes = figure.add_subplot()
        middle = (usage.first + usage.last)[groups] / 2
        largest = samples.max(initial=1.0)
        axes.scatter(
            middle,
            nodes,
            s=90 * samples / largest,
            color=colour,
            alpha=0.55,
            linewidth=0,
        )
        axes.set(xlabel="Round", ylabel="Node", ylim=(run.nodes - 0.4, -0.6))
        _mark_each(axes.yaxis, run.nodes)
        width = int(usage.last[0] - usage.first[0]) + 1
        per = "round" if width == 1 else f"{width} rounds"
        figure.suptitle(f"{legible(run.policy)}: largest bubble {largest:,.0f} samples per {per}", fontsize=7)

    return draw


def _label_usage(run: Run, colour: str) -> Draw:
    def draw(figure: Figure) -> None:
        usage = series.label_usage(run, 300)
        figure.set_size_inches(COLUMN_INCHES, 3.3)
        heat, variance = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        last = usage.rounds[-1]
        edges = np.concatenate([[0], usage.rounds])
        mesh = heat.pcolormesh(
            edges, np.arange(len(run.labels) + 1) - 0.5, usage.used, cmap="cividis", rasterized=True
        )
        figure.colorbar(mesh, ax=heat, pad=0.02, label="Samples used")
        heat.grid(visible=False)
        _mark_each(heat.yaxis, len(run.labels), run.labels)
        heat.set(ylabel="Label", ylim=(len(run.labels) - 0.5, -0.5))
        limit = math.inf if keeps_models(run) else run.settings.variance_limit
        variance.plot(usage.rounds, usage.variance, color=colour, linewidth=1)
        if math.isfinite(limit):
            variance.axhline(limit, color="#333333", linewidth=0.8, linestyle="--")
            variance.annotate("V", (1.01, limit), xycoords=("axes fraction", "data"), va="center", fontsize=7)
        if usage.variance.max() > 20 * limit > 0:
            variance.set_yscale("symlog", linthresh=limit)
        variance.set(xlabel="Round", ylabel="Variance", xlim=(0, max(last, 1)))
        variance.set_ylim(bottom=0)
        figure.suptitle(f"{legible(run.policy)}, seed {run.seed}", fontsize=7)

    return draw


def _layout(run: Run) -> Draw:
    def draw(figure: Figure) -> None:
        held = np.array(run.held, dtype=np.float64)
        axes = figure.add_subplot()
        nodes, labels = np.nonzero(held)
        axes.scatter(labels, nodes, s=110 * held[nodes, labels] / held.max(initial=1.0), color="#33608C", linewidth=0)
        axes.set(xlabel="Label", ylabel="Node", ylim=(run.nodes - 0.4, -0.6), xlim=(-0.6, len(run.labels) - 0.4))
        _mark_each(axes.yaxis, run.nodes)
        _mark_each(axes.xaxis, len(run.labels), run.labels)
        if len(run.labels) <= MOST_MARKS and max(map(len, run.labels)) > 2:
            axes.tick_params(axis="x", labelrotation=45)
            for name in axes.get_xticklabels():
                name.set_horizontalalignment("right")
        figure.suptitle(f"Training samples per node and label; largest {held.max(initial=0):,.0f}", fontsize=7)

    return draw


def _mark_each(axis: Axis, count: int, names: Sequence[str] = ()) -> None:
    """A tick with its name, or number, for each of `count`; some of the numbers where all would not be legible."""
    from matplotlib.ticker import MaxNLocator

    if count <= MOST_MARKS:
        axis.set_ticks(range(count), [legible(name) for name in names] if names else None)
    else:
        axis.set_major_locator(MaxNLocator(nbins=10, integer=True))


def _free_path(out: Path, name: str, ending: str, taken: Sequence[Path]) -> Path:
    """A file name of harmless characters inside `out`, unlike those in `taken`."""
    safe = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80] or "figure"
    path, number = out / f"{safe}.{ending}", 2
    while path in taken:
        path, number = out / f"{safe}-{number}.{ending}", number + 1
    return path

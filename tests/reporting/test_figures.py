from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tramfl.notation import BadInput
from tramfl.record import Resolved, RowLoads
from tramfl.reporting import Run, figures, load_run, run_plots, write_figures
from tramfl.reporting.colours import looks

MakeRun = Callable[..., Path]


def test_every_figure_of_the_paper_is_drawn(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [load_run(make_run(f"{p}{s}", policy=p, seed=s)) for p in ("load-aware", "time-first") for s in range(2)]
    names = {path.stem for path in write_figures(runs, tmp_path / "out", "svg")}
    assert names == {
        "accuracy-over-time", "time-over-rounds", "local-validation-loss", "global-test-loss", "label-layout",
        "data-usage-by-node-load-aware", "data-usage-by-node-time-first",
        "data-usage-by-label-load-aware", "data-usage-by-label-time-first",
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_the_same_run_gives_the_same_bytes(make_run: MakeRun, tmp_path: Path, ending: Any) -> None:
    # All figures once, as SVG, where identifiers could be random; fewer in the slower formats.
    runs = [load_run(make_run(f"{seed}", seed=seed, rounds=20, training=ending == "svg")) for seed in range(2)]
    first, again = (write_figures(runs, tmp_path / name, ending) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_fonts_are_embedded_and_one_column_wide(make_run: MakeRun, tmp_path: Path) -> None:
    for path in write_figures([load_run(make_run(rounds=20))], tmp_path / "out", "pdf"):
        content = path.read_bytes()
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", content)
        assert box is not None
        assert float(box[1]) == 3.5 * 72


def test_a_run_of_the_scheduler_alone_has_no_figure_of_accuracy_or_loss(make_run: MakeRun, tmp_path: Path) -> None:
    names = {
        path.stem for path in write_figures([load_run(make_run(training=False, resolved={}))], tmp_path / "o", "svg")
    }
    assert names == {"time-over-rounds", "data-usage-by-node-load-aware", "data-usage-by-label-load-aware"}


def test_a_hostile_name_stays_inside_the_folder_and_draws(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        load_run(make_run("a", policy="../../$x_{$ evil\n", rounds=5)),
        load_run(make_run("b", policy="../../$x_{$ evil\t", rounds=5)),
        load_run(make_run("c", policy="_hidden", scenario="/etc/passwd", rounds=5)),
    ]
    written = write_figures(runs, tmp_path / "out", "svg")
    assert len(set(written)) == len(written)
    assert {path.parent for path in written} == {tmp_path / "out"}
    assert all(path.exists() for path in written)


def test_an_unknown_format_is_bad_input(make_run: MakeRun, tmp_path: Path) -> None:
    wrong: Any = "gif"
    with pytest.raises(BadInput, match="pdf, png, svg"):
        write_figures([load_run(make_run(rounds=3))], tmp_path, wrong)


def test_drawing_leaves_the_readers_own_settings_alone(make_run: MakeRun, tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 33}):
        write_figures([load_run(make_run(rounds=3))], tmp_path / "out", "svg")
        assert mpl.rcParams["font.size"] == 33


def drawn(run: Run) -> dict[str, Any]:
    """Each figure as it would be written, ready to be measured."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    found: dict[str, Any] = {}
    style: Any = figures.STYLE
    with rc_context(style):
        for name, draw in figures._figures([run]):
            found[name] = Figure(figsize=(figures.COLUMN_INCHES, 2.4), layout="constrained")
            draw(found[name])
            found[name].canvas.draw()
    return found


def crowd(run: Run, nodes: int, labels: int) -> Run:
    """The same run with more nodes and labels, whose names are long."""
    rows = [
        replace(
            row,
            holder=row.round % nodes,
            node=(row.round + 1) % nodes,
            samples=(row.round,) * labels,
            used=(row.round,) * labels,
            loads=RowLoads((1e12,) * nodes, (1e8,) * nodes),
        )
        for row in run.rows
    ]
    names = tuple(f"a kind of thing, number {label}" for label in range(labels))
    resolved = Resolved(held=((5,) * labels,) * nodes, labels=names)
    return Run(run.folder, run.settings, resolved, tuple(rows), run.summary)


@pytest.mark.parametrize(("nodes", "labels"), [(40, 30), (15, 16), (200, 100)])
def test_the_names_of_many_nodes_and_labels_do_not_overlap(make_run: MakeRun, nodes: int, labels: int) -> None:
    found = drawn(crowd(load_run(make_run(rounds=50)), nodes, labels))
    for name in ("data-usage-by-node-load-aware", "data-usage-by-label-load-aware", "label-layout"):
        axes = found[name].axes[0]
        assert any(text.get_text() for text in axes.get_yticklabels())
        for axis in (axes.xaxis, axes.yaxis):
            shown = [text for text in axis.get_ticklabels() if text.get_visible() and text.get_text()]
            boxes = [text.get_window_extent() for text in shown]
            assert len(boxes) <= figures.MOST_MARKS, (name, axis)
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes)), (name, axis)


def test_without_a_limit_no_line_is_drawn_for_it(make_run: MakeRun) -> None:
    for limit, lines in ((50.0, 2), (math.inf, 1)):
        run = load_run(make_run(f"{limit}", rounds=10, variance_limit=limit))
        variance = drawn(run)["data-usage-by-label-load-aware"].axes[1]
        assert len(variance.lines) == lines
        assert [text.get_text() for text in variance.texts] == ["V"] * (lines - 1)
        labels = next(plot for plot in run_plots.inside([run], looks(["load-aware"])) if plot.key == "labels")
        layout = labels.views[0]["layout"]
        assert len(layout.get("shapes", ())) == len(layout.get("annotations", ())) == lines - 1

"""The report: one HTML file that opens anywhere, offline.

Nothing a run file says can become markup or script: text goes through `markup.element`, numbers and names
for the figures travel as packed JSON, and the page's own policy runs no script but the two it was made with.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from msgspec import UnsetType

from tramfl.notation import BadInput
from tramfl.record import Row, write_atomically, writing
from tramfl.reporting import comparing_plots, run_plots, sections
from tramfl.reporting.colours import looks
from tramfl.reporting.markup import Html, together
from tramfl.reporting.measures import capital
from tramfl.reporting.runs import Run, by_scenario, diverged_rounds, virtual

PAGE_FILE = "report.html"
DIVERGED = " It diverged: the loss was not a finite number."
"""After the reason for a round, where that is so."""


def write_page(runs: Sequence[Run], path: Path) -> Path:
    """Write the report of `runs` to `path` (or into it, where it is a folder); the file written."""
    if not runs:
        raise BadInput("A report needs at least one run.")
    path = Path(path)
    if path.is_dir():
        path = path / PAGE_FILE
    content = render(runs).encode("utf-8", "replace")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return path


def render(runs: Sequence[Run]) -> str:
    """The page as text; the same runs give the same page."""
    groups = by_scenario(runs)
    chosen = looks(run.policy for run in runs)
    parts: list[Html] = []
    data: dict[str, Any] = {"plots": {}}
    for number, (name, group) in enumerate(groups.items()):
        key = f"s{number}"
        comparing, inside = comparing_plots.comparison(group, chosen), run_plots.inside(group, chosen)
        held = next((run_plots.held_map(run) for run in group if run.held and run.nodes > run_plots.MANY_NODES), None)
        shown = [*comparing, *inside, *([held] if held else [])]
        data["plots"] |= {f"{key}-{p.key}": {"views": p.views, "words": p.view_words} for p in shown}
        parts.append(sections.scenario(key, name if len(groups) > 1 else None, group, comparing, inside, chosen))
    if len(runs) == 1:
        parts.append(sections.audit(runs[0]))
        data["rounds"] = _rounds(runs[0])
        parts.append(_rounds_frame(runs[0]))
    title = next(iter(groups)) if len(groups) == 1 else f"{len(groups)} scenarios"
    script, library = _asset("report.js"), _plotly()
    return Template(_asset("report.html")).substitute(
        title=together([f"{title} · tramfl report"]),
        csp=together([_security_policy(script, library)]),
        css=_asset("report.css"),
        header=sections.header(title, runs),
        contents=sections.contents(groups) if len(groups) > 1 else "",
        sections="\n".join(parts),
        run=sections.what_was_run(runs),
        library=_packed_library(),
        data=_packed(msgspec.json.encode(data)),
        script=script,
    )


def _rounds_frame(run: Run) -> Html:
    seconds = "virtual seconds" if virtual([run]) else "seconds"
    metric = together([capital(run.measure.name)])
    overhead = '<th scope="col">Overhead</th>' if _has_overhead(run) else ""
    return Html(Template(_asset("rounds.html")).substitute(seconds=seconds, metric=metric, overhead=overhead))


def _has_overhead(run: Run) -> bool:
    """Whether real sites did the rounds: in virtual time there is none."""
    return any(row.overhead for row in run.rows)


def _rounds(run: Run) -> dict[str, Any]:
    """The run's rounds, column by column, as the page's table lists them."""
    rows, measure = run.rows, run.measure
    values = [row.measured(measure.metric) for row in rows]
    diverged = set(diverged_rounds(run))
    return {
        "round": [row.round for row in rows],
        "at": [round(row.total_seconds, 3) for row in rows],
        "node": [_who(row) for row in rows],
        "samples": [sum(row.samples) for row in rows],
        "compute": [round(row.compute_seconds, 4) for row in rows],
        "transfer": [round(row.transfer_seconds, 4) for row in rows],
        "idle": [round(row.idle_seconds, 4) for row in rows],
        "overhead": [round(row.overhead, 4) for row in rows] if _has_overhead(run) else None,
        "variance": [round(row.label_variance) for row in rows],
        "tested": ["" if value is None else measure.value(value) for value in values],
        "reason": [
            row.decision.reason + (DIVERGED if row.round in diverged else "") + _rejected(row.rejected)
            for row in rows
        ],
    }


def _who(row: Row) -> int | str | None:
    """Who trained: the node, or how many; in a row of an asynchronous method a node may train more than once."""
    nodes = {each.node for each in row.by_node}
    return row.node if len(nodes) <= 1 else f"{len(nodes)} nodes"


def _rejected(nodes: tuple[int, ...] | UnsetType) -> str:
    """What a round's row says about trainings that were not accepted."""
    if not nodes:
        return ""
    names = ", ".join(f"node {node}" for node in nodes)
    return f" It was decided again: the training of {names} was not accepted."


def _security_policy(script: str, library: bytes) -> str:
    """What the page may do: run these two scripts, and reach nothing outside itself."""
    allowed = " ".join(f"'sha256-{_digest(code)}'" for code in (script.encode(), library))
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(code: bytes) -> str:
    return base64.b64encode(hashlib.sha256(code).digest()).decode()


def _packed(content: bytes) -> str:
    """Content as text that no HTML parser takes for anything: a third of its size or less."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


@cache
def _packed_library() -> str:
    return _packed(_plotly())


@cache
def _plotly() -> bytes:
    """plotly.js as the installed package has it."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise BadInput("A report needs Plotly: pip install 'tramfl[dashboard]'.")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


@cache
def _asset(name: str) -> str:
    return (files("tramfl.reporting") / "assets" / name).read_text(encoding="utf-8")

"""One interactive figure of the page as plain values for plotly.js, and the parts that figures have in common.

Plain values rather than `plotly.graph_objects`: they take no second to import and carry no template.
The page sets the colours of text and grid, since they follow its light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tramfl.reporting.colours import Look
from tramfl.reporting.runs import Run, virtual

POINTS = 800
"""The most points of a line, and of a cloud of dots."""
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


def layout_of(x: str, y: str, *, from_zero: str = "", legend: bool = True) -> Spec:
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


def time_axis(runs: Sequence[Run]) -> str:
    """What an axis of time is called: that of simulated runs is virtual."""
    return "Virtual time (s)" if virtual(runs) else "Time (s)"


def level_line(value: float, axis: str) -> Spec:
    """A dotted line across the figure."""
    line = {"dash": "dot", "width": 1.2}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": value, "y1": value, "line": line}


def level_name(text: str, value: float, axis: str) -> Spec:
    """The name of a dotted line, to the right of the figure."""
    where = {"xref": "paper", "x": 1.005, "xanchor": "left", "yref": axis, "y": value, "yanchor": "middle"}
    return where | {"text": text, "showarrow": False, "font": {"size": 11}}


def five_digits(values: Iterable[float]) -> list[float]:
    """Five digits that count: more cannot be seen and only weigh."""
    rounded = (float(f"{value:.5g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]


def as_text(text: str) -> str:
    """Text that plotly.js shows as it is rather than as markup."""
    return escape(text if len(text) <= 32 else text[:31] + "…", quote=False)

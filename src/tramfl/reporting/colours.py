"""One look per policy, the same on every page and in every figure.

The colours are those of Okabe and Ito, which people with any common colour blindness can distinguish. Line
styles differ too, and on pages the markers, so that a print in grey still reads. Black and yellow are
left out: one vanishes on a dark page, the other on a light one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple


class Look(NamedTuple):
    """How one policy is drawn."""

    colour: str
    dash: str
    """Plotly's name of the line style."""
    line: str | tuple[int, tuple[int, ...]]
    """Matplotlib's line style, the same pattern."""
    dashes: str | None
    """The same pattern in the short line before a name in a table of a page."""
    symbol: str
    """Plotly's name of the marker."""


STYLES: tuple[tuple[str, str | tuple[int, tuple[int, ...]], str | None], ...] = (
    ("solid", "-", None),
    ("dash", "--", "7 2.5"),
    ("dot", ":", "2.5 2.5"),
    ("dashdot", "-.", "9 2.5 3 2.5"),
    ("longdash", (0, (8, 3)), "11.5 3"),
    ("longdashdot", (0, (8, 3, 1, 3)), "14 3 3 3"),
)
SOLID, DASHED, DOTTED, DASH_DOT, LONG, LONG_DOT = STYLES
KNOWN = {
    "load-aware": Look("#0072B2", *SOLID, "circle"),
    "random": Look("#D55E00", *DOTTED, "x"),
    "time-first": Look("#009E73", *DASHED, "square"),
    "variance-first": Look("#E69F00", *DASH_DOT, "triangle-up"),
    "tram": Look("#CC79A7", *LONG, "diamond"),
}
FAMILIES = {
    "express": Look("#56B4E9", *SOLID, "pentagon"),
    "fedavg": Look("#D55E00", *SOLID, "hexagon"),
    "fedavg-m-of-n": Look("#D55E00", *DASHED, "hexagon"),
    "fedavg-beside": Look("#D55E00", *DASH_DOT, "hexagon"),
    "fedprox": Look("#D55E00", *LONG, "hexagon"),
    "gossip": Look("#009E73", *SOLID, "triangle-down"),
    "gossip-async": Look("#009E73", *DOTTED, "triangle-down"),
    "gossip-m-of-n": Look("#009E73", *LONG_DOT, "triangle-down"),
    "gossip-pairs": Look("#009E73", *LONG, "triangle-down"),
    "gossip-ring": Look("#009E73", *DASH_DOT, "triangle-down"),
    "feddc": Look("#E69F00", *SOLID, "triangle-left"),
    "feddc-load-aware": Look("#E69F00", *DASHED, "triangle-left"),
    "pdmm": Look("#CC79A7", *SOLID, "triangle-right"),
    "admm": Look("#CC79A7", *DASHED, "triangle-right"),
    "cmfd": Look("#7F7F7F", *SOLID, "star"),
    "cyclic": Look("#7F7F7F", *LONG_DOT, "star"),
}
"""Methods of one family have one colour; they differ in their lines, from each other and from the policies."""
REMAINING = tuple(
    Look(colour, *style, symbol)
    for style in (SOLID, DASHED, DASH_DOT, DOTTED)
    for colour, symbol in (("#56B4E9", "pentagon"), ("#7F7F7F", "star"))
)
COMPUTE, TRANSFER, WAITING, LOST, OVERHEAD = "#33608C", "#7FA7C9", "#C9CED6", "#B5525C", "#E8D9B5"
"""Where the time went; the first three are ordered by lightness, so that they differ in grey print."""


def in_order(policies: Iterable[str]) -> list[str]:
    """The policies once each: the paper's method first, its baselines, then the others by name.

    Variants of a method, `load-aware, tuned`, come behind it.
    """
    rank = {name: i for i, name in enumerate(KNOWN)}
    return sorted(set(policies), key=lambda name: (rank.get(name.partition(", ")[0], len(rank)), name))


def kind_of(names: Iterable[str]) -> str:
    """What to call what is compared: the paper's five are policies; with any other among them, all are methods."""
    return "policy" if KNOWN.keys() >= set(names) else "method"


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """A look for each policy or method; one from outside gets a look by its name, whatever else is drawn.

    Only where it would look like a built-in one, or like an earlier one by name, does it move on.
    """
    names, built_in = in_order(policies), KNOWN | FAMILIES
    chosen = {name: built_in[name] for name in names if name in built_in}
    for name in names:
        if name in chosen:
            continue
        if base := built_in.get(name.partition(", ")[0]):
            chosen[name] = Look(base.colour, *DOTTED, base.symbol)
            continue
        start = zlib.crc32(name.encode())
        turns = [REMAINING[(start + i) % len(REMAINING)] for i in range(len(REMAINING))]
        chosen[name] = next((look for look in turns if look not in chosen.values()), turns[0])
    return chosen


def legible(text: str) -> str:
    """Text as Matplotlib should draw it: short, visible, no mathematics between dollar signs."""
    short = text if len(text) <= 24 else text[:23] + "…"
    return "".join(c if c.isprintable() else "�" for c in short).replace("$", r"\$").removeprefix("_")

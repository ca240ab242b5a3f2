"""One look per policy, the same on every page and in every figure.

The colours are those of Okabe and Ito, which people with any common colour blindness tell apart. Line
style and marker differ too, so that a print in grey still reads. Black and yellow are left out: one
vanishes on a dark page, the other on a light one.
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
    symbol: str
    """Plotly's name of the marker."""
    marker: str
    """Matplotlib's marker, the same shape."""


SOLID, DASHED, DOTTED, DASH_DOT, LONG = (
    ("solid", "-"),
    ("dash", "--"),
    ("dot", ":"),
    ("dashdot", "-."),
    ("longdash", (0, (8, 3))),
)
KNOWN = {
    "load-aware": Look("#0072B2", *SOLID, "circle", "o"),
    "random": Look("#D55E00", *DOTTED, "x", "x"),
    "time-first": Look("#009E73", *DASHED, "square", "s"),
    "variance-first": Look("#E69F00", *DASH_DOT, "triangle-up", "^"),
    "tram": Look("#CC79A7", *LONG, "diamond", "D"),
}
REMAINING = tuple(
    Look(colour, *style, *mark)
    for style in (SOLID, DASHED, DASH_DOT, DOTTED)
    for colour, mark in (("#56B4E9", ("pentagon", "p")), ("#7F7F7F", ("star", "*")))
)
COMPUTE, TRANSFER, WAITING, LOST, OVERHEAD = "#33608C", "#7FA7C9", "#C9CED6", "#B5525C", "#E8D9B5"
"""Where the time went; the first three are ordered by lightness, so that grey print tells them apart."""


def in_order(policies: Iterable[str]) -> list[str]:
    """The policies once each: the paper's method first, its baselines, then the others by name."""
    rank = {name: i for i, name in enumerate(KNOWN)}
    return sorted(set(policies), key=lambda name: (rank.get(name, len(rank)), name))


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """A look for each policy; a policy from outside gets one by its name, whatever else is drawn.

    Only where two outside policies would look alike does the later one, by name, move on.
    """
    chosen: dict[str, Look] = {}
    for name in in_order(policies):
        if name in KNOWN:
            chosen[name] = KNOWN[name]
            continue
        start = zlib.crc32(name.encode())
        turns = [REMAINING[(start + i) % len(REMAINING)] for i in range(len(REMAINING))]
        chosen[name] = next((look for look in turns if look not in chosen.values()), turns[0])
    return chosen

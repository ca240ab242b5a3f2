"""Recorded loads as CSV: who had which share free from which second on.

    seconds,node,share          seconds,link,share
    0,0,0.82                    0,0-1,0.40
    60,0,0.35                   12.5,0-1,0.91

One file has both kinds of lines: a number is a node, `i-j` the link between two. A line that begins with `seconds` is
a header. A value holds until the next. Nodes and links that are missing are free; nodes that the scenario does not
have are ignored.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from pathlib import Path

import numpy as np

from tramfl.notation import BadInput, Reals

Series = tuple[list[float], list[float]]
"""Seconds, in order, and the share from each on."""


class Trace:
    """Shares over time, of nodes and of links; it repeats after its last second."""

    def __init__(self, nodes: int, compute: dict[int, Series], links: dict[tuple[int, int], Series]) -> None:
        self._nodes, self._compute, self._links = nodes, compute, links
        self.seconds = max(times[-1] for times, _ in (*compute.values(), *links.values()))
        """How long it is."""

    def at(self, second: float) -> tuple[Reals, Reals]:
        """The shares of the nodes, and those of the links, at one moment."""
        moment = second % self.seconds if self.seconds > 0 else 0.0
        compute = np.ones(self._nodes)
        for node, series in self._compute.items():
            compute[node] = _value(series, moment)
        links = np.ones((self._nodes, self._nodes))
        for (one, other), series in self._links.items():
            links[one, other] = links[other, one] = _value(series, moment)
        return compute, links


def _value(series: Series, moment: float) -> float:
    times, shares = series
    return shares[max(0, bisect_right(times, moment) - 1)]


def read_trace(path: Path, nodes: int) -> Trace:
    """A trace for this number of nodes; BadInput names the line that is wrong."""
    compute: dict[int, Series] = {}
    links: dict[tuple[int, int], Series] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(enumerate(csv.reader(file), start=1))
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such trace.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}.") from None
    for number, fields in lines:
        if not fields or fields[0].strip().lower() == "seconds":
            continue
        second, place, share = _line(path, number, fields)
        one, dash, other = place.partition("-")
        ends = [_node(path, number, end) for end in ((one, other) if dash else (one,))]
        if max(ends) >= nodes:
            continue
        if not dash:
            times, shares = compute.setdefault(ends[0], ([], []))
        elif ends[0] == ends[1]:
            raise BadInput(f"{path}, line {number}: link {place} leads from a node to itself.")
        else:
            times, shares = links.setdefault((min(ends), max(ends)), ([], []))
        if times and second <= times[-1]:
            raise BadInput(f"{path}, line {number}: {place} has the second {second:g} after {times[-1]:g}; sort it.")
        times.append(second)
        shares.append(share)
    if not compute and not links:
        raise BadInput(
            f"{path} has no lines such as 0,1,0.5 (second, node, share) or 0,0-1,0.5 (second, link, share)."
        )
    return Trace(nodes, compute, links)


def _line(path: Path, number: int, fields: list[str]) -> tuple[float, str, float]:
    try:
        second, place, share = float(fields[0]), fields[1].strip(), float(fields[2])
    except (ValueError, IndexError):
        second = share = math.nan
        place = ""
    if not (len(fields) == 3 and 0 <= second < math.inf and 0 <= share <= 1):
        raise BadInput(
            f"{path}, line {number}: {','.join(fields)} is not second,node,share or second,link,share with a share"
            " from 0 to 1."
        )
    return second, place, share


def _node(path: Path, number: int, text: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"{path}, line {number}: {text!r} is no node; nodes are 0, 1, 2 and so on.")
    return int(text)

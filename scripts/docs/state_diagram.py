"""The round machine's state diagram as a picture, drawn while the site is built: no script, nothing from elsewhere.

docs/design.md has the diagram as Mermaid, which GitHub draws. Here each phase is a box in a fixed place. Steps
between neighbours are arrows, one for all steps from one phase to another. Steps back to Gathering, to the end, to a
box farther away and those that follow the record are lines of text in the box.
"""

from __future__ import annotations

import re
import textwrap
from html import escape

PLACES = {
    **{"Joining": (0, 0), "news": (0, 1), "StandingBy": (0, 2)},
    **{"Gathering": (1, 0), "Deciding": (1, 1), "Following": (1, 2)},
    **{"Training": (2, 0), "Sending": (2, 1), "Waiting": (2, 2)},
    **{"Storing": (3, 0), "Swapping": (3, 1), "Shipping": (3, 2)},
    **{"Leaving": (4, 0), "HandingOn": (4, 1), "Halted": (4, 2)},
    "Left": (5, 2),
}
"""Row and column of every phase."""
AS_TEXT = {"record", "Left", "Halted"}
"""Steps to these are written in the box."""
LEGEND = "◆: what the record says. A box with ◆ is a phase that the record can lead to."
WIDTH, GAP, LINE, HEAD, ROOM = 190, 100, 16, 30, 76
WORD = 14
"""The height of a line beside an arrow."""
_BLOCK = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
_STEP = re.compile(r"^ *(\w+) --> (\w+)(?:: (.*))?$", re.MULTILINE)

Steps = list[tuple[str, str, str]]


def drawn(markdown: str) -> str:
    """The page with every state diagram as a picture."""
    return _BLOCK.sub(lambda found: picture(found[1]), markdown)


def picture(mermaid: str) -> str:
    """The diagram as HTML with one SVG, in the colours of the page."""
    steps: Steps = [(a, b, why) for a, b, why in _STEP.findall(mermaid) if a != "record"]
    named = {b for a, b, _ in _STEP.findall(mermaid) if a == "record"}
    arrows = _arrows(steps)
    texts = {phase: _lines(phase, [s for s in steps if s[:2] not in arrows], phase in named) for phase in PLACES}
    tops = _tops(texts)
    boxes = {
        phase: (column * (WIDTH + GAP), tops[row], HEAD + LINE * (len(texts[phase]) - 1))
        for phase, (row, column) in PLACES.items()
    }
    width, height = 3 * WIDTH + 2 * GAP, tops[-1]
    parts = [_arrow(boxes, *ends, words, ends[::-1] in arrows) for ends, words in arrows.items()]
    parts += [_box(boxes[phase], texts[phase]) for phase in PLACES]
    parts += [_text(0, tops[5] + 14 + n * LINE, line, "start") for n, line in enumerate(textwrap.wrap(LEGEND, 52))]
    head = (
        f'<svg viewBox="-2 -2 {width + 4} {height + 4}" role="img" font-size="12.5" fill="currentColor"'
        ' stroke-width="1.3"><title>The phases of the round machine and the steps between them</title>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return f'<div class="state-diagram">{head}{"".join(parts)}</svg></div>'


def _arrows(steps: Steps) -> dict[tuple[str, str], list[str]]:
    """The ends of every arrow, and its causes."""
    found: dict[tuple[str, str], list[str]] = {}
    for source, target, why in steps:
        if target in AS_TEXT or source not in PLACES:
            continue
        rows, columns = (abs(a - b) for a, b in zip(PLACES[source], PLACES[target], strict=True))
        if max(rows, columns) == 1 and not (target == "Gathering" and PLACES[source][0] > 1):
            causes = found.setdefault((source, target), [])
            causes += [cause for cause in why.split(" or ") if cause not in causes]
    return found


def _lines(phase: str, steps: Steps, by_record: bool) -> list[str]:
    """What a box says: its name, and the steps that have no arrow, with those of the same cause together."""
    causes: dict[str, list[str]] = {}
    for source, target, why in steps:
        if source == phase and target in {*PLACES, "record"}:
            causes.setdefault(why, []).append("◆" if target == "record" else target)
    said = [f"{why.replace(' or ', ', ')} → {', '.join(targets)}" for why, targets in causes.items()]
    name = "any phase" if phase == "news" else phase
    return [name + (" ◆" if by_record else ""), *(line for one in said for line in textwrap.wrap(one, 25))]


def _tops(texts: dict[str, list[str]]) -> list[int]:
    """Where each row begins, and where the last one ends."""
    tops = [0]
    for row in range(6):
        most = max(len(texts[phase]) for phase, place in PLACES.items() if place[0] == row)
        tops.append(tops[-1] + HEAD + LINE * (most - 1) + (ROOM if row < 5 else 0))
    return tops


def _box(box: tuple[int, int, int], lines: list[str]) -> str:
    x, y, height = box
    shape = (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="6" stroke="currentColor"'
        ' fill="var(--md-default-bg-color, white)"/>'
    )
    middle = x + WIDTH / 2
    name = (
        f'<text x="{middle}" y="{y + 20}" text-anchor="middle" font-size="14.5" font-weight="700">{lines[0]}</text>'
    )
    return shape + name + "".join(_text(middle, y + 20 + LINE * n, line) for n, line in enumerate(lines[1:], 1))


def _arrow(
    boxes: dict[str, tuple[int, int, int]], source: str, target: str, words: list[str], both_ways: bool
) -> str:
    """A line with an arrow between neighbours, and its causes: above the line, or below one to the left."""
    (x0, y0, h0), (x1, y1, h1) = boxes[source], boxes[target]
    (row0, column0), (row1, column1) = PLACES[source], PLACES[target]
    a: float
    b: float
    if row0 == row1:
        ahead = column1 > column0
        a, b = (x0 + WIDTH, x1) if ahead else (x0, x1 + WIDTH)
        ya = yb = y0 + min(h0, h1) / 2 + (-5 if ahead else 5) * both_ways
        first = ya - 6 - (len(words) - 1) * WORD if ahead else ya + 16
    else:
        shift = (column1 - column0) * WIDTH / 3
        a, b = x0 + WIDTH / 2 + shift, x1 + WIDTH / 2 - shift
        ya, yb = (y0 + h0, y1) if row1 > row0 else (y0, y1 + h1)
        first = (ya + yb) / 2 + 4 - (len(words) - 1) * WORD / 2
    label = "".join(_text((a + b) / 2, first + WORD * n, word, halo=True) for n, word in enumerate(words))
    return f'<path d="M{a} {ya}L{b} {yb}" fill="none" stroke="currentColor" marker-end="url(#tip)"/>{label}'


def _text(x: float, y: float, text: str, anchor: str = "middle", halo: bool = False) -> str:
    behind = ' stroke="var(--md-default-bg-color, white)" stroke-width="5" paint-order="stroke"' if halo else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{behind}>{escape(text)}</text>'

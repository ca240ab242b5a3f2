"""The table and the diagram in docs/design.md are those of the machine."""

from __future__ import annotations

import re
from itertools import combinations
from typing import get_args

import pytest

from scripts.docs.state_diagram import PLACES, drawn
from scripts.phase_table import DOCUMENT, diagram, table, written
from tramfl.circulation import machine
from tramfl.circulation.events import AnyEvent
from tramfl.circulation.machine import Rule
from tramfl.circulation.phases import Deciding, Left, Phase, Waiting


def test_the_table_and_diagram_in_the_design_are_those_of_the_code() -> None:
    document = DOCUMENT.read_text()
    assert document == written(document), "out of date: run python scripts/phase_table.py"


def test_every_phase_and_every_event_is_in_the_table_and_every_phase_in_the_diagram() -> None:
    for phase in get_args(Phase):
        assert phase.__name__ in diagram(), phase
        assert phase is Left or f"| {phase.__name__} |" in table() or f" {phase.__name__}" in table(), phase
    for event in get_args(AnyEvent):
        assert event.__name__ in table(), event


def test_a_rule_that_changes_changes_the_table_and_the_diagram(monkeypatch: pytest.MonkeyPatch) -> None:
    before = table(), diagram()

    def decided(state: object, event: object) -> object:
        """Toss a coin."""

    monkeypatch.setattr(
        machine,
        "PHASES",
        {**machine.PHASES, (Deciding, machine.Decided): Rule(decided, (Waiting,))},  # type: ignore
    )
    monkeypatch.setattr("scripts.phase_table.PHASES", machine.PHASES)
    assert "| Deciding | Decided | toss a coin | Waiting |" in table()
    assert table() != before[0]
    assert diagram() != before[1]


def test_the_picture_on_the_site_has_every_phase_and_every_event_of_the_diagram() -> None:
    text = drawn(f"before\n\n{diagram()}\n\nafter")
    assert text.startswith("before\n\n<div")
    assert text.endswith("</div>\n\nafter")
    assert "mermaid" not in text
    assert set(PLACES) == {phase.__name__ for phase in get_args(Phase)} | {"news"}
    for step in re.findall(r"^ *\w+ --> \w+: (.*)$", diagram(), re.MULTILINE):
        assert all(event in text for event in step.split(" or ")), step


def test_in_the_picture_no_text_covers_another_and_no_arrow_crosses_a_box() -> None:
    picture = drawn(diagram())
    boxes = [
        tuple(map(float, box))
        for box in re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', picture)
    ]
    assert len(boxes) == len(PLACES)
    texts = re.findall(r'<text x="(\S+)" y="(\S+)" text-anchor="middle"([^>]*)>([^<]*)<', picture)
    words = [(float(x), float(y), 7.0 * len(word), word) for x, y, _, word in texts]
    for (x, y, wide, word), (x1, y1, wide1, other) in combinations(words, 2):
        assert abs(y - y1) >= 13 or abs(x - x1) >= (wide + wide1) / 2, f"{word} covers {other}"
    arrows = re.findall(r'd="M(\S+) (\S+)L(\S+) (\S+)"', picture)
    assert arrows
    for arrow in arrows:
        a, ya, b, yb = map(float, arrow)
        for part in (n / 50 for n in range(1, 50)):
            px, py = a + part * (b - a), ya + part * (yb - ya)
            assert not any(x < px < x + wide and y < py < y + high for x, y, wide, high in boxes), arrow

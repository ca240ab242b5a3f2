"""Write the table and the diagram of the round machine into docs/design.md, from the tables of the machine.

    python scripts/phase_table.py            rewrite what stands between the two markers
    python scripts/phase_table.py --check    only say whether the file is up to date

`tests/circulation/test_phase_table.py` fails where the file differs from the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import get_args

from tramfl.circulation.events import Event
from tramfl.circulation.machine import BACKUP, INCOMING, NEWS, ORDERS, PHASES, STOCK, Rule
from tramfl.circulation.phases import Phase

DOCUMENT = Path(__file__).parent.parent / "docs" / "design.md"
BEGIN = "<!-- begin: written by scripts/phase_table.py -->"
END = "<!-- end: written by scripts/phase_table.py -->"

_BESIDE: tuple[tuple[str, Mapping[type[Event], Rule]], ...] = (
    ("any, by news", NEWS),
    ("any, of a model on its way to disk", INCOMING),
    ("any, of the background copy", BACKUP),
    ("any, of an order", ORDERS),
)


def table() -> str:
    """Every rule of the machine, as a table of Markdown; rules with one handler share a line."""
    lines = ["| phase | on | then | next phase |", "|---|---|---|---|"]
    for phase in get_args(Phase):
        lines += _rows(phase.__name__, {event: rule for (p, event), rule in PHASES.items() if p is phase})
    for where, rules in _BESIDE:
        lines += _rows(where, rules)
    return "\n".join(lines)


def _rows(where: str, rules: Mapping[type[Event], Rule]) -> Iterator[str]:
    for rule in dict.fromkeys(rules.values()):
        events = ", ".join(event.__name__ for event, other in rules.items() if other == rule)
        yield f"| {where} | {events} | {_says(rule)} | {_next(rule)} |"


def _says(rule: Rule) -> str:
    """The first line of a handler's docstring: what it does."""
    text = (rule.handler.__doc__ or "").partition("\n")[0].rstrip(".")
    assert text, f"{rule.handler.__name__} does not say what it does"
    return text[0].lower() + text[1:]


def _next(rule: Rule) -> str:
    if set(STOCK) <= set(rule.leads_to):
        return ", ".join(("what the record says", *(p.__name__ for p in rule.leads_to if p not in STOCK)))
    return ", ".join(phase.__name__ for phase in rule.leads_to) or "the same"


def diagram() -> str:
    """The phases and the steps between them, as a state diagram of Mermaid."""
    lines = ["```mermaid", "stateDiagram-v2", "    state record <<choice>>", '    state "any phase" as news']
    for (phase, nexts), events in _edges().items():
        lines += (f"    {phase} --> {name}: {' or '.join(events)}" for name in nexts)
    lines += (f"    record --> {phase.__name__}" for phase in STOCK)
    lines += ["    Left --> [*]", "    note left of record: be what the record says", "```"]
    return "\n".join(lines)


def _edges() -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """Of each phase: the phases that follow, and the events that lead there."""
    edges: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (phase, event), rule in PHASES.items():
        if names := _targets(rule.leads_to):
            edges.setdefault((phase.__name__, names), []).append(event.__name__)
    for event, rule in NEWS.items():
        if names := _targets(rule.leads_to):
            edges.setdefault(("news", names), []).append(event.__name__)
    return edges


def _targets(leads_to: Iterable[type]) -> tuple[str, ...]:
    leads_to = tuple(leads_to)
    if not set(STOCK) <= set(leads_to):
        return tuple(phase.__name__ for phase in leads_to)
    return ("record", *(phase.__name__ for phase in leads_to if phase not in STOCK))


def written(document: str) -> str:
    """The document with the table and the diagram as they are now."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{DOCUMENT} has no line {BEGIN}"
    assert end, f"{DOCUMENT} has no line {END}"
    return f"{before}{BEGIN}\n\n{table()}\n\n{diagram()}\n\n{END}{after}"


def main() -> None:
    """Write the document, or check it."""
    document = DOCUMENT.read_text()
    if "--check" not in sys.argv:
        DOCUMENT.write_text(written(document))
    elif document != written(document):
        sys.exit("docs/design.md is out of date; run python scripts/phase_table.py.")


if __name__ == "__main__":
    main()

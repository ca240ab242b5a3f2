"""What a site logs is in one table, and nothing else is logged: read from the source, so that no call is missed."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tramfl
from scripts.docs import events
from tramfl.runtime.journal import Journal
from tramfl.runtime.log_events import EVENTS, EVERYWHERE, FIELDS, wrong_with

SOURCES = sorted((Path(tramfl.__file__).parent / "runtime").rglob("*.py"))
FORWARDS = "_warn"
"""Of the history of loads: logs an event that its caller names, with file and reason."""


def log_calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call that logs, with the event it names; an event that is not a literal gets the name ''."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        match node.args[0]:
            case ast.Constant(value=str(event)) if name in ("log", "_log", FORWARDS):
                yield event, node
            case _ if name == "_log":
                yield "", node


CALLS = [(file.name, event, call) for file in SOURCES for event, call in log_calls(file.read_text(encoding="utf-8"))]


def test_every_call_that_logs_names_a_listed_event_with_its_fields() -> None:
    wrong = []
    for file, event, call in CALLS:
        given = {keyword.arg for keyword in call.keywords}
        if event == "" and file == "history.py" and given == {"file", "reason"}:
            continue  # FORWARDS
        if getattr(call.func, "attr", "") == FORWARDS:
            given = {"file", "reason"}
        known = EVENTS.get(event)
        if known is None or not {*known.fields} - {*known.sometimes} <= given <= {*known.fields, *EVERYWHERE}:
            wrong.append(f"{file}, line {call.lineno}: {event} with {given}")
    assert wrong == []


def test_every_listed_event_and_field_is_logged_somewhere() -> None:
    assert {event for _, event, _ in CALLS} - {""} == set(EVENTS)
    assert {field for event in EVENTS.values() for field in event.fields} == set(FIELDS)


@pytest.mark.parametrize(
    ("event", "fields", "wrong"),
    [
        ("refusd", {}, "no log event 'refusd'"),
        ("peer-back", {}, "lacks peer"),
        ("peer-back", {"peer": "b", "who": "b"}, "no field who"),
        ("peer-back", {"peer": 2}, "peer is 2"),
        ("scored", {"test_accuracy": "much", "test_loss": None}, "test_accuracy is 'much'"),
    ],
)
def test_the_journal_takes_nothing_but_listed_events(event: str, fields: dict[str, object], wrong: str) -> None:
    out = io.BytesIO()
    journal = Journal("a", out)
    with pytest.raises(ValueError, match=wrong):
        journal(event, **fields)
    assert out.getvalue() == b""
    assert sum(journal.counts.values()) == 0


def test_a_line_has_the_fields_of_every_line_and_its_own_and_is_counted() -> None:
    out = io.BytesIO()
    journal = Journal("a", out)
    journal.at("run", 2, 7)
    journal("scored", round=6, test_accuracy=0.5, test_loss=1)
    line = json.loads(out.getvalue())
    assert line.keys() == {*EVERYWHERE, "test_accuracy", "test_loss"}
    assert (line["event"], line["run"], line["epoch"], line["round"]) == ("scored", "run", 2, 6)
    assert {name for name, count in journal.counts.items() if count} == {"scored"}
    assert set(journal.counts) == set(EVENTS)


def test_the_reference_lists_every_event_and_every_field() -> None:
    lines = events.reference().splitlines()
    for name, event in EVENTS.items():
        assert any(line.startswith(f"| `{name}` | {event.about} |") for line in lines)
    for name in (*FIELDS, *EVERYWHERE):
        assert any(line.startswith(f"| `{name}` |") for line in lines)


def test_a_number_without_a_fraction_is_a_number() -> None:
    fields = {"node": None, "samples": 0, "predicted_seconds": 1, "actual_seconds": 1.0, "reason": "So."}
    fields["overhead_seconds"] = 0
    assert wrong_with("committed", fields) is None


def test_a_refusal_is_logged_at_the_port_alone_and_so_counted_once() -> None:
    assert {file for file, event, _ in CALLS if event == "refused"} == {"serving.py", "handshakes.py"}

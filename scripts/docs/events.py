"""The reference of the log: every event that a site writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tramfl.runtime.log_events import EVENTS, EVERYWHERE, FIELDS, Field

_KINDS = {str: "text", int: "whole number", float: "number", list: "list", tuple: "list"}


def reference() -> str:
    """A page of Markdown."""
    events = ((f"`{name}`", event.about, _names(event.fields, event.sometimes)) for name, event in EVENTS.items())
    parts = [
        "# Log events",
        "A site logs one JSON line an event to standard error. A field has the same name and meaning in all events."
        ' `tramfl node --metrics PORT` counts them: `tramfl_events_total{event="..."}`.',
        "## Events",
        _table(("event", "when", "fields"), events),
        "## Fields of every line",
        _table(("field", "type", "meaning"), _rows(EVERYWHERE)),
        "## Other fields",
        _table(("field", "type", "meaning"), _rows(FIELDS)),
    ]
    return "\n\n".join(parts) + "\n"


def _names(fields: Iterable[str], sometimes: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" + (" (where known)" if name in sometimes else "") for name in fields)


def _rows(fields: Mapping[str, Field]) -> Iterable[tuple[str, str, str]]:
    return ((f"`{name}`", _kind(field), field.about) for name, field in fields.items())


def _kind(field: Field) -> str:
    for kind, word in _KINDS.items():
        if field.kind == kind:
            return word
        if field.kind == kind | None:
            return f"{word} or null"
    raise LookupError(f"no word for {field.kind}")


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

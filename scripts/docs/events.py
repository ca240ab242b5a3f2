"""The reference of the log: every event that a site writes."""

from __future__ import annotations


def reference() -> str:
    """A page of Markdown."""
    return "# Log events\n\nA site logs one JSON line an event to standard error.\n"

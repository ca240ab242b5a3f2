"""The reference of every settings file, written from the structs that read them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from tramfl.config import Scenario
from tramfl.explanations import explanations, structs_in
from tramfl.runtime.settings import FederationFile, SiteFile
from tramfl.simulation.planning import Plan

FILES: tuple[tuple[str, str, type[Struct]], ...] = (
    ("Scenario files", "What a run is: `tramfl run FILE.toml`, and `[run]` in `federation.toml`.", Scenario),
    ("federation.toml", "What all sites of a federation share; `tramfl init` writes it.", FederationFile),
    ("site.toml", "What one site is; `tramfl init` writes one for each site.", SiteFile),
    ("Plan files", "The state that `tramfl plan FILE.toml` decides from.", Plan),
)
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def reference() -> str:
    """A page of Markdown: every key of every file, its type, default and meaning."""
    lines = [
        "# Settings",
        "",
        "Written from the code when this site is built. An unknown key or a value out of range is an error that names"
        " the key. `--set KEY=VALUE` changes one key of a scenario for one run.",
        "",
    ]
    for title, purpose, kind in FILES:
        lines += [f"## {title}", "", purpose, ""]
        lines += _table(kind, "", title)
    return "\n".join(lines)


def undocumented(kind: type[Struct]) -> list[str]:
    """The keys of a file, and of the tables in it, that lack a sentence."""
    explained = explanations(kind)
    found = [f"{kind.__name__}.{f.name}" for f in msgspec.structs.fields(kind) if f.name not in explained]
    for field in msgspec.structs.fields(kind):
        for inner in structs_in(field.type):
            found += undocumented(inner)
    return found


def _table(kind: type[Struct], prefix: str, title: str) -> list[str]:
    explained, hints = explanations(kind), get_type_hints(kind, include_extras=True)
    rows, tables = [], []
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.encode_name}"
        if inner := next(structs_in(field.type), None):
            heading = f"[[{name}]]" if get_origin(field.type) is tuple else f"[{name}]"
            tables.append((heading, name, inner, explained[field.name]))
            continue
        rows.append(f"| `{name}` | {_cell(explained[field.name])} | {_type(hints[field.name])} | {_default(field)} |")
    lines = ["| key | meaning | type | default |", "|---|---|---|---|", *rows, ""]
    for heading, name, inner, meaning in tables:
        lines += [f"### `{heading}` in {title}", "", meaning, ""]
        if inner is Scenario:
            lines += ["The keys are those of [scenario files](#scenario-files).", ""]
        else:
            lines += _table(inner, f"{name}.", title)
    return lines


def _type(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *notes = get_args(hint)
        limits = ", ".join(text for note in notes if isinstance(note, Meta) for text in _limits(note))
        return f"{_type(inner)} {limits}".strip()
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(hint) if part is not type(None))
    if origin is tuple:
        parts = get_args(hint)
        count = "" if parts[-1] is Ellipsis else f" {len(parts)}"
        return f"list of{count}: {_type(parts[0])}"
    if origin is dict:
        return f"table of: {_type(get_args(hint)[1])}"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _limits(note: Meta) -> Iterator[str]:
    for sign, limit in ((">", note.gt), ("≥", note.ge), ("<", note.lt), ("≤", note.le)):
        if limit is not None and abs(limit) < 1e9:
            yield f"{sign} {limit:g}"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is None or value == () or value is msgspec.NODEFAULT:
        return ""
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

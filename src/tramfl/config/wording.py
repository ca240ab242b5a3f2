"""msgspec's messages about a wrong table, as sentences that name the key and say what would be right."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

_WORDS = {
    "object": "a table",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""What a user of TOML calls the types that msgspec names."""


def explained(message: str, kind: type[Struct]) -> str:
    """msgspec's message as a sentence that leads with the key and says what would be right there."""
    # A check of our own names the key inside its table, and msgspec adds where the table is.
    message = re.sub(r" - at `\$\.(.*?)` - at `\$\.?(.*?)`$", r" - at `$.\2.\1`", message)
    match = re.fullmatch(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", message, flags=re.DOTALL)
    assert match is not None
    what, path = match["what"], match["path"] or ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        name = unknown[1]
        known = _keys_at(kind, path)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"the keys here are {', '.join(known)}."
        return f"unknown key `{f'{path}.{name}' if path else name}`; {hint}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"key `{f'{path}.{missing[1]}' if path else missing[1]}` is missing."
    if invalid := re.fullmatch(r"Invalid enum value (.*)", what):
        parts = list(parts_of(type_at(kind, path)))
        choices = ", ".join(str(c) for t in parts if get_origin(t) is Literal for c in get_args(t))
        others = "".join(f", or give {p.description}" for p in parts if isinstance(p, Meta) and p.description)
        return f"key `{path}` is {invalid[1]}; choose one of {choices}{others}."
    return f"key `{path}`: {_in_words(what)}." if path else f"{_in_words(what)}."


def _in_words(what: str) -> str:
    if not what.startswith("Expected "):
        return what
    expected, got, found = re.sub(r"`([a-z |]+)`", _named, what).partition(", got ")
    expected = expected.replace("text", "text in quotes").replace(f"number <= {sys.float_info.max}", "finite number")
    return f"{expected[0].lower()}{expected[1:]}{got}{found}"


def _named(types: re.Match[str]) -> str:
    # TOML has no null: an optional key is left out, never set to nothing.
    return " or ".join(_WORDS.get(name, name) for name in types[1].split(" | ") if name != "null")


def _keys_at(kind: type[Struct], path: str) -> list[str]:
    return list(_table(type_at(kind, path)).__struct_encode_fields__)


def type_at(kind: type[Struct], path: str) -> Any:
    """The type of the key that msgspec's `path` leads to, such as `nodes[0].held`."""
    found: Any = kind
    for part in filter(None, re.sub(r"\[.*?\]", "", path).split(".")):
        found = {f.encode_name: f.type for f in msgspec.structs.fields(_table(found))}[part]
    return found


def _table(hint: Any) -> type[Struct]:
    return next(t for t in parts_of(hint) if isinstance(t, type) and issubclass(t, Struct))


def parts_of(hint: Any) -> Iterator[Any]:
    """A type and all that it is made of, such as the members of a union."""
    yield hint
    for part in get_args(hint):
        yield from parts_of(part)

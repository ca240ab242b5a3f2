"""What each key of a settings file means: the text under its field, read from the source of its struct.

The reference of settings and the comments in new files come from here, so that a key is explained in one place.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import Struct


def explanations(kind: type[Struct]) -> dict[str, str]:
    """The text under each field of a struct; that of a table is the table's own."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[statement.target.id] = " ".join(text.split())
    for field in msgspec.structs.fields(kind):
        for inner in structs_in(field.type):
            found.setdefault(field.name, " ".join((inner.__doc__ or "").split()))
    return found


def explained_keys(kind: type[Struct], prefix: str = "") -> dict[str, str]:
    """The same for a whole file: `table.key` for the keys of its tables."""
    found = {f"{prefix}{name}": text for name, text in explanations(kind).items()}
    for field in msgspec.structs.fields(kind):
        for inner in structs_in(field.type):
            found |= explained_keys(inner, f"{prefix}{field.name}.")
    return found


def structs_in(hint: Any) -> Iterator[type[Struct]]:
    """The structs that a type is made of."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for part in get_args(hint):
        yield from structs_in(part)

"""The number of the format of a run's folder: other versions' files are read, or refused in one sentence.

config.toml has it as `resolved.schema`, summary.json as `schema`, rounds.jsonl as `schema` in the row of round 1. The
other rows have none, so they stay byte for byte what they were before there was a number. A file without a number is
of schema 1.

The number grows when an older version would misread a file. New keys that an older version may ignore do not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tramfl.config import read_toml
from tramfl.notation import BadInput
from tramfl.version import __version__

SCHEMA = 1
"""What this version writes, and the newest that it reads."""


class _Numbered(Struct):
    schema: int = 1


def read_config(path: Path) -> dict[str, Any]:
    """The table of a run's config.toml, or of a scenario; one of a newer schema is refused."""
    table = read_toml(path)
    resolved = table.get("resolved", {})
    if isinstance(resolved, dict):
        versions = resolved.get("versions", {})
        author = versions.get("tramfl") if isinstance(versions, dict) else None
        check_schema(resolved.get("schema", 1), path, author if isinstance(author, str) else None)
    return table


def check_json(content: bytes, path: Path) -> None:
    """Refuse a summary, or a first row, of a newer schema; what is no JSON object at all is left to its reader."""
    try:
        number = msgspec.json.decode(content, type=_Numbered).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    check_schema(number, path)


def check_schema(number: object, path: Path, author: str | None = None) -> None:
    """BadInput unless this version reads files of schema `number`; `author` is the version that wrote the file."""
    if not isinstance(number, int) or number < 1:
        raise BadInput(f"{path}: schema is {number!r}; it must be a whole number from 1.")
    if number > SCHEMA:
        which = f"tramfl {author}, which wrote it," if author else "the version of tramfl that wrote it"
        raise BadInput(
            f"{path} is of schema {number}, and tramfl {__version__} reads schemas up to {SCHEMA};"
            f" use {which} or a newer one."
        )

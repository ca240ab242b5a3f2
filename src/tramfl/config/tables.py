"""TOML in, settings out and back; single keys changed, as `--set` and Python's `settings` do it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import tomli_w
from msgspec import Struct

from tramfl.config.scenario import Scenario
from tramfl.config.wording import explained, parts_of, type_at
from tramfl.notation import BadInput

S = TypeVar("S", bound=Struct)


def read_toml(path: Path) -> dict[str, Any]:
    """The table a TOML file holds, or BadInput that names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path} is not valid TOML: {error}.") from None
    except RecursionError:
        raise BadInput(f"{path} is not valid TOML: its tables or lists are nested too deeply.") from None


def settings_from(table: dict[str, Any], kind: type[S], source: str) -> S:
    """`table` as settings of `kind`; an error names `source`, the key and what would be right."""
    try:
        return msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        raise BadInput(f"{source}: {explained(str(error), kind)}") from None


def override(table: dict[str, Any], assignment: str) -> dict[str, Any]:
    """A scenario's table with one `key=value` of `--set` applied; the value is read as TOML, else as text."""
    key, equals, text = assignment.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise BadInput(f"--set {assignment}: write it as key=value, for example --set training.batch_size=64.")
    value = _toml_value(text)
    if not isinstance(value, str) and _wants_text(path):
        value = text.strip()  # partition.layout=5 names a layout
    return with_value(table, path, value, f"--set {assignment}")


def with_value(table: dict[str, Any], path: Sequence[str], value: Any, source: str) -> dict[str, Any]:
    """`table` with the value at a path of keys changed; tables on the way are made where they are missing."""
    changed = dict(table)
    place = changed
    *parents, last = path
    for parent in parents:
        inner = place.get(parent, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{source}: `{parent}` is a value, not a table.")
        place[parent] = place = dict(inner)
    place[last] = value
    return changed


def by_key(changes: Mapping[str, Any], source: str = "settings") -> Iterator[tuple[str, Any]]:
    """Changes of a scenario by their dotted keys; a table for a section, such as `budget`, changes only its keys."""
    if not isinstance(changes, Mapping):
        raise BadInput(f"{source}: give keys and their values, not a {type(changes).__name__}.")
    for key, value in changes.items():
        if isinstance(value, Mapping) and _is_section(str(key)):
            yield from by_key({f"{key}.{inner}": found for inner, found in value.items()}, source)
        else:
            yield str(key), value


def _is_section(key: str) -> bool:
    """Whether a key of a scenario has nothing but a table of other keys."""
    try:
        found = type_at(Scenario, key)
    except (KeyError, StopIteration):
        return False  # there is no such key; the reader of the table reports it
    kinds = [kind for kind in get_args(found) or (found,) if kind is not type(None)]
    return len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Struct)


def _toml_value(text: str) -> Any:
    try:
        read = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["v"] if read.keys() == {"v"} else text  # a second line is no second assignment


def _wants_text(path: Sequence[str]) -> bool:
    try:
        return str in parts_of(type_at(Scenario, ".".join(path)))
    except (KeyError, StopIteration):
        return False  # there is no such key; the reader of the table reports it


def as_toml(settings: Struct) -> str:
    """Settings as TOML that reads back to the same settings; unset keys are left out."""
    return tomli_w.dumps(as_table(settings))


def as_table(settings: Struct) -> dict[str, Any]:
    """Settings as plain values, without the keys that are None (TOML has no null)."""
    return _without_none(msgspec.to_builtins(settings))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}

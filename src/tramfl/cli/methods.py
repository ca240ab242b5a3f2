"""`tramfl methods`: what can be played with `run --method` and raced with `compare --methods`."""

from __future__ import annotations

import json

from msgspec import to_builtins
from rich.console import Console
from rich.table import Table

from tramfl.cli.options import Format, FormatOption
from tramfl.methods import Method, method_named, method_names


def methods(format: FormatOption = Format.text) -> None:
    """List the methods: the policies, each a method of its own name, and named sets of settings."""
    found = [method_named(name) for name in method_names()]
    if format is Format.json:
        print(json.dumps([to_builtins(method) for method in found], indent=2))
        return
    table = Table("method", "what it does", "sets")
    for method in found:
        table.add_row(method.name, method.about, _shown(method))
    Console(markup=False).print(table)


def _shown(method: Method) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in method.settings.items()]
    for dataset, keys in method.by_dataset.items():
        lines += [f"on {dataset}:", *(f"  {key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines)

"""The reference of the command line, written from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from tramfl.cli import app

_VALUES = {
    "<int range>": "NUMBER",
    "<int>": "NUMBER",
    "<float>": "NUMBER",
    "<str>": "TEXT",
    "<path>": "PATH",
    "<list[str]>": "TEXT",
}
"""What a reader calls the types that the help prints."""


def reference() -> str:
    """A page of Markdown: every command with its arguments and options."""
    program: Any = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "Written from the commands when this site is built; `tramfl COMMAND --help` prints the same.",
        "",
        "Exit codes: 0 done; 1 the run failed or was interrupted; 2 bad usage or input, with one sentence that says"
        " what is wrong.",
        "",
    ]
    for path, command in _commands(program, ("tramfl",)):
        lines += _described(path, command)
    return "\n".join(lines)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        inner = (*path, name)
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield inner, command
            yield from _commands(command, inner)
        else:
            yield inner, command


def _described(path: tuple[str, ...], command: Any) -> list[str]:
    context = typer.Context(command, info_name=" ".join(path))
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    lines = [f"## {' '.join(path)}", "", _plain(command.help or ""), "", "```text", usage, "```", ""]
    records = [
        (p.metavar or record[0] if p.param_type_name == "argument" else record[0], record[1])
        for p in command.params
        if (record := p.get_help_record(context)) and p.name != "help"
    ]
    if records:
        lines += ["| argument or option | meaning | values |", "|---|---|---|"]
        lines += [_row(*record) for record in records]
        lines.append("")
    return lines


def _row(names: str, text: str) -> str:
    """What the help prints of one parameter, as a row; the help puts default and limits in brackets at the end."""
    for printed, word in _VALUES.items():
        names = names.replace(printed, word)
    names = re.sub(r"<(?:list\[)?(.*?)\]?>", r"\1", names)
    meaning, _, values = text.partition("  [")
    shown = ", ".join(
        part.strip().replace("x", "", 1) if part.startswith("x") else part.strip() for part in _parts(values)
    )
    return f"| `{names}` | {_escape(_plain(meaning))} | {_escape(shown)} |"


def _parts(values: str) -> list[str]:
    """Default and limits, without the x that stands for the value in `x>=1`."""
    return [part.strip().removeprefix("x") for part in values.removesuffix("]").split("; ")] if values else []


def _plain(text: str) -> str:
    """Help without the terminal's markup, as paragraphs."""
    return re.sub(r"\[/?[a-z]+\]", "", inspect.cleandoc(text))


def _escape(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")

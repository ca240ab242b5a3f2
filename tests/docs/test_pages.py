"""What the pages show exists: every command with its options, and Python that compiles; the engineers' code runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from tramfl.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *kinds: str) -> list[str]:
    """The fenced blocks of a page that are of these kinds."""
    return [body for _, kind, body in BLOCK.findall(page.read_text(encoding="utf-8")) if kind in kinds]


def unknown(line: str) -> str | None:
    """The first word of a tramfl command that is no command or no option of it."""
    command: Any = typer.main.get_command(app)
    for word in shlex.split(line, comments=True)[1:]:
        if word in (";", "&&", "|", ">", "2>", "&"):
            return None
        name = word.partition("=")[0].rstrip(";")
        if hasattr(command, "commands") and name in command.commands:
            command = command.commands[name]
        elif name.startswith("-"):
            known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
            if name not in known:
                return name
        elif command.name == "tramfl":
            return name
    return None


def commands_in(page: Path) -> list[str]:
    """Every tramfl command that a page shows, continued lines joined."""
    text = "\n".join(blocks(page, "sh", "console")).replace("\\\n", " ")
    lines = [re.sub(r"^(\$ |.*\bdo )", "", line.strip()) for line in text.splitlines()]
    return [line for line in lines if line.startswith("tramfl ") and not re.match(r"tramfl \d", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    assert [(line, word) for line in commands_in(page) if (word := unknown(line))] == []


def test_a_command_and_an_option_that_do_not_exist_are_found() -> None:
    assert unknown("tramfl rum digits-3") == "rum"
    assert unknown("tramfl run digits-3 --polcy random  # a comment") == "--polcy"
    assert unknown("tramfl cert renew DIR --all") is None
    assert len(commands_in(ROOT / "README.md")) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_compiles(page: Path) -> None:
    for body in blocks(page, "python"):
        compile(body, str(page), "exec")


def test_the_code_for_engineers_runs_and_decides(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for body in blocks(ROOT / "docs" / "how-to" / "engineers.md", "python"):
        exec(body, names)
    assert names["answer"].feasible.all()
    assert names["decision"].node in (0, 1)
    assert names["decision"].reason in capsys.readouterr().out

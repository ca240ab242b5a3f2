"""The tutorial can be followed: its commands and code run in its order, and the commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from tests.conftest import Cli

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def masked(text: str) -> str:
    """The text without its figures, however wide: the last digits differ from one kind of processor to another."""
    return re.sub(r"[ \t]+$", "", re.sub(r" *\d[\d.,]*", " #", text), flags=re.MULTILINE).strip()


def test_every_command_and_every_piece_of_code_in_the_tutorial_does_what_it_says(tmp_path: Path, cli: Cli) -> None:
    printed, names, kinds = "", dict[str, Any](), []
    for kind, body in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        kinds.append(kind)
        if kind == "sh":
            printed = "".join(run_line(cli, tmp_path, line) for line in body.splitlines())
        elif kind == "text":
            assert masked(printed) == masked(body)
        elif kind == "python":
            exec(compile(body, str(TUTORIAL), "exec"), names)
    assert names["result"].seconds_to(0.9) is not None
    assert (kinds.count("sh"), kinds.count("text"), kinds.count("python")) == (3, 3, 2), "blocks were lost"


def run_line(cli: Cli, folder: Path, line: str) -> str:
    """What a line of shell prints; `> FILE` is the only thing of the shell's that the tutorial uses."""
    command, _, target = line.partition(" > ")
    program, *arguments = shlex.split(command)
    assert program == "tramfl"
    done = cli(*arguments)
    assert done.code == 0, done
    if target:
        (folder / target).write_text(done.out)
        return ""
    return done.out

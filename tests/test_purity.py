"""No clock, no chance, no file and no socket in the pure packages and modules: time and generators are arguments.

Read from the source, so that a call which no test reaches is seen too. A function may say in an annotation
that it takes a Generator; it may not make one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tramfl

PACKAGE = Path(tramfl.__file__).parent
PURE = [*(PACKAGE / part for part in ("scheduling", "circulation", "exchange")), PACKAGE / "record" / "milestones.py"]
SOURCES = sorted(file for part in PURE for file in (part.rglob("*.py") if part.is_dir() else [part]))
FINDS_POLICIES_BY_NAME = "policy.py"
"""The one module that may import by name: a policy may live in any installed package."""

CLOCKS = {"time", "datetime", "calendar", "sched", "timeit", "zoneinfo"}
CHANCE = {"random", "secrets", "uuid"}
FILES = {"os", "io", "pathlib", "tempfile", "shutil", "glob", "fileinput", "mmap", "sqlite3", "shelve", "pickle"}
SOCKETS = {"socket", "socketserver", "ssl", "select", "selectors", "http", "urllib", "grpc", "httpx", "requests"}
OTHERS = {"asyncio", "threading", "multiprocessing", "concurrent", "subprocess", "signal", "importlib", "ctypes"}
BANNED_MODULES = CLOCKS | CHANCE | FILES | SOCKETS | OTHERS
BANNED_CALLS = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint"}
NUMPY_FILES = {"load", "save", "savez", "loadtxt", "savetxt", "genfromtxt", "fromfile", "memmap"}


def offences(source: str) -> list[str]:
    """Every place where `source` reaches for a clock, chance, a file or a socket."""
    tree = ast.parse(source)
    in_annotations = {id(node) for annotation in _annotations(tree) for node in ast.walk(annotation)}
    return [what for node in ast.walk(tree) if id(node) not in in_annotations for what in _reaches_for(node)]


def _reaches_for(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (n.name for n in names if _banned(n.name))
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for name in (f"{module}.{n.name}" for n in names):
                if _banned(name) and name != "numpy.random.Generator":
                    yield name
        case ast.Attribute(value=ast.Attribute(attr="random"), attr=name):
            yield f"numpy.random.{name}"
        case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr=name) if name in NUMPY_FILES:
            yield f"numpy.{name}"
        case ast.Attribute(attr="tofile" | "read_text" | "read_bytes" | "write_text" | "write_bytes" as name):
            yield name
        case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
            yield name


def _banned(name: str) -> bool:
    return name.partition(".")[0] in BANNED_MODULES or f"{name}.".startswith("numpy.random.")


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.AST() as found) | ast.AnnAssign(annotation=ast.AST() as found):
                yield found
            case ast.FunctionDef(returns=ast.AST() as found) | ast.AsyncFunctionDef(returns=ast.AST() as found):
                yield found


@pytest.mark.parametrize("source", SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_core_reads_no_clock_draws_no_number_and_opens_nothing(source: Path) -> None:
    found = offences(source.read_text(encoding="utf-8"))
    if source.name == FINDS_POLICIES_BY_NAME:
        found = [what for what in found if not what.startswith("importlib.")]
    assert found == []


def test_both_packages_were_looked_at() -> None:
    assert {"load_aware.py", "water_level.py", "machine.py", "recovery.py"} <= {file.name for file in SOURCES}


@pytest.mark.parametrize(
    ("snippet", "offence"),
    [
        ("import time", "time"),
        ("import numpy as np, os.path as p", "os.path"),
        ("from datetime import datetime", "datetime.datetime"),
        ("def f():\n    from random import random", "random.random"),
        ("from concurrent.futures import ThreadPoolExecutor", "concurrent.futures.ThreadPoolExecutor"),
        ("import socket", "socket"),
        ("from pathlib import Path", "pathlib.Path"),
        ("from importlib import import_module", "importlib.import_module"),
        ("import numpy.random", "numpy.random"),
        ("from numpy import random", "numpy.random"),
        ("from numpy.random import default_rng", "numpy.random.default_rng"),
        ("rng = np.random.default_rng(0)", "numpy.random.default_rng"),
        ("x: float = numpy.random.uniform()", "numpy.random.uniform"),
        ("draw = np.random.normal", "numpy.random.normal"),
        ("def f(rng=np.random.default_rng()): ...", "numpy.random.default_rng"),
        ("with open('x') as f: ...", "open"),
        ("np.load('x.npy')", "numpy.load"),
        ("a.tofile('x')", "tofile"),
        ("here.write_text('x')", "write_text"),
        ("__import__('time').time()", "__import__"),
    ],
)
def test_the_checker_sees_an_offence(snippet: str, offence: str) -> None:
    assert offences(snippet) == [offence]


@pytest.mark.parametrize(
    "snippet",
    [
        "def f(rng: np.random.Generator) -> np.random.Generator: return rng",
        "from numpy.random import Generator",
        "x: np.random.Generator | None = None",
        "rng.uniform(0.0, 0.1)",
        "from tramfl.scheduling.timing import compute_seconds",
        "from . import events",
        "state.time",
        "reopen()",
    ],
)
def test_the_checker_lets_what_arrives_as_an_argument_pass(snippet: str) -> None:
    assert offences(snippet) == []

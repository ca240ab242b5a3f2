"""The reference of the Python API: one page a package, filled in by mkdocstrings from the source."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGES = ("scheduling", "circulation", "simulation", "learning", "record", "reporting", "runtime")
ALONE = ("config", "notation", "draws", "testing")


def pages(source: Path) -> dict[str, str]:
    """Each page's place in the site, and its Markdown."""
    found = {
        f"reference/api/{name}.md": _page(f"tramfl.{name}", sorted((source / name).rglob("*.py")), source)
        for name in PACKAGES
    }
    modules = [source / f"{name}.py" for name in ALONE]
    found["reference/api/foundations.md"] = _page("Settings, symbols and draws", modules, source)
    return found


def _page(title: str, files: list[Path], source: Path) -> str:
    lines = [f"# {title}", ""]
    for path in files:
        parts = path.relative_to(source.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if parts[-1].endswith("_pb2"):
            continue
        if parts[-1] == "__init__":
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if text and module != title:
                lines += [f"## {module}", "", text, ""]
            elif text:
                lines += [text, ""]
        else:
            lines += [f"::: {module}", ""]
    return "\n".join(lines)

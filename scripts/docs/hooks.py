"""What MkDocs calls while it builds the site: adds the pages written from the code, and those of the root."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from scripts.docs import commands, events, python_api, races, settings, state_diagram

ROOT = Path(__file__).parents[2]
PROJECT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Pages that forges expect at the root of a repository."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/cli.md": commands.reference(),
        "reference/settings.md": settings.reference(),
        "reference/events.md": events.reference(),
        "reference/races.md": races.reference(),
        **python_api.pages(ROOT / "src" / "tramfl"),
        **{f"project/{name.lower()}": _from_root(name) for name in PROJECT_PAGES},
    }
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Draw state diagrams, and let links to files that are in the repository but not on the site be plain text."""
    return re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+(?:examples|benchmarks|scripts|src|tests)/[^)]*\)",
        r"\1",
        state_diagram.drawn(markdown),
    )


def _from_root(name: str) -> str:
    """A page of the root, with its links as seen from project/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](../", text)
    for page in PROJECT_PAGES:
        text = text.replace(f"]({page}", f"]({page.lower()}")
    return re.sub(r"\[([^\]]+)\]\((?:README\.md|LICENSE|examples/[^)]*|\.github/[^)]*)\)", r"\1", text)

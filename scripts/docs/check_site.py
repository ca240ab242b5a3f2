"""Check the built site: every link and anchor leads somewhere, and nothing is fetched from elsewhere.

`python -m scripts.docs.check_site site` prints what is wrong, a line each, and exits with 1 if anything is.
MkDocs checks links between pages of Markdown; this also sees what templates, hooks and mkdocstrings wrote, and the
links of the pages at the repository's root.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""Elements that make a browser fetch something when the page opens."""
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")


class Page(HTMLParser):
    """The links, anchors and fetched parts of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element refers to."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (name := LOADED.get(tag)) and name in given and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given[name])


def wrong_in_site(site: Path) -> Iterator[str]:
    """A line for each dead link and each thing fetched from elsewhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if link in page.loads:
                    yield f"{where}: {link} is fetched from elsewhere"
                continue
            if where.name == "404.html":
                continue  # its links are from the root of a server
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{where}: {link} leads to no file"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: {link} leads to no anchor"
    for path in site.rglob("*.css"):
        if found := re.search(r"url\(['\"]?(https?:)?//[^)]*\)|@import", path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {found[0]} is fetched from elsewhere"


def wrong_at_root(root: Path = ROOT) -> Iterator[str]:
    """A line for each link of a page at the repository's root that leads to no file there."""
    for name in ROOT_PAGES:
        for link in MARKDOWN_LINK.findall((root / name).read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if not parts.scheme and not (root / unquote(parts.path)).exists():
                yield f"{name}: {link} leads to no file"


def main() -> int:
    """Print what is wrong."""
    site = Path(sys.argv[1])
    found = [*wrong_in_site(site), *wrong_at_root()]
    for line in found:
        print(line)
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages, {len(found)} broken links or foreign parts")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

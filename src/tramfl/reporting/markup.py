"""HTML that escapes by default: only what `element` made goes through unescaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

EMPTY_ELEMENTS = frozenset({"br", "hr", "img", "input", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str | Html | Iterable[str | Html], **attributes: object) -> Html:
    """`<name attributes>children</name>`; text is escaped, `class_` is class, `data_run` is data-run."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' if value is not True else f" {key}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in EMPTY_ELEMENTS:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{together(children)}</{name}>")


def together(children: Iterable[str | Html | Iterable[str | Html]]) -> Html:
    """Children one after the other, text among them escaped."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(escape(child))
        else:
            parts.append(together(child))
    return Html("".join(parts))


def table(
    caption: str | Html, headings: Sequence[str | Html], rows: Iterable[Sequence[str | Html]], **attributes: object
) -> Html:
    """A table that a screen reader can follow: caption, column headings, a heading for each row, able to scroll."""
    head = element("tr", [element("th", heading, scope="col") for heading in headings])
    body = [
        element("tr", element("th", row[0], scope="row"), [c if _is_cell(c) else element("td", c) for c in row[1:]])
        for row in rows
    ]
    whole = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", head),
        element("tbody", body),
        **attributes,
    )
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=_plain(caption))


def _is_cell(child: str | Html) -> bool:
    return isinstance(child, Html) and child.startswith("<td")


def _plain(caption: str | Html) -> str:
    return "Table" if isinstance(caption, Html) else caption.split(":")[0].split(";")[0]

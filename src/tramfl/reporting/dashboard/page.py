"""The one page of the live view, put together from its parts, and what it is allowed to do."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from string import Template

import msgspec

from tramfl.reporting.colours import COMPUTE, LOST, OVERHEAD, TRANSFER, WAITING

SCRIPTS = ("run.js", "scene.js", "map.js", "charts.js", "log.js", "player.js", "watch.js")
"""In this order: each uses only those before it."""


@cache
def page() -> tuple[bytes, str]:
    """The page, and its content security policy: its own script and style, data from where it came, nothing else."""
    script = f'"use strict";\n(() => {{\nconst PARTS = {_parts()};\n' + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"
    style = _asset("page.css")
    html = Template(_asset("page.html")).substitute(style=style, script=script)
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _parts() -> str:
    """Where time goes, in the colours of reports and figures."""
    parts = {"training": COMPUTE, "sending": TRANSFER, "waiting": WAITING, "lost": LOST, "overhead": OVERHEAD}
    return msgspec.json.encode(parts).decode()


def _digest(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("tramfl.reporting.dashboard") / "assets" / name).read_text(encoding="utf-8")

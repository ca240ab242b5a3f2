"""Stops a site at a chosen place: see onsite/sitecustomize.py, which runs there."""

from __future__ import annotations

import json
import os
from pathlib import Path

from msgspec import Struct, convert

ONSITE = Path(__file__).parent / "onsite"


class Caught(Struct, frozen=True):
    """Who is stopped where."""

    site: str
    where: str
    round: int
    sender: str | None = None
    workshop: int | None = None


class Traps:
    """At most one trap at a time, for all sites of a federation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """What a site's process needs to fall into them."""
        return {"PYTHONPATH": str(ONSITE), "TRAMFL_CHAOS": str(self._folder)}

    def lay(self, where: str, from_round: int = 0, site: str | None = None, *, deadlines: bool = False) -> None:
        """Stop the first site, or this one, that comes to a place in this round or a later one.

        With `deadlines`, the sites give the round up when it takes too long; otherwise the trap holds until cleared.
        """
        self.clear()
        new = self._folder / "trap.new"
        new.write_text(json.dumps({"where": where, "round": from_round, "site": site, "deadlines": deadlines}))
        os.rename(new, self._folder / "trap")

    def caught(self) -> Caught | None:
        """Who is stopped, if anybody is."""
        try:
            return convert(json.loads((self._folder / "caught").read_bytes()), Caught)
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """Let go the site that is caught, and lay no other trap."""
        for name in ("trap", "caught", "taken"):
            (self._folder / name).unlink(missing_ok=True)

"""`tramfl compare`: several policies on the same scenarios and seeds, in parallel."""

from __future__ import annotations
def reproduce() -> None:
    """To come."""

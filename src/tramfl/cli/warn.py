"""Warnings of ours as one line each, in this process or a worker."""

from __future__ import annotations

import sys
import warnings
from typing import TextIO


def warn_in_one_line() -> None:
    """Show our own warnings as one line, and nobody else's."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if category.__module__.startswith("tramfl"):
            print(f"tramfl: warning: {message}", file=sys.stderr)

    warnings.showwarning = show

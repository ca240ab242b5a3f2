"""Make the pictures in docs/images from the page of `make demo`: `python scripts/screenshots.py`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=20000",
)


def shoot(page: Path, picture: Path, width: int, height: int) -> None:
    """A picture of a page in a window of this size."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                "chromium",
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main() -> int:
    """Shoot the report of the demo."""
    page = ROOT / "runs" / "demo" / "report.html"
    if not page.exists():
        print(f"{page} is missing: run make demo first.", file=sys.stderr)
        return 2
    shoot(page, ROOT / "docs" / "images" / "report.png", 1180, 1640)
    return 0


if __name__ == "__main__":
    sys.exit(main())

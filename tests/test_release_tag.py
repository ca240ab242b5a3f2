"""A release names one version everywhere: the script that a release begins with reads it where it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tramfl.version import __version__

SCRIPT = Path(__file__).parents[1] / "scripts" / "ci" / "release_tag.sh"


def complaints(tag: str) -> str:
    return subprocess.run(["sh", str(SCRIPT), tag], capture_output=True, text=True, check=False).stderr


def test_the_tag_of_the_present_version_fits_the_package_and_the_citation() -> None:
    assert "another version" not in complaints(f"v{__version__}")


@pytest.mark.parametrize("place", ["src/tramfl/version.py", "CITATION.cff", "CHANGELOG.md"])
def test_another_tag_is_refused_with_every_place_that_must_name_it(place: str) -> None:
    assert place in complaints("v99.0.0")

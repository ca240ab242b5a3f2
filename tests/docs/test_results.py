"""What docs/methods.md says came of the races is what the kept runs print; the site has all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.docs.races import CLOCKS, races, reference
from tramfl.reporting.race import overview_tables

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
TABLE = re.compile(r"^### (\w+, [\d.]+ %)( in slots)?: (virtual seconds \(Gbit\), .*)\n\n((?:\|.*\n)+)", re.MULTILINE)


def printed(clock: str) -> dict[str, str]:
    """Every overview of the kept runs with its rows."""
    return {title + words: rows for title, _, words, rows in TABLE.findall(overview_tables(races(clock)))}


@pytest.mark.parametrize("clock", CLOCKS)
def test_every_overview_of_the_page_is_what_the_kept_runs_print(clock: str) -> None:
    shown = {
        title + words: rows for title, slots, words, rows in TABLE.findall(PAGE) if bool(slots) == (clock == "slots")
    }
    assert shown
    assert shown == printed(clock)


def test_the_site_has_every_scenario_of_both_clocks() -> None:
    page = reference()
    for clock in CLOCKS:
        for name in {run.scenario for run in races(clock)}:
            assert f"### {name}: virtual seconds and Gbit to a target" in page

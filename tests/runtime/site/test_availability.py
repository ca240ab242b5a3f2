from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tramfl.notation import BadInput
from tramfl.runtime.settings import hours_from
from tramfl.runtime.site.availability import Availability


def at(text: str, day: int = 1) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"2026-05-{day:02}T{text}")


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("22:00-06:00", ("22:00", "23:59", "00:00", "05:59"), ("06:00", "12:00", "21:59")),
        ("08:30-17:00", ("08:30", "16:59"), ("08:29", "17:00", "23:00")),
        ("12:00-24:00", ("12:00", "23:59"), ("00:00", "11:59")),
    ],
)
def test_a_site_takes_part_in_its_hours_and_at_no_other_time(
    tmp_path: Path, hours: str, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    site = Availability(tmp_path / "a.json", hours_from(hours, "available"), None)
    assert [site.why_not(at(moment)) for moment in inside] == [None] * len(inside)
    assert all("outside its hours" in (site.why_not(at(moment)) or "") for moment in outside)


@pytest.mark.parametrize("text", ["22-06", "22:00-22:00", "25:00-06:00", "22:00-06:60", "", "22:00-24:30", "nights"])
def test_hours_that_make_no_sense_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"available is .*22:00-06:00"):
        hours_from(text, "available")


def test_the_samples_of_a_day_are_counted_over_restarts_and_anew_the_next_day(tmp_path: Path) -> None:
    site = Availability(tmp_path / "a.json", None, 100)
    site.trained(60, at("10:00"))
    assert site.why_not(at("10:01")) is None
    site.trained(60, at("11:00"))
    again = Availability(tmp_path / "a.json", None, 100)
    assert again.why_not(at("12:00")) == "it has trained 120 samples today, and its limit is 100"
    assert again.why_not(at("00:00", day=2)) is None


def test_a_drained_site_stays_drained_over_a_restart(tmp_path: Path) -> None:
    site = Availability(tmp_path / "a.json", None, None)
    assert site.why_not(at("10:00")) is None
    site.drain(True)
    again = Availability(tmp_path / "a.json", None, None)
    assert "tramfl undrain" in (again.why_not(at("10:00")) or "")
    again.drain(False)
    assert Availability(tmp_path / "a.json", None, None).why_not(at("10:00")) is None


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    assert Availability(tmp_path / "a.json", None, None).why_not(at("10:00")) is None

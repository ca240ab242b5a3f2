"""What a site knows of the others' clocks."""

from __future__ import annotations

import pytest

from tramfl.runtime.loads.clocks import KEPT_READINGS, PeerClocks


def test_a_moment_is_taken_from_the_clock_of_the_site_that_answered_soonest_of_late() -> None:
    clocks = PeerClocks()
    assert clocks.at("b", 100.0) is None
    clocks.read("b", 10.0, 10.4, 70.35)  # 60 s ahead, and its way there was the longer one
    assert clocks.at("b", 100.0) == pytest.approx(160.15)
    clocks.read("b", 20.0, 20.04, 80.02)
    assert clocks.at("b", 100.0) == pytest.approx(160.0)
    clocks.read("b", 30.0, 32.0, 90.0)
    assert clocks.at("b", 100.0) == pytest.approx(160.0), "a slow answer says little"
    assert clocks.at("c", 100.0) is None
    for second in range(KEPT_READINGS):
        clocks.read("b", 40.0 + second, 40.1 + second, 101.05 + second)
    assert clocks.at("b", 100.0) == pytest.approx(161.0), "clocks drift"


@pytest.mark.parametrize("clock", [None, float("nan"), float("inf")])
def test_what_is_no_time_is_ignored(clock: float | None) -> None:
    clocks = PeerClocks()
    clocks.read("b", 10.0, 10.1, clock)
    assert clocks.at("b", 100.0) is None

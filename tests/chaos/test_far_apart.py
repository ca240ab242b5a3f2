"""A short version of `make trial`: sites in network namespaces behind slow lines.

Goals of time are for the trial, on a quiet machine; here is what must hold on any.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.trial.collapse import show_collapse
from benchmarks.trial.hops import hops, show_hops
from benchmarks.trial.losses import show_resident
from benchmarks.trial.sites import Goals, far_apart, scenario


def test_hops_are_predicted_and_a_collapsed_link_is_left(tmp_path: Path) -> None:
    goals = Goals()
    with far_apart(tmp_path, scenario()) as far:
        show_hops(far, 8, goals)
        assert hops(far.sites.rows()), "no hop was made and predicted"
        show_collapse(far, goals)
    assert not goals.wrong, "a collapsed transfer was waited for, or its part was lost"


def test_a_site_that_has_the_newest_weights_is_sent_none(tmp_path: Path) -> None:
    goals = Goals()
    with far_apart(tmp_path, scenario(policy="time-first")) as far:
        show_resident(far, goals)
    assert not goals.wrong, "a transfer was charged to a site that has the weights"

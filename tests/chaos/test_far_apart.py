"""A short version of `make trial`: sites in network namespaces behind slow lines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.trial import Goals, far_apart, scenario, show_collapse, show_hops


def test_hops_are_predicted_and_a_collapsed_link_is_left(tmp_path: Path) -> None:
    goals = Goals()
    with far_apart(tmp_path, scenario()) as far:
        show_hops(far, 8, goals)
        assert not goals.missed, "a hop was predicted far off"
        show_collapse(far, goals)
        assert not goals.missed, "a collapsed transfer was waited for, or its part was lost"

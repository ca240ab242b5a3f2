"""A short version of `make trial`: sites in network namespaces behind slow lines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.trial import far_apart, scenario, show_collapse, show_hops


def test_hops_are_predicted_and_a_collapsed_link_is_left(tmp_path: Path) -> None:
    with far_apart(tmp_path, scenario()) as far:
        assert show_hops(far, 8), "a hop was predicted far off"
        assert show_collapse(far), "a collapsed transfer was waited for, or its part was lost"

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tramfl
from tramfl.notation import BadInput
from tramfl.simulation.loads import RoundLoads

NODES = 3


class Given:
    """A user's source that gives what it was made with."""

    def __init__(self, loads: Any) -> None:
        self.loads = loads

    def at(self, round_: int) -> Any:
        return self.loads


def play(source: Any, rounds: int = 2) -> tramfl.Result:
    return tramfl.simulate("digits-3", loads=source, train=False, rounds=rounds)


LINKS = np.full((NODES, NODES), 1e8)


def loads(flops: Any = (1e12,) * NODES, bandwidth: Any = LINKS) -> RoundLoads:
    return RoundLoads(flops, bandwidth)


def test_arrays_and_tuples_will_do_and_none_is_a_node_that_does_not_report() -> None:
    result = play(Given(loads(flops=(1e12, None, 2e12))))
    assert result.rows[0].loads.flops == (1e12, None, 2e12)
    assert {row.node for row in result.rows} <= {0, 2}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (loads(flops=(1e12, math.nan, 1e12)), r"at\(1\)\.flops\[1\] is nan; loads are numbers of at least 0"),
        (loads(flops=(1e12, -1.0, 1e12)), r"flops\[1\] is -1"),
        (loads(flops=(1e12, math.inf, 1e12)), "flops has an infinite value"),
        (loads(flops=(1e12,)), r"flops has shape \(1,\); with 3 nodes it must have shape \(3,\)"),
        (loads(flops=("fast",) * 3), r"flops must be numbers, or None"),
        (loads(bandwidth=[[1e8] * 3] * 2), r"bandwidth has shape \(2, 3\)"),
        (loads(bandwidth=[[1e8, -2.0, 1e8]] * 3), r"bandwidth\[0, 1\] is -2"),
        (loads(bandwidth=[[1e8, 1e8, math.nan]] * 3), r"bandwidth\[0, 2\] is nan"),
        (None, r"at\(1\) returned a NoneType; it must return RoundLoads"),
    ],
)
def test_what_is_no_load_is_an_error_that_names_it(given: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        play(Given(given))


def test_a_source_without_at_is_refused() -> None:
    with pytest.raises(BadInput, match=r"a list is no source of loads; it needs a method at\(round\)"):
        play([1, 2])

"""A user's own source of loads, with every answer checked before a round uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tramfl.notation import BadInput, Reals
from tramfl.references import users_code
from tramfl.simulation.loads import LoadSource, RoundLoads


def checked(source: LoadSource, nodes: int) -> LoadSource:
    """A source that a caller gave: one of tramfl's as it is, a user's own with its answers checked."""
    return source if type(source).__module__.startswith("tramfl.") else OwnLoads(source, nodes)


class OwnLoads:
    """Checks what a user's source gives: None stands for a node that does not report; NaN is an error."""

    def __init__(self, source: LoadSource, nodes: int) -> None:
        if not callable(getattr(source, "at", None)):
            raise BadInput(
                f"loads: a {type(source).__name__} is no source of loads; it needs a method at(round) that returns"
                " RoundLoads."
            )
        self._source, self._nodes = source, nodes

    def at(self, round_: int) -> RoundLoads:
        """The user's loads of round k; BadInput where they are no loads."""
        with users_code(f"loads: at({round_})"):
            given: Any = self._source.at(round_)
        if not isinstance(given, RoundLoads):
            raise BadInput(f"loads: at({round_}) returned a {type(given).__name__}; it must return RoundLoads.")
        flops = self._numbers(given.flops, (self._nodes,), f"loads: at({round_}).flops")
        links = self._numbers(given.bandwidth, (self._nodes, self._nodes), f"loads: at({round_}).bandwidth")
        if np.isinf(flops).any():
            raise BadInput(f"loads: at({round_}).flops has an infinite value; FLOPS are finite.")
        np.fill_diagonal(links, math.inf)
        return replace(given, flops=flops.tolist(), bandwidth=links.tolist())

    @staticmethod
    def _numbers(values: Any, shape: tuple[int, ...], what: str) -> Reals:
        """`values` as numbers of `shape`; None becomes NaN, the sign of a node that does not report."""
        try:
            found = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(f"{what} must be numbers, or None where a node does not report.") from None
        if found.shape != shape:
            raise BadInput(f"{what} has shape {found.shape}; with {shape[0]} nodes it must have shape {shape}.")
        given_nan = np.isnan(found) & ~_is_none(values, shape)
        if len(shape) == 2:
            np.fill_diagonal(given_nan, False)
            np.fill_diagonal(found, math.inf)  # whatever a source says of the link from a node to itself
        if given_nan.any() or (found < 0).any():
            place = np.argwhere(given_nan | (found < 0))[0].tolist()
            value = found[tuple(place)]
            raise BadInput(
                f"{what}{place} is {value:g}; loads are numbers of at least 0, or None where a node does not report."
            )
        return found


def _is_none(values: Sequence[Any] | Reals, shape: tuple[int, ...]) -> Any:
    """Where a source said None; an array of numbers has none."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return np.zeros(shape, dtype=np.bool_)
    return np.frompyfunc(lambda value: value is None, 1, 1)(np.array(values, dtype=object)).astype(np.bool_)

"""The loads where every node keeps a model: the scenario's, and links to a server beside the nodes."""

from __future__ import annotations

import math
from typing import overload

import numpy as np

from tramfl.config import LoadModel
from tramfl.notation import BadInput, NodeId, Reals
from tramfl.simulation.loads import Links, LoadSource, Places, RoundLoads, load_source

_SERVER_SEED = 2**31
"""Keeps the draws of the server's links apart from those of the nodes."""


class ArenaLoads:
    """The loads of every place: the nodes, and the server beside them, which does not train."""

    def __init__(self, nodes: LoadSource, server: LoadSource | None) -> None:
        self._nodes, self._server = nodes, server

    def at(self, round_: int) -> RoundLoads:
        """The loads of one step. What a recorded round took is left out: another method plays here."""
        loads = self._nodes.at(round_)
        if self._server is None:
            return RoundLoads(loads.flops, loads.bandwidth)
        links = list(self._server.at(round_).bandwidth[len(loads.flops)])
        return RoundLoads([*loads.flops, math.nan], _WithServer(loads, links))


def arena_loads(settings: LoadModel, nodes: int, seed: int, own: LoadSource | None, *, server: bool) -> ArenaLoads:
    """The loads of a scenario, or the caller's own; `server` where one stands beside the nodes."""
    found = own if own is not None else load_source(settings, nodes, seed)
    if not server:
        return ArenaLoads(found, None)
    if own is not None or settings.kind in ("replay", "trace") or isinstance(settings.flops, tuple):
        raise BadInput(
            'exchange.server = "beside": a server has no links in recorded loads, in the caller\'s own, or where'
            ' loads.flops is a list; choose "node".'
        )
    return ArenaLoads(found, load_source(settings, nodes + 1, seed + _SERVER_SEED))


class _WithServer(Links):
    """The links of the nodes, and those of a server beside them."""

    def __init__(self, nodes: RoundLoads, server: list[float]) -> None:
        self._nodes, self._server = nodes, server

    def __len__(self) -> int:
        return len(self._server)

    @overload
    def __getitem__(self, place: int) -> list[float]: ...
    @overload
    def __getitem__(self, place: slice) -> list[list[float]]: ...
    def __getitem__(self, place: int | slice) -> list[float] | list[list[float]]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if place == len(self) - 1:
            return self._server
        return [*self._nodes.bandwidth[place], self._server[place]]

    def link(self, one: NodeId, other: NodeId) -> float:
        """b_ij of one link."""
        server = len(self) - 1
        if server in (one, other):
            return self._server[min(one, other)]
        return self._nodes.link(one, other)

    def along(self, one: Places, other: Places) -> Reals:
        """b_ij of many links."""
        return np.array([self.link(i, j) for i, j in zip(one.tolist(), other.tolist(), strict=True)])

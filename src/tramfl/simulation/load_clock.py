"""How long work takes: at the round's loads, as in the paper, or through the slots of time that it lasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tramfl.notation import ModelCost, NodeId, Reals
from tramfl.scheduling.timing import compute_seconds
from tramfl.simulation.loads import LoadSource, Places, RoundLoads

_MOST_KEPT, _LINKS_KEPT = 20_000, 2**25
"""Steps whose loads stay in memory, and the links that these may have together: 128 MiB where links are drawn."""
MOST_SLOTS = 100_000
"""Work that lasts for more slots than this counts as work that never ends."""


class LoadClock(Protocol):
    """What the loads are at a moment of a round, and how long work takes that begins there."""

    step_seconds: float
    """Seconds between two changes of the loads; 0 where they change with the round."""

    def step(self, round_: int, at: float) -> int:
        """The number, from 1 on, of the loads at this moment."""
        ...

    def loads(self, step: int) -> RoundLoads:
        """The loads of one step."""
        ...

    def training_seconds(self, node: NodeId, samples: Sequence[float], round_: int, at: float) -> float:
        """T_comp of a training of `samples` of each label that begins at `at`."""
        ...

    def sending_seconds(self, one: NodeId, other: NodeId, round_: int, at: float, bits: float | None = None) -> float:
        """T_comm of a transfer of the model, or of `bits` bits, that begins at `at`."""
        ...

    def sending_to(
        self, one: NodeId, others: Sequence[NodeId], round_: int, at: float, bits: float | None = None
    ) -> list[float]:
        """The same to each of several nodes at once."""
        ...

    def sending_along(self, one: Places, other: Places, round_: int, at: Reals, bits: Reals) -> Reals:
        """T_comm of many transfers, each along a link from `one` to `other`, that begin `at` and are `bits` long."""
        ...


class RoundClock:
    """The paper's: a round's loads are drawn once and hold while it lasts."""

    step_seconds = 0.0

    def __init__(self, source: LoadSource, cost: ModelCost, *, apart: bool = False) -> None:
        """`apart` where nodes do not wait for each other: they are in several rounds at once."""
        self._source, self._cost, self._apart = source, cost, apart
        self._rounds: dict[int, RoundLoads] = {1: source.at(1)}

    def step(self, round_: int, at: float) -> int:
        """The round's number."""
        return round_

    def loads(self, step: int) -> RoundLoads:
        """The loads of a round."""
        found = self._rounds.get(step)
        if found is None:
            found = self._source.at(step)
            _make_room(self._rounds, _most_kept(found) if self._apart else 1)
            self._rounds[step] = found
        return found

    def training_seconds(self, node: NodeId, samples: Sequence[float], round_: int, at: float) -> float:
        """At the round's load, or as long as the recorded round took where the same is trained again."""
        loads = self.loads(round_)
        if loads.took is not None and (loads.took.node, loads.took.samples) == (node, samples):
            return loads.took.compute_seconds
        return compute_seconds(sum(samples), self._cost, loads.flops[node])

    def sending_seconds(self, one: NodeId, other: NodeId, round_: int, at: float, bits: float | None = None) -> float:
        """At the round's load, or as long as the recorded round took where the same node trains."""
        loads = self.loads(round_)
        if loads.took is not None and loads.took.node == other:
            return loads.took.transfer_seconds
        return (self._cost.model_bits if bits is None else bits) / loads.link(one, other)

    def sending_to(
        self, one: NodeId, others: Sequence[NodeId], round_: int, at: float, bits: float | None = None
    ) -> list[float]:
        """At the round's load; the row of links is looked up once."""
        loads = self.loads(round_)
        if loads.took is not None:
            return [self.sending_seconds(one, other, round_, at, bits) for other in others]
        sent = self._cost.model_bits if bits is None else bits
        if len(others) == 1:
            return [sent / loads.link(one, others[0])]
        links = loads.bandwidth[one]
        return [sent / links[other] for other in others]

    def sending_along(self, one: Places, other: Places, round_: int, at: Reals, bits: Reals) -> Reals:
        """At the round's load."""
        return bits / self.loads(round_).along(one, other)


class SlotClock:
    """Loads change every `slot_seconds`, whatever runs meanwhile; work goes on at the rate of each slot."""

    def __init__(self, source: LoadSource, cost: ModelCost, slot_seconds: float) -> None:
        self._source, self._cost, self.step_seconds = source, cost, slot_seconds
        self._slots: dict[int, RoundLoads] = {}

    def step(self, round_: int, at: float) -> int:
        """The number of the slot, from 1 on; a moment on the border belongs to the later slot."""
        return math.floor(at / self.step_seconds) + 1

    def loads(self, step: int) -> RoundLoads:
        """The loads of a slot."""
        found = self._slots.get(step)
        if found is None:
            found = self._source.at(step)
            _make_room(self._slots, _most_kept(found))
            self._slots[step] = found
        return found

    def training_seconds(self, node: NodeId, samples: Sequence[float], round_: int, at: float) -> float:
        """What passes until the slots have given the FLOPs."""
        return self._seconds(self._cost.flops_per_sample * sum(samples), at, lambda loads: loads.flops[node])

    def sending_seconds(self, one: NodeId, other: NodeId, round_: int, at: float, bits: float | None = None) -> float:
        """What passes until the slots have given the bits."""
        return self._seconds(
            self._cost.model_bits if bits is None else bits, at, lambda loads: loads.link(one, other)
        )

    def sending_to(
        self, one: NodeId, others: Sequence[NodeId], round_: int, at: float, bits: float | None = None
    ) -> list[float]:
        """Each link goes through the slots by itself."""
        return [self.sending_seconds(one, other, round_, at, bits) for other in others]

    def sending_along(self, one: Places, other: Places, round_: int, at: Reals, bits: Reals) -> Reals:
        """Slot by slot, all links that are busy in it together."""
        found = np.full(len(one), math.inf)
        step = np.floor(at / self.step_seconds).astype(np.intp) + 1
        last, begin, work = step + MOST_SLOTS, at.copy(), bits.copy()
        busy = np.arange(len(one))
        while busy.size:
            now = int(step[busy].min())
            here = busy[step[busy] == now]
            speed, end = self.loads(now).along(one[here], other[here]), now * self.step_seconds
            done = speed * (end - begin[here]) >= work[here]
            ended, rest = here[done], here[~done]
            found[ended] = begin[ended] + work[ended] / speed[done] - at[ended]
            work[rest] -= speed[~done] * np.maximum(0.0, end - begin[rest])
            begin[rest] = np.maximum(begin[rest], end)
            step[rest] += 1
            step[ended] = last[ended]
            busy = busy[step[busy] < last[busy]]
        return found

    def sent_bits(self, one: NodeId, other: NodeId, begin: float, end: float) -> float:
        """What a link carries from one moment to another."""
        bits, step = 0.0, self.step(0, begin)
        while begin < end:
            border = min(end, step * self.step_seconds)
            bits += self.loads(step).link(one, other) * max(0.0, border - begin)
            begin, step = max(begin, border), step + 1
        return bits

    def _seconds(self, work: float, at: float, rate: Callable[[RoundLoads], float]) -> float:
        step = first = self.step(0, at)
        begin = at
        while step - first < MOST_SLOTS:
            end = step * self.step_seconds
            speed = rate(self.loads(step))
            if speed * (end - begin) >= work:
                return begin + work / speed - at
            work -= speed * max(0.0, end - begin)
            begin, step = max(begin, end), step + 1
        return math.inf


def _most_kept(loads: RoundLoads) -> int:
    """How many steps with as many links as these stay in memory."""
    return max(1, min(_MOST_KEPT, _LINKS_KEPT // len(loads.flops) ** 2))


def _make_room(kept: dict[int, RoundLoads], most: int) -> None:
    """Let one more step be among `most`. Time goes forward: the earlier half is the least likely to be asked for."""
    if len(kept) >= most:
        for step in sorted(kept)[: (len(kept) + 1) // 2]:
            del kept[step]

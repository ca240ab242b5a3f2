"""Carries out a method's steps: which value lies where, when it is there, and what must be computed.

Values have numbers here and nothing else: a step makes new ones, and notes the work that they stand for. A learner
does the work when the round is known, under names that follow from the numbers. Where a schedule is played alone, or
a run is taken up again, there is no work to do, and none is noted.

A node computes one thing at a time; a link carries one transfer at a time in each direction; links do not share
anything. A step begins when all that it needs is there. Every moment carries the seconds of computing and of sending
on the longest way to it, so that a round's time splits into the two.

A full mesh of 100 nodes has 9,900 transfers a round. So the transfers of a `Mix` or `Cross` are timed as arrays with
one entry a link, and become moments only where a caller asks for them. Variables are kept by name and then by place:
the same name changes at many places together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from operator import add, itemgetter, sub
from typing import Any

import numpy as np

from tramfl.exchange import (
    Combine,
    Cross,
    Distil,
    Forget,
    Mix,
    Place,
    Predict,
    Send,
    Step,
    Trade,
    TrainStep,
    Variable,
)
from tramfl.exchange.work import Combining, Distilling, LocalTraining, Predicting, Work
from tramfl.notation import BadInput, Counts, Digest, ModelCost, NodeId, Reals
from tramfl.record import NodeTrained
from tramfl.simulation.load_clock import LoadClock
from tramfl.simulation.loads import Places, RoundLoads

Moment = tuple[float, float, float]
"""A point of time; the seconds of computing and of sending on the longest way to it since the round began."""
Value = int
"""The number of a value, in the order in which they were made; 0 is w_0, and soft outputs are below 0."""
Shipment = tuple[Place, tuple[Place, ...], float]
"""What one place sent to others: from, to, and the bits of each transfer."""


class _Graph:
    """The links along which nodes send to each other, node by node, as arrays."""

    def __init__(self, others: Mapping[NodeId, tuple[NodeId, ...]]) -> None:
        self.others = others
        """The neighbours of each node."""
        counts = [len(each) for each in others.values()]
        ends = list(accumulate(counts))
        self.parts = list(map(slice, [0, *ends], ends))
        """Which of the links are each node's."""
        place = {node: at for at, node in enumerate(others)}
        targets = [place[other] for other in chain.from_iterable(others.values())]
        self.sender: Places = np.repeat(np.arange(len(counts)), counts)
        self.receiver: Places = np.array(targets, dtype=np.intp)
        """Of every link, the places in `others` of the nodes that it leads from and to ..."""
        nodes = np.array(list(others), dtype=np.intp)
        self.one, self.other = nodes[self.sender], nodes[self.receiver]
        """... and their numbers."""

    @cached_property
    def back(self) -> Places:
        """Of every link, the place of the one in the other direction."""
        place = {link: at for at, link in enumerate(zip(self.one.tolist(), self.other.tolist(), strict=True))}
        return np.array([place[j, i] for i, j in place], dtype=np.intp)


class _Arrivals(dict[Place, Moment]):
    """When what one place sends to others at the same time is there; a moment is worked out once it is asked for."""

    def __init__(self, others: tuple[Place, ...], start: Moment, seconds: Reals) -> None:
        self._others, self._start, self._seconds = others, start, seconds

    def get(self, place: Place, default: Any = None, /) -> Any:
        """As of any dict."""
        if place not in self and place in self._others:
            self[place] = _end(self._start, self._seconds.item(self._others.index(place)))
        return super().get(place, default)

    def copy(self) -> _Arrivals:
        """A copy of the arrivals as they were first given."""
        return _Arrivals(self._others, self._start, self._seconds)


class Stage:
    """The variables of all places, and the time at which each of them has its value."""

    def __init__(
        self,
        held: Counts,
        cost: ModelCost,
        clock: LoadClock,
        initial: Digest,
        start: Iterable[Variable],
        *,
        outputs_bits: float,
        shared_samples: int,
    ) -> None:
        self._held: list[list[int]] = held.tolist()
        self._held_by_node: list[int] = held.sum(axis=1).tolist()
        self._cost, self.clock = cost, clock
        self._outputs_bits, self._shared = outputs_bits, shared_samples
        self._initial, self._made, self._used = initial, 0, 0
        self._values: dict[str, dict[Place, Value]] = {}
        self._ready: dict[str, dict[Place, Moment]] = {}
        """When each value is there; one that is not here has been there since the round began."""
        self._free: dict[NodeId, Moment] = {}
        """When each node has computed what it was asked to."""
        self._links: dict[Place, dict[Place, Moment]] = {}
        """When each link that a place has used in this round is free again."""
        self._graphs: dict[type[Mix | Cross], tuple[object, _Graph]] = {}
        """Of the last `Mix` and `Cross`: a fixed graph is the same in every round."""
        self._drawn = [(0,) * held.shape[1]] * len(held)
        """Samples of each label that each node has used."""
        self.notes_work = True
        """Whether a learner does the work, so that it must be noted."""
        self.work: list[Work] = []
        """What must be computed, in order; the caller empties it."""
        self._seen, self._seen_made = {0}, 0
        """The values that variables had, and how many were made, when `dropped` was asked last."""
        self._trained: list[NodeTrained] = []
        self._sent: list[Shipment] = []
        for variable in (*((node, "w") for node in range(len(held))), *start):
            self._set(*variable, 0, (0.0, 0.0, 0.0))

    @property
    def live(self) -> list[Digest]:
        """The values that some variable has."""
        return list(map(self._name, sorted(self._numbers())))

    def dropped(self) -> list[Digest]:
        """The values that were there, or made, since this was asked last, and that no variable has any longer."""
        live = self._numbers()
        gone = self._seen.union(range(self._seen_made + 1, self._made + 1)) - live
        self._seen, self._seen_made = live, self._made
        return list(map(self._name, sorted(gone)))

    def value(self, variable: Variable) -> Digest:
        """What a variable has; BadInput where it has nothing."""
        return self._name(self._value(variable))

    def _numbers(self) -> set[int]:
        return {abs(value) for values in self._values.values() for value in values.values()}

    def _name(self, value: Value) -> Digest:
        return f"{self._initial}/{abs(value)}" if value else self._initial

    def _value(self, variable: Variable) -> Value:
        place, name = variable
        try:
            return self._values[name][place]
        except KeyError:
            raise BadInput(
                f"the method reads {name!r} at place {place}, which has no such value: it must be sent there first."
            ) from None

    def loads(self, round_: int, at: float) -> RoundLoads:
        """The loads of every place and link at a moment of a round."""
        return self.clock.loads(self.clock.step(round_, at))

    def take_record(self) -> tuple[list[NodeTrained], list[Shipment]]:
        """Who trained what and what was sent where since the last call, which emptied the record."""
        found = self._trained, self._sent
        self._trained, self._sent = [], []
        return found

    def begin(self) -> None:
        """A round begins: nothing is under way, and everything is there."""
        self._ready.clear()
        self._free.clear()
        self._links.clear()

    def run(self, steps: Sequence[Step], round_: int, at: float) -> Moment:
        """Take steps that may begin at `at`; the moment at which the last of them ends."""
        begin = last = (at, 0.0, 0.0)
        for step in steps:
            last = max(last, _TAKE[type(step)](self, step, round_, begin))
        return last

    def _send(self, step: Send, round_: int, begin: Moment) -> Moment:
        source, value = step.source, self._value((step.source, step.name))
        ready = max(begin, self._when(source, step.name, begin))
        targets = step.target if isinstance(step.target, tuple) else (step.target,)
        ends = self._transferred(source, targets, self._bits(value), round_, ready)
        for target, end in zip(targets, ends, strict=True):
            self._set(target, step.into, value, end)
        return max(ends, default=ready)

    def _trade(self, step: Trade, round_: int, begin: Moment) -> Moment:
        one, other, (mine, theirs), last = step.one, step.other, step.into, begin
        noted = [(one, other, mine), (other, one, theirs)]
        values = [self._value((place, step.name)) for place, _, _ in noted]
        starts = [max(begin, self._when(place, step.name, begin)) for place, _, _ in noted]
        for (source, target, into), value, start in zip(noted, values, starts, strict=True):
            self._set(source, into, value, start)
            (end,) = self._transferred(source, (target,), self._bits(value), round_, start)
            self._set(target, into, value, end)
            last = max(last, end)
        return last

    def _transferred(
        self, source: Place, targets: tuple[Place, ...], bits: float, round_: int, ready: Moment
    ) -> list[Moment]:
        """When each target has what the source has at `ready`."""
        busy, ends = self._links.setdefault(source, {}), []
        for target in targets:
            start = max(ready, busy.get(target, ready))
            seconds = self.clock.sending_seconds(source, target, round_, start[0], bits)
            if math.isnan(seconds):
                raise _unknown_link(source, target, round_)
            end = busy[target] = _end(start, seconds)
            ends.append(end)
        if targets:
            self._sent.append((source, targets, bits))
        return ends

    def _sent_along(self, graph: _Graph, starts: Sequence[Moment], bits: Sequence[float], round_: int) -> Reals:
        """Every node of a graph sends to its neighbours: when each transfer ends, one column a link."""
        sending = list(zip(graph.others.items(), starts, bits, strict=True))
        if not self._links.keys().isdisjoint(graph.others):
            # Some links are not free: one transfer after the other.
            ends = [self._transferred(node, others, size, round_, start) for (node, others), start, size in sending]
            return _columns(list(chain.from_iterable(ends)))
        at, computing, before = _columns(starts)[:, graph.sender]
        seconds = self.clock.sending_along(graph.one, graph.other, round_, at, np.array(bits)[graph.sender])
        if np.isnan(seconds).any():
            link = np.isnan(seconds).argmax()
            raise _unknown_link(graph.one[link], graph.other[link], round_)
        for ((node, others), start, size), part in zip(sending, graph.parts, strict=True):
            self._links[node] = _Arrivals(others, start, seconds[part])
            if others:
                self._sent.append((node, others, size))
        return np.array([at + seconds, computing, before + seconds])

    def _graph(self, step: Mix | Cross) -> _Graph:
        given = step.weights if isinstance(step, Mix) else step.links
        known, graph = self._graphs.get(type(step), (None, None))
        if graph is None or known is not given:
            own = 1 if isinstance(step, Mix) else 0
            graph = _Graph({node: tuple(others)[own:] for node, others in given.items()})
            self._graphs[type(step)] = given, graph
        return graph

    def _bits(self, value: Value) -> float:
        return self._outputs_bits if value < 0 else self._cost.model_bits

    def _mix(self, step: Mix, round_: int, begin: Moment) -> Moment:
        graph, values = self._graph(step), {node: self._value((node, step.name)) for node in step.weights}
        starts = [max(begin, self._when(node, step.name, begin)) for node in step.weights]
        ends = self._sent_along(graph, starts, list(map(self._bits, values.values())), round_)
        latest = _latest(starts, graph.receiver, ends)
        for (node, weights), ready in zip(step.weights.items(), latest, strict=True):
            self._set(node, step.into, self._combined([values[other] for other in weights], weights.values()), ready)
        return max(latest, default=begin)

    def _cross(self, step: Cross, round_: int, begin: Moment) -> Moment:
        names = {node: f"u/{node}" for node in step.links}
        if not (self._links.keys().isdisjoint(names) and self._ready.keys().isdisjoint(names.values())):
            return self.run(step.steps(), round_, begin[0])
        # Every link is free, and every u has been there since the round began.
        graph, moves = self._graph(step), step.share != 1.0
        links = len(graph.one)
        messages = np.arange(links) + self._made + 1
        # u_j|i is the variable u/i at node j: new values are numbered by the node where they lie.
        new = messages if not moves else graph.back + self._made + 1 + links
        if self.notes_work:
            self._note_cross(step, graph, messages)
        self._made += links * (1 + moves)
        starts = [max(begin, self._when(node, "w", begin)) for node in step.links]
        ends = self._sent_along(graph, starts, [self._cost.model_bits] * len(starts), round_)
        for (node, others), part in zip(graph.others.items(), graph.parts, strict=True):
            values = self._values.get(names[node], {})
            known = len(values)
            values.update(zip(others, new[part].tolist(), strict=True))
            if len(values) > known:
                raise BadInput(f"the method exchanges {names[node]!r}, which not every neighbour of node {node} has.")
            self._ready[names[node]] = self._links[node].copy()
        return max(begin, _last(ends)) if links else begin

    def _note_cross(self, step: Cross, graph: _Graph, messages: Places) -> None:
        """m_i|j = 2 w_i - u_i|j on every link, and (1 - share) u_i|j + share m_j|i where the share is not 1."""
        links = list(zip(graph.one.tolist(), graph.other.tolist(), strict=True))
        duals = [self.value((one, f"u/{other}")) for one, other in links]
        sent = list(map(self._name, messages.tolist()))
        for (one, _), dual, message in zip(links, duals, sent, strict=True):
            self.work.append(Combining(message, (self.value((one, "w")), dual), (2.0, -1.0)))
        if step.share == 1.0:
            return
        factors, first = (1 - step.share, step.share), self._made + 1 + len(links)
        for place, (dual, answer) in enumerate(zip(duals, graph.back.tolist(), strict=True)):
            self.work.append(Combining(self._name(first + place), (dual, sent[answer]), factors))

    def _combine(self, step: Combine, round_: int, begin: Moment) -> Moment:
        place, known, ready = step.place, self._ready, begin
        names, factors = zip(*step.parts, strict=True)
        if not known.keys().isdisjoint(names):
            for name in names:
                if name in known:
                    ready = max(ready, known[name].get(place, begin))
        try:
            values = list(map(itemgetter(place), map(self._values.__getitem__, names)))
        except KeyError:
            values = [self._value((place, name)) for name in names]
        self._set(place, step.into, self._combined(values, factors), ready)
        return ready

    def _combined(self, values: Sequence[Value], factors: Collection[float]) -> Value:
        """The sum of factor * value; a value alone is itself."""
        if len(values) == 1 and 1.0 in factors:
            return values[0]
        child = -self._new() if values[0] < 0 else self._new()
        if self.notes_work:
            self.work.append(Combining(self._name(child), tuple(map(self._name, values)), tuple(factors)))
        return child

    def _train(self, step: TrainStep, round_: int, begin: Moment) -> Moment:
        node = step.node
        needs = (step.source,) if step.anchor is None else (step.source, step.anchor)
        parent, *anchor = [self._value((node, name)) for name in needs]
        samples = self._next_samples(node, step.samples)
        end = self._compute(node, sum(samples), needs, round_, begin)
        child, drawn = self._new(), self._drawn[node]
        if self.notes_work:
            pulled = self._name(anchor[0]) if anchor else None
            names = self._name(child), self._name(parent)
            self.work.append(LocalTraining(*names, node, samples, round_, drawn, self._used, pulled, step.share))
        self._drawn[node] = tuple(map(add, drawn, samples))
        self._used += step.samples
        self._trained.append(NodeTrained(node, samples))
        self._set(node, step.into, child, end)
        return end

    def _predict(self, step: Predict, round_: int, begin: Moment) -> Moment:
        parent = self._value((step.node, step.source))
        # A forward pass is a third of forward and backward.
        end = self._compute(step.node, self._shared / 3, (step.source,), round_, begin)
        child = -self._new()
        if self.notes_work:
            self.work.append(Predicting(self._name(child), self._name(parent)))
        self._set(step.node, step.into, child, end)
        return end

    def _distil(self, step: Distil, round_: int, begin: Moment) -> Moment:
        node = step.node
        parent, towards = self._value((node, step.into)), self._value((node, step.towards))
        end = self._compute(node, self._shared * step.passes, (step.into, step.towards), round_, begin)
        child = self._new()
        if self.notes_work:
            names = self._name(child), self._name(parent), self._name(towards)
            self.work.append(Distilling(*names, step.passes, node, round_))
        self._set(node, step.into, child, end)
        return end

    def _forget(self, step: Forget, round_: int, begin: Moment) -> Moment:
        for name in step.names:
            self._value((step.place, name))
            del self._values[name][step.place]
            self._ready.get(name, {}).pop(step.place, None)
        return begin

    def _compute(self, node: NodeId, samples: float, needs: Sequence[str], round_: int, begin: Moment) -> Moment:
        start = max(self._free.get(node, begin), *[self._when(node, name, begin) for name in needs], begin)
        seconds = self.clock.training_seconds(node, (samples,), round_, start[0])
        end = self._free[node] = (start[0] + seconds, start[1] + seconds, start[2])
        return end

    def _when(self, place: Place, name: str, begin: Moment) -> Moment:
        """When a variable has its value."""
        ready = self._ready.get(name)
        return begin if ready is None else ready.get(place, begin)

    def _next_samples(self, node: NodeId, count: int) -> tuple[int, ...]:
        """`count` samples as the node holds its labels: after every pass over its data, each was used once."""
        held, drawn = self._held[node], self._drawn[node]
        share = (sum(drawn) + count) / self._held_by_node[node]
        due = [h * share - d for h, d in zip(held, drawn, strict=True)]
        samples = [int(each) if each > 0 else 0 for each in due]
        missing = count - sum(samples)
        if missing:
            # Those that are furthest behind get one more, or those that are furthest ahead one less.
            order = sorted(range(len(held)), key=list(map(sub, samples, due)).__getitem__)
            if missing > 0:
                for label in [label for label in order if held[label]][:missing]:
                    samples[label] += 1
            else:
                for label in [label for label in order if samples[label]][missing:]:
                    samples[label] -= 1
        return tuple(samples)

    def _new(self) -> Value:
        self._made += 1
        return self._made

    def _set(self, place: Place, name: str, value: Value, ready: Moment) -> None:
        self._values.setdefault(name, {})[place] = value
        self._ready.setdefault(name, {})[place] = ready


def _unknown_link(one: Place, other: Place, round_: int) -> BadInput:
    return BadInput(
        f"loads: round {round_} has no bandwidth from node {one} to node {other}, where the method sends something;"
        " give one, or no FLOPS for a node that does not report."
    )


def _end(start: Moment, seconds: float) -> Moment:
    """When a transfer ends."""
    at, computing, sending = start
    return at + seconds, computing, sending + seconds


def _columns(moments: Sequence[Moment]) -> Reals:
    """Moments as an array, one column each."""
    return np.array(moments, dtype=np.float64).reshape(-1, 3).T


def _last(moments: Reals) -> Moment:
    """The last of all moments."""
    at, computing, sending = moments[:, moments[0] == moments[0].max()]
    return max(zip(at.tolist(), computing.tolist(), sending.tolist(), strict=True))


def _latest(own: Sequence[Moment], receiver: Places, ends: Reals) -> list[Moment]:
    """Of every node the last moment of its own and of the transfers to it."""
    found: list[list[float]] = []
    mine, theirs = np.ones(len(own), dtype=np.bool_), np.ones(len(receiver), dtype=np.bool_)
    # Of moments that are the last so far, the next of their three numbers decides.
    for part, sent in zip(_columns(own), ends, strict=True):
        last = np.where(mine, part, -math.inf)
        np.maximum.at(last, receiver[theirs], sent[theirs])
        mine &= part == last
        theirs &= sent == last[receiver]
        found.append(last.tolist())
    return list(zip(*found, strict=True))


_TAKE: Mapping[type[Step], Callable[[Stage, Any, int, Moment], Moment]] = {
    Send: Stage._send,
    Trade: Stage._trade,
    Combine: Stage._combine,
    Mix: Stage._mix,
    Cross: Stage._cross,
    TrainStep: Stage._train,
    Predict: Stage._predict,
    Distil: Stage._distil,
    Forget: Stage._forget,
}
"""How each kind of step is taken."""

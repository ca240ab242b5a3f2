"""Carries out a method's steps: which value lies where, when it is there, and what must be computed.

Values have names here and nothing else: a step gives new names, and notes the work that makes them. A learner does
the work when the round is known, or nobody does, where a schedule is played alone or a run is taken up again.

A node computes one thing at a time; a link carries one transfer at a time in each direction; links do not share
anything. A step begins when all that it needs is there. Every moment carries the seconds of computing and of sending
on the longest way to it, so that a round's time splits into the two.

A full mesh of 100 nodes has 9,900 transfers a round, so what one place sends to many is timed and stored at once, and
variables are kept by name and then by place: the same name changes at many places together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import add

from tramfl.exchange import Combine, Cross, Distil, Mix, Place, Predict, Send, Step, TrainStep, Variable
from tramfl.exchange.work import Combining, Distilling, LocalTraining, Predicting, Work
from tramfl.notation import BadInput, Counts, Digest, ModelCost, NodeId
from tramfl.record import NodeTrained
from tramfl.simulation.load_clock import LoadClock

Moment = tuple[float, float, float]
"""A point of time; the seconds of computing and of sending on the longest way to it since the round began."""
_Transfers = tuple[tuple[Place, ...], Moment, list[float]]
"""What a place sends to several others at once: to whom, from when on, and the seconds that each transfer takes."""
Shipment = tuple[Place, tuple[Place, ...], float]
"""What one place sent to others: from, to, and the bits of each transfer."""


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
        self._cost, self.clock = cost, clock
        self._outputs_bits, self._shared = outputs_bits, shared_samples
        self._outputs: set[Digest] = set()
        """Values that are soft outputs: the others are models."""
        self._initial, self._names, self._used = initial, 0, 0
        self._values: dict[str, dict[Place, Digest]] = {}
        self._ready: dict[str, dict[Place, Moment]] = {}
        """When each value is there; one that is not here has been there since the round began."""
        self._references: dict[Digest, int] = {}
        self._free: dict[NodeId, Moment] = {}
        """When each node has computed what it was asked to."""
        self._links: dict[Place, dict[Place, Moment] | _Transfers] = {}
        """When each link that a place has used in this round is free again."""
        self._drawn = [(0,) * held.shape[1]] * len(held)
        """Samples of each label that each node has used."""
        self.work: list[Work] = []
        """What must be computed, in order; the caller empties it."""
        self.dropped: list[Digest] = []
        """Values that no variable has any longer; the caller empties it."""
        self._trained: list[NodeTrained] = []
        self._sent: list[Shipment] = []
        for variable in (*((node, "w") for node in range(len(held))), *start):
            self._set(variable, initial, (0.0, 0.0, 0.0))

    @property
    def live(self) -> list[Digest]:
        """The values that some variable has."""
        return list(self._references)

    def value(self, variable: Variable) -> Digest:
        """What a variable has; BadInput where it has nothing."""
        place, name = variable
        try:
            return self._values[name][place]
        except KeyError:
            raise BadInput(
                f"the method reads {name!r} at place {place}, which has no such value: it must be sent there first."
            ) from None

    def loads(self, round_: int, at: float) -> tuple[list[float], Sequence[list[float]]]:
        """FLOPS of every place and bit/s of every link at a moment of a round."""
        loads = self.clock.loads(self.clock.step(round_, at))
        return loads.flops, loads.bandwidth

    def told(self) -> tuple[list[NodeTrained], list[Shipment]]:
        """Who trained what and what was sent where since this was asked last."""
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
            match step:
                case Send():
                    end = self._send(step, round_, begin)
                case Combine():
                    end = self._combine(step, begin)
                case Mix():
                    end = self._mix(step, round_, begin)
                case Cross():
                    end = self._cross(step, round_, begin)
                case TrainStep():
                    end = self._train(step, round_, begin)
                case Predict():
                    end = self._predict(step, round_, begin)
                case Distil():
                    end = self._distil(step, round_, begin)
            last = max(last, end)
        return last

    def _send(self, step: Send, round_: int, begin: Moment) -> Moment:
        source, value = step.source, self.value((step.source, step.name))
        ready = max(begin, self._when(source, step.name, begin))
        targets = step.target if isinstance(step.target, tuple) else (step.target,)
        ends = self._transferred(source, targets, value, round_, ready)
        if len(targets) == 1:
            self._set((targets[0], step.into), value, ends[0])
        else:
            self._set_all(targets, step.into, value, ends)
        return max(ends, default=ready)

    def _transferred(
        self, source: Place, targets: tuple[Place, ...], value: Digest, round_: int, ready: Moment
    ) -> list[Moment]:
        """When each target has a value that the source has at `ready`."""
        if source not in self._links:
            seconds = self._first_transfers(source, targets, value, round_, ready)
            return _ends(ready, seconds)
        busy, bits, ends = self._busy(source), self._bits(value), []
        for target in targets:
            start = max(ready, busy.get(target, ready))
            ends += _ends(start, self.clock.sending_to(source, (target,), round_, start[0], bits))
        busy.update(zip(targets, ends, strict=True))
        self._sent.append((source, targets, bits))
        return ends

    def _first_transfers(
        self, source: Place, targets: tuple[Place, ...], value: Digest, round_: int, ready: Moment
    ) -> list[float]:
        """The seconds of a place's first transfers of a round, which find every link free."""
        bits = self._bits(value)
        seconds = self.clock.sending_to(source, targets, round_, ready[0], bits)
        self._links[source] = (targets, ready, seconds)
        self._sent.append((source, targets, bits))
        return seconds

    def _busy(self, source: Place) -> dict[Place, Moment]:
        """When each link that a place has used is free again."""
        found = self._links[source]
        if isinstance(found, tuple):
            targets, ready, seconds = found
            found = self._links[source] = dict(zip(targets, _ends(ready, seconds), strict=True))
        return found

    def _bits(self, value: Digest) -> float:
        return self._outputs_bits if value in self._outputs else self._cost.model_bits

    def _mix(self, step: Mix, round_: int, begin: Moment) -> Moment:
        values = {node: self.value((node, step.name)) for node in step.weights}
        own = {node: max(begin, self._when(node, step.name, begin)) for node in step.weights}
        latest, moments = own.copy(), {node: moment[0] for node, moment in own.items()}
        for node, weights in step.weights.items():
            others, ready = tuple(weights)[1:], own[node]
            if not others:
                continue
            if node in self._links:
                ends = self._transferred(node, others, values[node], round_, ready)
                later = [(other, end) for other, end in zip(others, ends, strict=True) if end > latest[other]]
            else:
                at, computing, sending = ready
                seconds = self._first_transfers(node, others, values[node], round_, ready)
                # Few of the transfers to a node are the last so far: only those become moments.
                later = [
                    (other, (at + took, computing, sending + took))
                    for other, took in zip(others, seconds, strict=True)
                    if at + took >= moments[other]
                ]
            for other, end in later:
                latest[other] = max(latest[other], end)
                moments[other] = latest[other][0]
        for node, weights in step.weights.items():
            new = self._combined(tuple(map(values.__getitem__, weights)), tuple(weights.values()))
            self._set((node, step.into), new, latest[node])
        return max(latest.values(), default=begin)

    def _cross(self, step: Cross, round_: int, begin: Moment) -> Moment:
        names = {node: f"u/{node}" for node in step.links}
        if not (self._links.keys().isdisjoint(names) and self._ready.keys().isdisjoint(names.values())):
            return self.run(step.steps(), round_, begin[0])
        # Every link is free, and every u has been there since the round began.
        duals = {node: self._values.get(name, {}) for node, name in names.items()}
        messages: dict[NodeId, dict[NodeId, Digest]] = {}
        for node, others in step.links.items():
            model, sent = self.value((node, "w")), {other: self._new() for other in others}
            self.work += [Combining(new, (model, duals[other][node]), (2.0, -1.0)) for other, new in sent.items()]
            messages[node] = sent
        last, bits = begin, self._cost.model_bits
        for node, others in step.links.items():
            ready = max(begin, self._when(node, "w", begin))
            seconds = self.clock.sending_to(node, others, round_, ready[0], bits)
            ends = _ends(ready, seconds)
            self._links[node] = (others, ready, seconds)
            self._sent += [(node, (other,), bits) for other in others]
            self._ready[names[node]] = dict(zip(others, ends, strict=True))
            last = max([last, *ends])
        for node, others in step.links.items():
            for other in others:
                dual, message = duals[other][node], messages[other][node]
                new = message if step.share == 1.0 else self._combined((dual, message), (1 - step.share, step.share))
                duals[other][node] = new
                self._references[new] = self._references.get(new, 0) + 1
                self._release(dual, 1)
        if step.share != 1.0:
            self.dropped += [message for sent in messages.values() for message in sent.values()]
        return last

    def _combine(self, step: Combine, begin: Moment) -> Moment:
        place, parts = step.place, step.parts
        known, found = self._ready, self._values
        ready = max([begin, *[known[name].get(place, begin) for name, _ in parts if name in known]])
        try:
            values = tuple([found[name][place] for name, _ in parts])
        except KeyError:
            values = tuple([self.value((place, name)) for name, _ in parts])
        self._set((place, step.into), self._combined(values, tuple([factor for _, factor in parts])), ready)
        return ready

    def _combined(self, values: tuple[Digest, ...], factors: tuple[float, ...]) -> Digest:
        """The sum of factor * value; a value alone is itself."""
        if factors == (1.0,):
            return values[0]
        child = self._new()
        if values[0] in self._outputs:
            self._outputs.add(child)
        self.work.append(Combining(child, values, factors))
        return child

    def _train(self, step: TrainStep, round_: int, begin: Moment) -> Moment:
        node = step.node
        needs = (step.source,) if step.anchor is None else (step.source, step.anchor)
        parent, *anchor = (self.value((node, name)) for name in needs)
        samples = self._next_samples(node, step.samples)
        end = self._compute(node, sum(samples), needs, round_, begin)
        child = self._new()
        drawn = self._drawn[node]
        pulled = anchor[0] if anchor else None
        self.work.append(LocalTraining(child, parent, node, samples, round_, drawn, self._used, pulled, step.share))
        self._drawn[node] = tuple(map(add, drawn, samples))
        self._used += step.samples
        self._trained.append(NodeTrained(node, samples))
        self._set((node, step.into), child, end)
        return end

    def _predict(self, step: Predict, round_: int, begin: Moment) -> Moment:
        parent = self.value((step.node, step.source))
        # A forward pass is a third of forward and backward.
        end = self._compute(step.node, self._shared / 3, (step.source,), round_, begin)
        child = self._new()
        self._outputs.add(child)
        self.work.append(Predicting(child, parent))
        self._set((step.node, step.into), child, end)
        return end

    def _distil(self, step: Distil, round_: int, begin: Moment) -> Moment:
        node = step.node
        parent, towards = self.value((node, step.into)), self.value((node, step.towards))
        end = self._compute(node, self._shared * step.passes, (step.into, step.towards), round_, begin)
        child = self._new()
        self.work.append(Distilling(child, parent, towards, step.passes, node, round_))
        self._set((node, step.into), child, end)
        return end

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
        share = (sum(drawn) + count) / sum(held)
        due = [h * share - d for h, d in zip(held, drawn, strict=True)]
        samples = [max(0, math.floor(each)) for each in due]
        missing = count - sum(samples)
        if missing:
            # Those that are furthest behind get one more, or those that are furthest ahead one less.
            order = sorted(range(len(held)), key=lambda label: samples[label] - due[label])
            if missing > 0:
                for label in [label for label in order if held[label]][:missing]:
                    samples[label] += 1
            else:
                for label in [label for label in order if samples[label]][missing:]:
                    samples[label] -= 1
        return tuple(samples)

    def _new(self) -> Digest:
        self._names += 1
        return f"{self._initial}/{self._names}"

    def _set(self, variable: Variable, value: Digest, ready: Moment) -> None:
        place, name = variable
        values = self._values.setdefault(name, {})
        before = values.get(place)
        values[place] = value
        self._ready.setdefault(name, {})[place] = ready
        self._references[value] = self._references.get(value, 0) + 1
        if before is not None:
            self._release(before, 1)

    def _set_all(self, places: Sequence[Place], name: str, value: Digest, ready: Sequence[Moment]) -> None:
        """The same as `_set` for a variable of the same name at several places."""
        values = self._values.setdefault(name, {})
        before = Counter(map(values.get, places))
        values.update(dict.fromkeys(places, value))
        self._ready.setdefault(name, {}).update(zip(places, ready, strict=True))
        self._references[value] = self._references.get(value, 0) + len(places)
        for each, count in before.items():
            if each is not None:
                self._release(each, count)

    def _release(self, value: Digest, count: int) -> None:
        """So many variables have another value now."""
        left = self._references[value] - count
        if left:
            self._references[value] = left
            return
        del self._references[value]
        self.dropped.append(value)
        self._outputs.discard(value)


def _ends(start: Moment, seconds: Sequence[float]) -> list[Moment]:
    """When transfers end that begin together."""
    at, computing, sending = start
    return [(at + took, computing, sending + took) for took in seconds]

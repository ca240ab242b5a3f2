"""What the nodes say of their loads: the loads themselves, or what the past lets expect, and how they behave.

Everything here is a function of the loads up to the moment of the question, so a resumed run gets the same.
"""

from __future__ import annotations

import math

import numpy as np

from tramfl.config import LoadModel, Noise
from tramfl.draws import generator
from tramfl.notation import ModelCost, NodeId, Outlook, Reals
from tramfl.scheduling.predictors import Behaviour, Predictor, predictor_named
from tramfl.simulation.load_clock import LoadClock
from tramfl.simulation.loads import RoundLoads

_NOISE = 104
"""Keeps the errors of predictions apart from every other use of the seed."""


class Foresight:
    """One view on the loads of all nodes, as each would report its own."""

    def __init__(
        self,
        clock: LoadClock,
        settings: LoadModel,
        cost: ModelCost,
        nodes: int,
        seed: int,
        *,
        usual_samples: float,
        looks_ahead: bool,
    ) -> None:
        """`usual_samples`: the training for which a node that knows its load says its mean FLOPS."""
        self._clock, self._cost, self._nodes, self._seed = clock, cost, nodes, seed
        self._usual = max(1, round(usual_samples))
        kind = settings.prediction.noise if isinstance(settings.prediction, Noise) else settings.prediction
        self._noise = 0.0 if isinstance(kind, str) else float(kind)
        self._predictor = kind if isinstance(kind, str) and kind != "oracle" else None
        self._looks_ahead = looks_ahead
        # Of a thousand nodes these are half a million pairs, which a plain run needs not.
        one, other = np.triu_indices(0 if self.plain else nodes, k=1)
        self._ends = list(zip(one.tolist(), other.tolist(), strict=True))
        self._place = {(i, j): nodes + k for k, (i, j) in enumerate(self._ends)}
        self._reports: tuple[tuple[NodeId, int, float], RoundLoads, list[Outlook | None]] | None = None
        self._forget()

    @property
    def plain(self) -> bool:
        """Whether nodes say the round's loads and nothing else, as in the paper."""
        return self._clock.step_seconds == 0 and self._predictor is None and not self._noise and not self._looks_ahead

    def _forget(self) -> None:
        self._seen = 0
        count = self._nodes + len(self._ends)
        self._predictors: list[Predictor] = (
            [predictor_named(self._predictor) for _ in range(count)] if (self._predictor) else []
        )
        self._behaviour = Behaviour(count) if self._looks_ahead else None

    def reports(self, holder: NodeId, round_: int, at: float) -> tuple[RoundLoads, list[Outlook | None]]:
        """What the nodes report to the holder at a moment of a round: loads, and how each node's loads behave."""
        step = self._clock.step(round_, at)
        if self.plain:
            return self._clock.loads(step), [None] * self._nodes
        if self._reports is None or self._reports[0] != (holder, step, at):
            self._observe(step - 1 if self._predictors else step)
            loads = self._expected(holder, round_, at, step)
            self._reports = (holder, step, at), loads, self._outlooks(loads)
        return self._reports[1], self._reports[2]

    def _observe(self, until: int) -> None:
        if until < self._seen:
            self._forget()
        while self._seen < until:
            self._seen += 1
            values = self._series(self._clock.loads(self._seen))
            if self._behaviour is not None:
                self._behaviour.update(values)
            for predictor, value in zip(self._predictors, values.tolist(), strict=True) if self._predictors else ():
                if math.isfinite(value):
                    predictor.update(value)

    def _series(self, loads: RoundLoads) -> Reals:
        return np.array([*loads.flops, *(loads.bandwidth[i][j] for i, j in self._ends)])

    def _expected(self, holder: NodeId, round_: int, at: float, step: int) -> RoundLoads:
        present = self._clock.loads(step)
        if self._predictors:
            values = [
                value if (predicted := predictor.predict()) is None else predicted
                for predictor, value in zip(self._predictors, self._series(present).tolist(), strict=True)
            ]
            return self._loads(values)
        if self._clock.step_seconds > 0:
            present = self._as_they_will_be(holder, round_, at, present)
        if self._noise:
            errors = generator(self._seed, _NOISE, round_).standard_normal(self._nodes + len(self._ends))
            return self._loads((self._series(present) * np.exp(self._noise * errors)).tolist())
        return present

    def _as_they_will_be(self, holder: NodeId, round_: int, at: float, present: RoundLoads) -> RoundLoads:
        """The rates that work will get which begins now: sending the model, then a usual training there."""
        flops, bandwidth = list(present.flops), [list(row) for row in present.bandwidth]
        for node in range(self._nodes):
            if not flops[node] > 0:
                continue
            begin = at
            if node != holder:
                seconds = self._clock.sending_seconds(holder, node, round_, at)
                bandwidth[holder][node] = bandwidth[node][holder] = self._cost.model_bits / seconds
                begin += seconds
            if math.isfinite(begin):
                seconds = self._clock.training_seconds(node, (self._usual,), round_, begin)
                flops[node] = self._cost.flops_per_sample * self._usual / seconds
        return RoundLoads(flops, bandwidth)

    def _loads(self, values: list[float]) -> RoundLoads:
        bandwidth = [[math.inf] * self._nodes for _ in range(self._nodes)]
        for (one, other), value in zip(self._ends, values[self._nodes :], strict=True):
            bandwidth[one][other] = bandwidth[other][one] = value
        return RoundLoads(values[: self._nodes], bandwidth)

    def _outlooks(self, loads: RoundLoads) -> list[Outlook | None]:
        if self._behaviour is None:
            return [None] * self._nodes
        habits = self._behaviour.habits(self._series(loads).tolist())
        found: list[Outlook | None] = []
        for node in range(self._nodes):
            compute = habits[node]
            links = tuple(
                None if other == node else habits[self._place[min(node, other), max(node, other)]]
                for other in range(self._nodes)
            )
            found.append(None if compute is None else Outlook(compute, links, self._clock.step_seconds))
        return found

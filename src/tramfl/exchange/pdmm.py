"""PDMM SGD (edge consensus): nodes train towards agreement with their neighbours through one dual a link.

    min (1/N) sum f_i(w_i)  subject to  w_i = w_j on every link;  u_i|j is the dual of the link at node i, E_i the
    number of its links, K the steps between two exchanges.
    K times:          w_i <- (w_i - mu g_i(w_i) + mu eta sum_j u_i|j) / (1 + mu eta E_i)
    message i to j:   m_i|j = 2 w_i - u_i|j
    PDMM (Peaceman-Rachford):   u_i|j <- m_j|i
    ADMM (Douglas-Rachford):    u_i|j <- (u_i|j + m_j|i) / 2

`dual_update` says which. With `pull` = eta given, that is ECL; without it eta = 1 / (mu E_i (K - 1)), the
variance-reduced form (ECL-ISVR), in which a step is w_i <- (1 - 1/K) (w_i - mu g_i) + (1/K) mean_j u_i|j. The
sign-free u is A^T z of the source. Duals begin at w_0: begun at 0 they would shrink the weights until the first
exchange, which ruins pre-trained ones; it is the same algorithm with its origin at w_0.

The source has plain SGD: `momentum` is 0 in the methods of this name. Bits a round: D_M on every directed link.

Source: Niwa et al., Asynchronous Decentralized Optimization With Implicit Stochastic Variance Reduction (ICML 2021),
the authors' poster; Niwa et al., Edge-consensus Learning (KDD 2020), README. Written from the equations.
"""

from __future__ import annotations

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import MEAN, Combine, Cross, Reading, RoundPlan, RoundView, Step, TrainStep, Variable
from tramfl.exchange.topology import neighbours
from tramfl.notation import BadInput, NodeId


class PDMM:
    """Nodes train towards agreement with their neighbours through one dual a link."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        if settings.topology == "matching":
            raise BadInput('exchange.topology = "matching": a dual belongs to a fixed link; choose full or ring.')
        if settings.pull is None and settings.local_steps < 2:
            raise BadInput(
                "exchange.local_steps = 1: without exchange.pull, eta = 1 / (mu E (K - 1)) needs at least 2 steps."
            )
        self._links = neighbours(settings.topology, range(nodes))
        self._means = {
            node: Combine(node, "pulled", tuple((f"u/{other}", 1 / len(others)) for other in others))
            for node, others in self._links.items()
            if others
        }
        self._half = settings.dual_update == "admm"

    def start(self) -> tuple[Variable, ...]:
        """The duals."""
        return tuple((node, f"u/{other}") for node, others in self._links.items() for other in others)

    def plan(self, view: RoundView) -> RoundPlan | None:
        """Train towards the duals' mean, then exchange messages on every link."""
        chosen = view.first(lambda node: view.training_seconds(node, view.samples, 0.0), view.trainers)
        if not chosen:
            return None
        steps: list[Step] = []
        for node in chosen:
            mean = self._means.get(node)
            if mean is not None:
                steps.append(mean)
            anchor = None if mean is None else mean.into
            steps.append(TrainStep(node, view.samples, anchor=anchor, share=self._share(node, view)))
        links = self._links
        if len(chosen) < len(links):
            here = set(chosen)
            links = {node: tuple([other for other in self._links[node] if other in here]) for node in chosen}
        steps.append(Cross(links, 0.5 if self._half else 1.0))
        count = sum(map(len, links.values())) // 2
        return RoundPlan(tuple(steps), f"{len(chosen)} nodes train and exchange duals on {count} links.")

    def _share(self, node: NodeId, view: RoundView) -> float:
        """mu eta E / (1 + mu eta E)."""
        settings, degree = view.settings, len(self._links[node])
        if settings.pull is None:
            return 1 / settings.local_steps
        strength = view.learning_rate * settings.pull * degree
        return strength / (1 + strength)

    def reading(self, view: RoundView) -> Reading:
        """Every node's model."""
        return Reading(tuple((node, "w") for node in range(view.nodes)), MEAN, "nodes")

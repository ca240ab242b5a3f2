"""CMFD: consensus in function space. Nodes share what their models say of common samples, never the models.

    every node i:  K steps on its own samples (cross-entropy)
                   p_i(x) = softmax f_i(x) for every x of the shared unlabelled set X_s; sent to the neighbours
                   h_i(x) = sum over j of W_ij p_j(x), Metropolis-Hastings weights
                   `distil_passes` times over X_s:  w_i <- w_i - mu grad KL(h_i || p_i)

X_s is an advantage that the other methods do not have: `exchange.shared` says where it comes from, never the test
set. Bits a directed link: |X_s| C 32, where C is the number of classes. A node computes M a sample for its own steps,
M / 3 a shared sample for the forward pass and M a shared sample and pass for distilling.

Source: Taya et al., Decentralized and Model-Free Federated Learning: Consensus-Based Distillation in Function Space
(IEEE TSIPN 2022), abstract and a reader's notes; the full text was not at hand. This is a reconstruction.
"""

from __future__ import annotations

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import (
    Distil,
    Mix,
    Predict,
    Reading,
    RoundPlan,
    RoundView,
    Step,
    TrainStep,
    Variable,
)
from tramfl.exchange.topology import mixing

_PAIRS = 5
"""What is drawn: who exchanges with whom in a round."""


class CMFD:
    """Nodes distil the mean of what their neighbours' models say of a shared unlabelled set."""

    shares_samples = True
    """The learner draws the shared set before the run begins."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        self._settings = settings

    def start(self) -> tuple[Variable, ...]:
        """Nothing beside w."""
        return ()

    def plan(self, view: RoundView) -> RoundPlan | None:
        """Train, predict, send the outputs, mix them, distil."""
        chosen = view.first(lambda node: view.training_seconds(node, view.samples, 0.0), view.trainers)
        if not chosen:
            return None
        settings = self._settings
        steps: list[Step] = [TrainStep(node, view.samples) for node in chosen]
        steps += [Predict(node, "p") for node in chosen]
        steps.append(Mix(mixing(settings.topology, chosen, view.draw(_PAIRS, view.round)), "p", "h"))
        steps += [Distil(node, "h", settings.distil_passes) for node in chosen]
        return RoundPlan(
            tuple(steps), f"{len(chosen)} nodes train, share their outputs and distil ({settings.topology})."
        )

    def reading(self, view: RoundView) -> Reading:
        """Every node's model; they agree in what they say, not in their weights."""
        return Reading(tuple((node, "w") for node in range(view.nodes)), None, "nodes")

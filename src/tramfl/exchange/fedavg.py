"""FedAvg and FedProx: a server averages what the nodes trained.

    every node i of the round:  w_i <- w, then K steps  w_i <- w_i - mu g_i(w_i)
    server:                     w <- sum over them of (N_i / N) w_i,  N = sum of their N_i

N_i are the samples that node i holds. FedProx trains on the loss plus (mu_p / 2) |w_i - w|^2; here each step solves
its linearised form exactly: w_i <- w_i + share (w - w_i), share = mu mu_p / (1 + mu mu_p), after the gradient's step.

The server is on one of the nodes (node 0, which then sends itself nothing), or beside them with links of its own. A
round takes the slowest of receiving, training and sending back; with `wait_for` below 1 the server goes on with the
first m of n, and the others drop what they did. Bits a round: 2 D_M for every node but the server's own.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS 2017);
Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020). Written from the equations.
"""

from __future__ import annotations

from tramfl.config import ExchangeSettings
from tramfl.exchange.plans import Combine, Reading, RoundPlan, RoundView, Send, Step, TrainStep, Variable
from tramfl.notation import NodeId


class FedAvg:
    """A server averages what the nodes trained; with `proximal` above 0, FedProx."""

    def __init__(self, settings: ExchangeSettings, nodes: int) -> None:
        self._server = nodes if settings.server == "beside" else 0

    def start(self) -> tuple[Variable, ...]:
        """The server's model."""
        return ((self._server, "global"),)

    def plan(self, view: RoundView) -> RoundPlan | None:
        """Down, train, up, average."""
        server = self._server
        chosen = view.first(lambda node: self._seconds(node, view), view.trainers)
        if not chosen or (server < view.nodes and server not in view.reporting):
            return None
        strength = view.learning_rate * view.settings.proximal
        anchor = "start" if strength else None
        steps: list[Step] = [
            Combine(node, "start", (("global", 1.0),)) if node == server else Send(server, node, "global", "start")
            for node in chosen
        ]
        steps += [TrainStep(node, view.samples, "start", "w", anchor, strength / (1 + strength)) for node in chosen]
        steps += [Send(node, server, "w", f"w/{node}") for node in chosen if node != server]
        total = sum(view.held[node] for node in chosen)
        names = [(("w" if node == server else f"w/{node}"), view.held[node] / total) for node in chosen]
        steps.append(Combine(server, "global", tuple(names)))
        where = "beside the nodes" if server == view.nodes else f"at node {server}"
        return RoundPlan(tuple(steps), f"The server {where} averages what {_count(len(chosen))} trained.")

    def _seconds(self, node: NodeId, view: RoundView) -> float:
        """When the server has a node's model."""
        down = 0.0 if node == self._server else view.sending_seconds(self._server, node, 0.0)
        trained = down + view.training_seconds(node, view.samples, down)
        return trained if node == self._server else trained + view.sending_seconds(node, self._server, trained)

    def reading(self, view: RoundView) -> Reading:
        """The server's model; nodes keep none between rounds."""
        return Reading((), (self._server, "global"), "consensus")


def _count(number: int) -> str:
    return "one node" if number == 1 else f"{number} nodes"

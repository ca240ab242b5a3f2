"""Methods in which every node keeps a model: which node trains what, and what is sent where.

plans       the steps that a method may take, and what it knows when it plans a round
topology    who exchanges with whom, and with which weights
fedavg, cyclic, gossip, gossip_async, feddc, pdmm, cmfd    one method a file, with its equations and source on top
rules       a method by its name
work        what a learner is asked to compute

Pure: no clock, draw, file, socket or PyTorch. A method plans with names of variables; `simulation/arena.py` keeps the
clock, and the learner has the weights that the names stand for.
"""

from tramfl.exchange.plans import (
    MEAN,
    Combine,
    Cross,
    Cycle,
    Distil,
    ExchangeRule,
    Forget,
    Mix,
    Place,
    Predict,
    Reading,
    RoundPlan,
    RoundView,
    Send,
    Step,
    Trade,
    TrainStep,
    Variable,
)
from tramfl.exchange.rules import rule_named, rule_names

__all__ = [
    "MEAN",
    "Combine",
    "Cross",
    "Cycle",
    "Distil",
    "ExchangeRule",
    "Forget",
    "Mix",
    "Place",
    "Predict",
    "Reading",
    "RoundPlan",
    "RoundView",
    "Send",
    "Step",
    "Trade",
    "TrainStep",
    "Variable",
    "rule_named",
    "rule_names",
]

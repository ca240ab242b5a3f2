"""Regret: how much longer a run took than it would have with loads that are known when they are decided on.

The twin of a run whose policy was given predictions has the same seed, policy and loads, and an oracle. It trains
nothing: only its schedule counts.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from tramfl.config import Budget
from tramfl.record import Regret
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.loads import LoadSource
from tramfl.simulation.roles import NullLearner

MOST_ROUNDS = 10
"""The twin is given up after this many times the rounds of its run."""


def regret_of(run: Experiment, loads: LoadSource | None = None) -> Regret | None:
    """The regret of a finished run; None where its policy knew the loads, or the oracle never got as far.

    The oracle's last round may train more than the run did: it counts up to as many samples as the run trained.
    """
    ledger = run.reached.tally.ledger
    if run.scenario.loads.known or not run.finished or ledger.samples == 0:
        return None
    scenario = replace(
        run.scenario,
        loads=replace(run.scenario.loads, prediction="oracle"),
        budget=Budget(samples=ledger.samples, rounds=MOST_ROUNDS * ledger.round + 100),
    )
    setting = dataclasses.replace(run.setting, learner=NullLearner(), judge=None, initial="w0")
    samples, seconds = 0, 0.0
    for row in Experiment(scenario, setting, loads=loads, keep_rows=False).rounds():
        trained = sum(row.samples)
        if samples + trained >= ledger.samples:
            seconds += (row.total_seconds - seconds) * (ledger.samples - samples) / trained
            return Regret(ledger.seconds - seconds, ledger.seconds / seconds)
        samples, seconds = samples + trained, row.total_seconds
    return None

"""Runs in which every node keeps a model: what was tested, how good each model is, and what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np
from msgspec import UNSET, structs

from tramfl.config import ACCURACY, LOSS
from tramfl.notation import Reals
from tramfl.record import Milestones, ModelScores, Row
from tramfl.reporting.colours import in_order
from tramfl.reporting.runs import Run

HELD_BACK = "held-back"
MEAN_MODEL = ", mean model"
"""What tables add to a method's name where the mean of the nodes' models is judged."""
ALIKE = 0.01
"""Scores that differ by less than this share are those of one model, but for rounding."""


def keeps_models(run: Run) -> bool:
    """Whether every node keeps a model; otherwise one model travels."""
    return any(row.trained is not UNSET for row in run.rows[:1])


def scores_of(row: Row) -> ModelScores | None:
    """The scores of several models, in a row that has them."""
    return None if row.models is UNSET else row.models


def last_scores(run: Run) -> ModelScores | None:
    """The scores of several models as measured last."""
    return next((row.models for row in reversed(run.rows) if row.models is not UNSET), None)


def judged_by_mean_model(runs: Iterable[Run]) -> list[Run]:
    """Runs of the methods whose nodes' models differ, once more as their tests of the mean of all models have it.

    Targets are of the mean over the nodes' models; what a run delivers is the mean model, which can be much better.
    """
    runs = list(runs)
    methods = {run.policy for run in runs if any(_differs(row) for row in run.rows)}
    return [_by_mean_model(run) for run in runs if run.policy in methods]


def _by_mean_model(run: Run) -> Run:
    budget, measure = run.settings.budget, run.measure
    rows = tuple(_with_score(row, measure.metric) for row in run.rows)
    milestones = Milestones.of(budget, rows)
    names = [f"{target:g}" for target in budget.targets]
    summary = structs.replace(
        run.summary,
        policy=f"{run.policy}{MEAN_MODEL}",
        seconds_to_target=dict(zip(names, milestones.seconds, strict=True)),
        seconds_held=UNSET if budget.held_for is None else dict(zip(names, milestones.held, strict=True)),
    )
    return Run(run.folder, run.settings, run.resolved, rows, summary)


def _with_score(row: Row, metric: str) -> Row:
    """The row with the mean model's score alone."""
    scores = scores_of(row)
    plain = structs.replace(row, test_accuracy=None, test_loss=None, metrics=UNSET, models=UNSET)
    value = None if scores is None else scores.consensus
    if value is None or metric == ACCURACY:
        return structs.replace(plain, test_accuracy=value)
    return (
        structs.replace(plain, test_loss=value) if metric == LOSS else structs.replace(plain, metrics={metric: value})
    )


def _differs(row: Row) -> bool:
    """Whether a test found the mean model to be better, or worse, than the nodes' models are in the mean."""
    scores = scores_of(row)
    if scores is None or scores.headline == "consensus" or scores.consensus is None or scores.mean is None:
        return False
    return abs(scores.consensus - scores.mean) > ALIKE * abs(scores.mean)


def what_is_tested(run: Run) -> str:
    """Which model, or which mean of models, a run's targets are of."""
    scores = last_scores(run)
    if not keeps_models(run):
        return "the model that travels" if run.settings.evaluation.readout == "last" else "the read-out of the model"
    if scores is not None and scores.headline == "consensus":
        return "the one model that all agree on"
    return "the mean over the nodes' models"


def tested_in_words(runs: Sequence[Run]) -> str:
    """Which models the figures of several methods are of; empty where one model travels in all of them."""
    if not any(keeps_models(run) for run in runs):
        return ""
    by_kind: dict[str, list[str]] = {}
    for name in in_order(run.policy for run in runs):
        run = next(run for run in runs if run.policy == name)
        by_kind.setdefault(what_is_tested(run), []).append(name)
    return "; ".join(f"{kind} ({', '.join(names)})" for kind, names in by_kind.items())


def shared_in_words(runs: Sequence[Run]) -> list[str]:
    """What nodes share beside models, which is an advantage that a reader must know of."""
    found = {}
    for run in runs:
        exchange = run.settings.exchange
        if exchange is not None and exchange.rule == "cmfd":
            kept = exchange.shared == HELD_BACK
            source = "that the nodes keep aside of their data" if kept else f"of {exchange.shared}"
            found[run.policy] = f"{run.policy}: {exchange.shared_samples:,} samples {source}, without labels"
    return list(found.values())


def sent_bits(run: Run) -> Reals:
    """What was sent up to and with each row, in bits: every transfer of a model, or what the rows say."""
    bits = [
        row.sent_bits
        if row.sent_bits is not UNSET
        else run.summary.cost.model_bits * (row.node is not None and row.node != row.holder)
        for row in run.rows
    ]
    return np.cumsum(np.array(bits, dtype=np.float64))


def mean_sent_gigabits(runs: Sequence[Run]) -> float:
    """Gbit that these runs sent, on average."""
    return fmean(float(sent_bits(run)[-1]) for run in runs) / 1e9

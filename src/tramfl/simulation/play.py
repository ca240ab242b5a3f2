"""Play one run from a scenario into a folder: begin or resume, row by row, and leave it valid however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from tramfl.config import Scenario
from tramfl.notation import BadInput, Counts
from tramfl.record import Row
from tramfl.scheduling.policy import Policy
from tramfl.simulation.experiment import Experiment, Setting
from tramfl.simulation.folder import RunFolder
from tramfl.simulation.loads import LoadSource
from tramfl.simulation.setting import scheduling_only, with_training

if TYPE_CHECKING:
    from tramfl.learning.learner import Learner

SAVE_SECONDS = 60.0
"""Wall-clock seconds between two savings of the weights during a run."""

Observe = Callable[[Experiment, Row], None]


class Request(Struct, frozen=True, kw_only=True):
    """A run that somebody wants."""

    scenario: Scenario
    out: Path | None = None
    """The folder to write, or None to keep the run in memory alone."""
    train: bool = True
    resume: bool = False
    overwrite: bool = False
    data_dir: Path | None = None
    threads: int | None = None
    """Cores to train on; None leaves PyTorch its default."""


def play(
    request: Request,
    observe: Observe | None = None,
    *,
    dataset: Any = None,
    network: Any = None,
    policy: Policy | None = None,
    loads: LoadSource | None = None,
    report: Callable[[str, int, int | None], None] | None = None,
) -> Experiment:
    """Play a run to its end, or to the user's interrupt, in which case its summary says so."""
    learner: Learner | None = None
    if request.train:
        setting, learner = with_training(
            request.scenario,
            request.data_dir,
            dataset=dataset,
            network=network,
            report=report,
            threads=request.threads,
        )
    else:
        setting = scheduling_only(request.scenario)
    folder = RunFolder(request.out) if request.out is not None else None
    done: list[Row] = []
    if folder is not None and request.resume:
        done, setting = _take_up(folder, setting, learner)
    experiment = Experiment(request.scenario, setting, policy=policy, loads=loads, done=done)
    if folder is None:
        for row in experiment.rounds():
            if observe is not None:
                observe(experiment, row)
        return experiment
    _into(folder, request, experiment, learner, observe)
    return experiment


def _into(
    folder: RunFolder, request: Request, experiment: Experiment, learner: Learner | None, observe: Observe | None
) -> None:
    if request.resume:
        writer = folder.resume(experiment.rows)
        folder.describe(experiment.scenario, experiment.setting)
    else:
        writer = folder.begin(experiment.scenario, experiment.setting, overwrite=request.overwrite)
    saved_at = time.monotonic()
    try:
        for row in experiment.rounds():
            writer.write(row)
            if learner is not None and time.monotonic() - saved_at > SAVE_SECONDS:
                _save(folder, experiment, learner)
                saved_at = time.monotonic()
            if observe is not None:
                observe(experiment, row)
    except KeyboardInterrupt:
        # The folder below is what makes the run resumable; the caller sees it in the summary.
        pass
    finally:
        writer.close()
        # An interrupt may fall between a round and its row: the file decides.
        experiment.rows[len(folder.rows()) :] = []
        if learner is not None:
            _save(folder, experiment, learner)
        folder.conclude(experiment.summary())


def _save(folder: RunFolder, experiment: Experiment, learner: Learner) -> None:
    folder.save_model(learner.weights(experiment.weights, about={"round": str(len(experiment.rows))}))


def _take_up(folder: RunFolder, setting: Setting, learner: Learner | None) -> tuple[list[Row], Setting]:
    """The rows that a resumed run may build on, and the setting with their weights."""
    rows = folder.rows()
    if learner is None:
        return rows, setting
    content = folder.model()
    if content is None:
        return [], setting
    from tramfl.learning.weights import about

    try:
        round_ = int(about(content)["round"])
    except (KeyError, ValueError):
        raise BadInput(f"{folder.path}: model.safetensors does not say which round it belongs to.") from None
    rows = rows[:round_]
    if len(rows) < round_:
        raise BadInput(f"{folder.path}: model.safetensors is of round {round_}, rounds.jsonl ends before it.")
    return rows, replace(setting, initial=learner.restore(content, drawn_by(rows, setting.held)))


def drawn_by(rows: list[Row], held: Counts) -> Counts:
    """Samples of each label that each node has trained."""
    drawn = np.zeros_like(held)
    for row in rows:
        if row.node is not None:
            drawn[row.node] += row.samples
    return drawn

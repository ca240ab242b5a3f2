"""Processes that train several nodes' models side by side; what comes out is what one process would compute.

Each process builds the run's learner once. A training is a function of its arguments and of the seed, so it does not
matter which process does it, or when.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tramfl.config import Scenario
from tramfl.exchange.work import LocalTraining
from tramfl.learning.threads import use_threads
from tramfl.learning.training.building import build_learner
from tramfl.processes import no_interrupt, without_script, workers_with

if TYPE_CHECKING:
    from tramfl.learning.training.peers import PeerLearner

Arrays = list[NDArray[np.generic]]
Task = tuple[LocalTraining, Arrays, Arrays | None]
"""What to train, from which weights, towards which anchor."""


class Crew:
    """A few processes that train."""

    def __init__(self, processes: int, scenario: Scenario, data_dir: Path | None, threads: int | None) -> None:
        # The last digits depend on the number of threads: a worker has as many as this process.
        arguments = scenario, data_dir, threads or torch.get_num_threads()
        self._pool = ProcessPoolExecutor(processes, workers_with(__name__), _begin, arguments)

    def train(
        self, tasks: Sequence[tuple[LocalTraining, list[Tensor], list[Tensor] | None]]
    ) -> list[tuple[list[Tensor], float]]:
        """The models after trainings that do not wait for each other, in their order, and their losses."""
        sent = [
            (item, _arrays(parent), None if anchor is None else _arrays(anchor)) for item, parent, anchor in tasks
        ]
        with no_interrupt(), without_script():  # the first training starts the processes
            waiting = [self._pool.submit(_train, task) for task in sent]
        found = [future.result() for future in waiting]
        return [([torch.from_numpy(array) for array in arrays], loss) for arrays, loss in found]

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


class _Worker:
    learner: ClassVar[PeerLearner]


def _begin(scenario: Scenario, data_dir: Path | None, threads: int) -> None:
    from tramfl.learning.training.peers import PeerLearner  # noqa: PLC0415  # peers imports this module

    # Ctrl-C reaches every process of a terminal: the run ends its crew, after the trainings in hand.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    use_threads(threads)
    learner = build_learner(scenario, data_dir, kind=PeerLearner)
    assert isinstance(learner, PeerLearner)
    _Worker.learner = learner


def _end_with_the_run() -> None:
    """End a worker whose run was killed: it would wait for work forever."""
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(1)


def _train(task: Task) -> tuple[Arrays, float]:
    item, parent, anchor = task
    towards = None if anchor is None else _tensors(anchor)
    weights, loss = _Worker.learner.trained(item, _tensors(parent), towards)
    return _arrays(weights), loss


def _arrays(tensors: Sequence[Tensor]) -> Arrays:
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def _tensors(arrays: Arrays) -> list[Tensor]:
    return [torch.from_numpy(np.array(array)) for array in arrays]

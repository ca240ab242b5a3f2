"""TensorBoard, MLflow and Weights & Biases follow a run by reading its rows. All are optional extras."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tramfl.config import as_table
from tramfl.notation import BadInput
from tramfl.record import TENSORBOARD_FOLDER, Row
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import leaves

FIGURES = ("test_accuracy", "test_loss", "validation_loss", "total_seconds", "label_variance")
"""What of a row is worth a curve; over rounds, as trackers count steps."""


class Tracker(Protocol):
    """Follows one run."""

    def track(self, row: Row) -> None:
        """A round is done."""
        ...

    def end(self, status: str) -> None:
        """The run is finished, stopped, interrupted or failed."""
        ...


class Trackers:
    """The trackers of a run. Each opens at the first row, when the run's folder is known to be its own."""

    def __init__(self, names: Sequence[str], request: Request) -> None:
        for name in names:
            if name not in _KNOWN:
                raise BadInput(f"--track {name}: choose one of {', '.join(_KNOWN)}.")
            _KNOWN[name].check()
        self._names, self._request = tuple(dict.fromkeys(names)), request
        self._open: list[Tracker] = []

    def track(self, row: Row) -> None:
        """A round is done."""
        if not self._open:
            self._open = [_KNOWN[name](self._request) for name in self._names]
        for tracker in self._open:
            tracker.track(row)

    def end(self, status: str) -> None:
        """The run is finished, stopped, interrupted or failed."""
        for tracker in self._open:
            tracker.end(status)


@contextmanager
def follow(names: Sequence[str], request: Request) -> Iterator[Trackers]:
    """Follow a run with the named trackers; a run that ends without a word of its status has failed."""
    trackers = Trackers(names, request)
    try:
        yield trackers
    except BaseException:
        trackers.end("failed")
        raise


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    for name in FIGURES:
        value = getattr(row, name)
        if value is not None:
            yield name, value
    yield from (row.metrics or {}).items()
    yield "samples", float(sum(row.used))


class _TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, request: Request) -> None:
        from tensorboard.summary import Writer

        self._writer: Any = Writer(str((request.out or Path()) / TENSORBOARD_FOLDER))

    @staticmethod
    def check() -> None:
        """BadInput where it is not installed."""
        _need("tensorboard", "tensorboard.summary")

    def track(self, row: Row) -> None:
        """A point on every curve."""
        for name, value in _figures(row):
            self._writer.add_scalar(name, value, row.round)

    def end(self, status: str) -> None:
        """Write what is still to be written."""
        self._writer.close()


class _MLflow:
    """A run of the experiment `tramfl`, where MLFLOW_TRACKING_URI or MLflow's default says."""

    STATUS: ClassVar = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
    FOLDER: ClassVar = "tramfl.folder"

    def __init__(self, request: Request) -> None:
        with self._speaking():
            from mlflow.tracking import MlflowClient

            # How it sets up its database is of no interest beside a run's progress.
            logging.getLogger("mlflow").setLevel(logging.WARNING)
            self._client: Any = MlflowClient()
            found = self._client.get_experiment_by_name("tramfl")
            experiment = found.experiment_id if found else self._client.create_experiment("tramfl")
            self._run = self._taken_up(experiment, request) or self._begun(experiment, request)

    @staticmethod
    def check() -> None:
        """BadInput where it is not installed."""
        _need("mlflow", "mlflow.tracking")

    def _taken_up(self, experiment: str, request: Request) -> str | None:
        """The run that a resumed one was followed with before."""
        if not request.resume or request.out is None:
            return None
        runs = self._client.search_runs([experiment], max_results=1000)
        folder = str(request.out.absolute())
        run = next((r.info.run_id for r in runs if r.data.tags.get(self.FOLDER) == folder), None)
        if run is not None:
            self._client.update_run(run, status="RUNNING")
        return run

    def _begun(self, experiment: str, request: Request) -> str:
        from mlflow.entities import Param

        scenario = request.scenario
        name = f"{scenario.name} {scenario.method_name} seed {scenario.seed}"
        tags = {self.FOLDER: str(request.out.absolute())} if request.out is not None else None
        run: str = self._client.create_run(experiment, run_name=name, tags=tags).info.run_id
        self._client.log_batch(run, params=[Param(k, str(v)) for k, v in leaves(as_table(scenario))])
        return run

    def track(self, row: Row) -> None:
        """A point on every curve."""
        from mlflow.entities import Metric

        at = int(row.total_seconds * 1000)
        with self._speaking():
            self._client.log_batch(self._run, metrics=[Metric(n, v, at, row.round) for n, v in _figures(row)])

    def end(self, status: str) -> None:
        """Report how the run ended."""
        with self._speaking():
            self._client.set_terminated(self._run, self.STATUS[status])

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            first = str(error).splitlines()[0]
            raise BadInput(f"--track mlflow: {first} Set MLFLOW_TRACKING_URI to a store that works.") from None


class _WandB:
    """A run of the project `tramfl`; WANDB_MODE=offline keeps it on this machine, in the run's folder."""

    EXIT: ClassVar = {"finished": 0, "stopped": 0, "interrupted": 1, "failed": 1}

    def __init__(self, request: Request) -> None:
        import wandb

        scenario = request.scenario
        folder = request.out.absolute() if request.out is not None else Path().absolute()
        # The folder names the run, so that a resumed run goes on under the same name.
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "tramfl"),
                id=name,
                resume="allow" if request.resume else None,
                name=f"{scenario.name} {scenario.method_name} seed {scenario.seed}",
                dir=folder,
                config=dict(leaves(as_table(scenario))),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            first = str(error).splitlines()[0]
            raise BadInput(f"--track wandb: {first} Log in with wandb login, or set WANDB_MODE=offline.") from None

    @staticmethod
    def check() -> None:
        """BadInput where it is not installed."""
        _need("wandb", "wandb")

    def track(self, row: Row) -> None:
        """A point on every curve."""
        self._run.log(dict(_figures(row)), step=row.round)

    def end(self, status: str) -> None:
        """Close the run with the way it ended."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=self.EXIT[status])


_KNOWN: dict[str, type[_TensorBoard] | type[_MLflow] | type[_WandB]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WandB,
}


def _need(name: str, module: str) -> None:
    try:
        import_module(module)
    except ImportError:
        raise BadInput(f"--track {name} needs an extra: pip install 'tramfl[trackers]'.") from None

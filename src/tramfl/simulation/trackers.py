"""TensorBoard and MLflow follow a run by reading its rows. Both are optional extras."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tramfl.config import as_table
from tramfl.notation import BadInput
from tramfl.record import Row
from tramfl.simulation.play import Request

Track = Callable[[Row], None]

FIGURES = ("test_accuracy", "test_loss", "validation_loss", "total_seconds", "label_variance")
"""What of a row is worth a curve; over rounds, as trackers count steps."""


@contextmanager
def follow(names: Sequence[str], request: Request) -> Iterator[Track]:
    """Follow a run with the named trackers until the block ends."""
    with ExitStack() as stack:
        tracks = [stack.enter_context(_tracker(name)(request)) for name in names]

        def track(row: Row) -> None:
            for each in tracks:
                each(row)

        yield track


def _tracker(name: str) -> Callable[[Request], Any]:
    known = {"tensorboard": _tensorboard, "mlflow": _mlflow}
    if name not in known:
        raise BadInput(f"--track {name}: choose one of {', '.join(known)}.")
    return known[name]


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    for name in FIGURES:
        value = getattr(row, name)
        if value is not None:
            yield name, value
    yield "samples", float(sum(row.used))


@contextmanager
def _tensorboard(request: Request) -> Iterator[Track]:
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise BadInput("--track tensorboard needs an extra: pip install 'tramfl[trackers]'.") from None
    writer = Writer(str((request.out or Path()) / "tensorboard"))

    def track(row: Row) -> None:
        for name, value in _figures(row):
            writer.add_scalar(name, value, row.round)

    try:
        yield track
    finally:
        writer.close()


@contextmanager
def _mlflow(request: Request) -> Iterator[Track]:
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise BadInput("--track mlflow needs an extra: pip install 'tramfl[trackers]'.") from None
    client = MlflowClient()
    scenario = request.scenario
    found = client.get_experiment_by_name("tramfl")
    experiment = found.experiment_id if found else client.create_experiment("tramfl")
    run = client.create_run(experiment, run_name=f"{scenario.name} {scenario.policy} seed {scenario.seed}")
    identity = run.info.run_id
    client.log_batch(identity, params=[Param(k, str(v)) for k, v in _flat(as_table(scenario))])

    def track(row: Row) -> None:
        at = int(row.total_seconds * 1000)
        client.log_batch(identity, metrics=[Metric(n, v, at, row.round) for n, v in _figures(row)])

    ended = "FAILED"
    try:
        yield track
        ended = "FINISHED"
    finally:
        client.set_terminated(identity, ended)


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

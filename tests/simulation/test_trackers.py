"""TensorBoard and MLflow really get the rows: both are read back with their own readers."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import Cli
from tramfl.notation import BadInput
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.trackers import follow

RUN = ("run", "--rounds", "3", "--target", "1", "--out", "run", "--quiet")


def accuracies(folder: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [(row["round"], row["test_accuracy"]) for row in rows if row["test_accuracy"] is not None]


def test_tensorboard_shows_every_round_of_a_run_and_of_its_resumption(cli: Cli, tmp_path: Path) -> None:
    assert cli(*RUN, "--track", "tensorboard").code == 0
    assert cli("run", "--resume", "--rounds", 5, "--out", "run", "--track", "tensorboard").code == 0
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    names = {"test_accuracy", "test_loss", "validation_loss", "total_seconds", "label_variance", "samples"}
    assert set(events.Tags()["tensors"]) == names
    found = [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors("test_accuracy")]
    assert found == [(step, pytest.approx(value)) for step, value in accuracies(tmp_path / "run")]
    assert len(found) == 5


def test_a_run_that_replaces_another_does_not_keep_its_curves(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "run/tensorboard"
    run = (*RUN, "--no-training")
    assert cli(*run, "--track", "tensorboard").code == 0
    assert cli(*run, "--seed", 1, "--overwrite", "--track", "tensorboard").code == 0
    events = EventAccumulator(str(place))
    events.Reload()
    assert [event.step for event in events.Tensors("total_seconds")] == [1, 2, 3]
    assert len(list(place.iterdir())) == 1
    assert cli(*run, "--seed", 2, "--overwrite").code == 0
    assert not place.exists()


def query(store: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(store)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_mlflow_has_the_settings_every_round_and_how_the_run_ended(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    done = cli(*RUN, "--track", "mlflow")
    assert (done.code, done.err) == (0, ""), "MLflow keeps its own remarks to itself"
    assert query(store, "select name, status from runs") == [("digits-5-uneven load-aware seed 0", "FINISHED")]
    parameters: dict[str, str] = dict(query(store, "select key, value from params"))
    assert (parameters["policy"], parameters["training.batch_size"], parameters["seed"]) == ("load-aware", "32", "0")
    curve = "select step, value from metrics where key = 'test_accuracy' order by step"
    assert query(store, curve) == accuracies(tmp_path / "run")

    # Resumed, it is the same run in MLflow too.
    assert cli("run", "--resume", "--rounds", 5, "--out", "run", "--track", "mlflow", "--quiet").code == 0
    assert query(store, "select status from runs") == [("FINISHED",)]
    assert query(store, curve) == accuracies(tmp_path / "run")
    assert len(query(store, curve)) == 5


def test_an_interrupted_run_counts_as_killed_in_mlflow(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tramfl.learning.training.learner import Learner

    store = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    calls: list[int] = []
    original = Learner.scores

    def scores(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(Learner, "scores", scores)
    assert cli(*RUN, "--track", "mlflow").code == 1
    assert query(store, "select status from runs") == [("KILLED",)]


def test_a_store_that_does_not_work_is_named_in_one_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "carrier-pigeon://roof")
    cli(*RUN, "--no-training", "--track", "mlflow").refused("--track mlflow", "MLFLOW_TRACKING_URI")


def test_a_tracker_nobody_knows_is_refused_with_those_there_are() -> None:
    request = Request(scenario=scenario_named("digits-3"))
    with (
        pytest.raises(BadInput, match="--track neptune: choose one of tensorboard, mlflow"),
        follow(["neptune"], request),
    ):
        pass


def test_weights_and_biases_keeps_every_round_of_a_run_off_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    assert cli(*RUN, "--track", "wandb").code == 0
    (file,) = (tmp_path / "run").rglob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    found: list[tuple[int, Any]] = []
    while (content := store.scan_data()) is not None:
        record = Record.FromString(content)
        items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if "test_accuracy" in items:
            found.append((record.history.step.num or items["_step"], items["test_accuracy"]))
    assert found == [(step, pytest.approx(value)) for step, value in accuracies(tmp_path / "run")]

"""What a user brings, as `tramfl.simulate`, `tramfl.compare` and the command line take it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional

import tramfl
from tests.conftest import Cli
from tramfl.notation import BadInput
from tramfl.reporting import load_run
from tramfl.reporting.runs import diverged_rounds
from tramfl.simulation.scenarios import scenario_named

rng = np.random.default_rng(0)
TABLE = rng.normal(size=(90, 4))
LABELS = (TABLE[:, 0] > 0).astype(int)
DATA = tramfl.Data((TABLE, LABELS), (TABLE[:30], LABELS[:30]), classes=("low", "high"), name="gauges")
APP = tramfl.App(model=nn.Linear(4, 2), data=DATA)
WEIGHTS = 4 * 2 + 2
IID = {"partition": {"layout": "iid", "nodes": 3}}
RESOLVED = "tests.simulation.test_own_apps"
SQUARES = tramfl.App(
    model=nn.Linear(4, 1),
    data=tramfl.Data((TABLE, TABLE[:, 1]), (TABLE[:30], TABLE[:30, 1]), strata=LABELS),
    loss=lambda outputs, targets: functional.mse_loss(outputs[:, 0], targets),
    metrics=["mae"],
)


def run_of(app: Any = APP, **arguments: Any) -> tramfl.Result:
    settings = {**IID, **arguments.pop("settings", {})}
    return tramfl.simulate(app=app, settings=settings, **{"rounds": 2, **arguments})


def test_a_table_of_settings_changes_its_keys_alone_and_arguments_stay() -> None:
    result = tramfl.simulate("digits-3", rounds=2, targets=0.3, train=False, settings={"budget": {"seconds": 9.0}})
    budget = result.scenario.budget
    assert (budget.rounds, budget.targets, budget.seconds, budget.samples) == (2, (0.3,), 9.0, 40_000)
    with pytest.raises(BadInput, match=r"key `budget.rounds`: expected a whole number >= 1"):
        tramfl.simulate("digits-3", rounds=0, train=False, settings={"budget": {"seconds": 9.0}})
    with pytest.raises(BadInput, match=r"give keys and their values, not a list"):
        tramfl.simulate("digits-3", settings=["rounds"])  # type: ignore[arg-type]
    mix = {str(label): 1.0 + label for label in range(10)}
    shares = tramfl.simulate("digits-3", rounds=1, train=False, settings={"balance": mix})
    assert shares.scenario.balance == mix, "a table of the user's own words is taken as a whole"


def test_a_named_scenario_charges_the_users_model_and_not_the_papers() -> None:
    result = run_of()
    assert result.summary.cost.model_bits == 32 * WEIGHTS
    assert (result.scenario.name, result.scenario.dataset) == ("gauges", "gauges")
    kept = run_of(settings={"cost.model_bits": 5e6})
    assert kept.summary.cost.model_bits == 5e6
    paper = scenario_named("digits-3")
    own = tramfl.simulate(paper, app=APP, rounds=1, settings=IID)
    assert own.summary.cost.model_bits == paper.cost.model_bits, "a scenario of the caller's own means what it says"


def test_an_app_is_an_object_or_its_place_and_nothing_else(tmp_path: Path) -> None:
    by_object = run_of(out=tmp_path / "object")
    by_place = run_of(f"{RESOLVED}:APP", out=tmp_path / "place")
    by_key = run_of(None, settings={"app": f"{RESOLVED}:APP"})
    assert by_object.summary.total_seconds == by_place.summary.total_seconds == by_key.summary.total_seconds
    again = tramfl.simulate(tmp_path / "place" / "config.toml", out=tmp_path / "again")
    assert again.rows == by_place.rows, "a run whose app has a place can be played again from its file alone"
    for wrong, words in ((tramfl.App, "class, App"), (nn.Linear(4, 2), "Linear"), (3, "int")):
        with pytest.raises(BadInput, match=rf"app is a {words}; give a tramfl.App"):
            run_of(wrong)


def fails(*_: Any) -> Any:
    raise KeyError("gauge")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": lambda width: nn.Linear(width, 2)}, r"training.network = '<lambda>' raised TypeError: .*'width'"),
        ({"data": fails}, r"app: data raised KeyError: 'gauge' \(test_own_apps.py, line \d+\)"),
        ({"balance": fails}, r"app: balance raised KeyError: 'gauge' \(test_own_apps.py, line \d+\)"),
        ({"balance": [0] * 90}, "app: balance is a list, not a function"),
        ({"loss": fails}, r"app: the loss does not take outputs of .*'gauge'"),
        ({"augment": lambda inputs: None}, "app: augment returned None"),
        ({"augment": lambda inputs: inputs[:, :3]}, r"round 1: training at node \d raised RuntimeError: mat1"),
        ({"step": fails}, r"round 1: training at node \d raised KeyError: 'gauge' \(test_own_apps.py"),
        ({"metrics": {"own": fails}}, r"the metric 'own' raised KeyError: 'gauge' \(test_own_apps.py"),
        ({"optimizer": fails}, r"app: optimizer raised KeyError: 'gauge' \(test_own_apps.py"),
        (
            {"optimizer": lambda parameters: torch.optim.SGD(nn.Linear(2, 2).parameters())},
            "app: optimizer has none of the network's weights",
        ),
        (
            {"data": tramfl.Data((TABLE, LABELS), (TABLE[:30, :3], LABELS[:30]))},
            "the test raised RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
    ],
)
def test_what_a_users_code_raises_is_one_sentence_that_names_the_part_and_the_line(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        run_of(dataclasses.replace(APP, **changes))
    assert "\n" not in str(caught.value)


class Unread(torch.utils.data.Dataset[Any]):
    """A data set whose 50th sample cannot be read."""

    targets = LABELS.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == 50:
            raise OSError("scan 50 is damaged")
        return torch.tensor(TABLE[index], dtype=torch.float32), self.targets[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_ends_a_run_in_one_sentence(workers: int) -> None:
    app = tramfl.App(model=lambda: nn.Linear(4, 2), data=tramfl.Data(Unread(), (TABLE[:30], LABELS[:30])))
    with pytest.raises(BadInput, match=r"raised OSError: scan 50 is damaged") as caught:
        run_of(app, rounds=9, settings={"training.workers": workers, "partition.validation_share": 0.0})
    assert "\n" not in str(caught.value)


def test_a_policy_or_loads_that_raise_are_one_sentence() -> None:
    class Loads:
        at = fails

    with pytest.raises(
        BadInput, match=r"round 1: the policy raised KeyError: 'gauge' \(test_own_apps.py, line \d+\)"
    ):
        tramfl.simulate("digits-3", rounds=1, train=False, policy=type("Mine", (), {"decide": fails})())
    with pytest.raises(BadInput, match=r"loads: at\(1\) raised KeyError: 'gauge'"):
        tramfl.simulate("digits-3", rounds=1, train=False, loads=Loads())


def test_data_frames_are_arrays() -> None:
    data = tramfl.Data((pd.DataFrame(TABLE), pd.Series(LABELS)), (TABLE[:30], LABELS[:30]), name="gauges")
    frames, arrays = run_of(dataclasses.replace(APP, data=data)), run_of()
    assert [row.test_loss for row in frames.rows] == [row.test_loss for row in arrays.rows]


def test_a_run_that_diverges_stops_with_its_row_where_the_scenario_says_so(tmp_path: Path) -> None:
    keys = {"training.learning_rate": 1e30, "training.divergence": "stop"}
    result = run_of(SQUARES, rounds=5, settings=keys, out=tmp_path)
    last = result.summary.rounds
    assert last < 5
    assert (result.summary.status, result.summary.diverged) == ("stopped", (last,))
    assert f"the training loss of round {last} is not a finite number" in repr(result)
    assert f"the training loss of round {last}" in result._repr_html_()
    assert load_run(tmp_path).rows[-1].diverged is True
    resumed = run_of(SQUARES, rounds=5, settings=keys, out=tmp_path, resume=True)
    assert resumed.summary == result.summary, "it does not go on with weights that are not numbers"


def test_a_result_says_in_text_and_in_a_notebook_from_which_round_on_its_run_diverged() -> None:
    with pytest.warns(UserWarning, match="the training loss"):
        result = run_of(SQUARES, rounds=15, settings={"training.learning_rate": 1e30})
    rounds = [row.round for row in result.rows if row.diverged is True]
    assert len(rounds) > 10
    sentence = f"diverged: from round {rounds[0]} on, its loss was not a finite number in at least 10 rounds"
    assert sentence in repr(result)
    assert sentence in result._repr_html_()
    assert "diverged" not in repr(run_of())


def test_a_step_that_knows_no_loss_has_not_diverged(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any, context: Any) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1])

    result = run_of(dataclasses.replace(APP, step=step, metrics=["accuracy"]), out=tmp_path)
    assert result.rows[-1].test_accuracy is not None
    assert result.rows[-1].test_loss is None
    assert diverged_rounds(load_run(tmp_path)) == []


def test_a_comparison_takes_an_app_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"policies": ["load-aware", "random"], "seeds": 2, "settings": IID, "rounds": 2}
    found = tramfl.compare(app=APP, out=tmp_path / "object", **keys)
    assert [(run.scenario, run.policy, run.seed) for run in found.runs] == [
        ("gauges", policy, seed) for seed in (0, 1) for policy in ("load-aware", "random")
    ]
    assert {run.summary.cost.model_bits for run in found.runs} == {32.0 * WEIGHTS}
    before = {run.folder: (run.folder / "rounds.jsonl").read_bytes() for run in found.runs}
    tramfl.compare(app=APP, out=tmp_path / "object", **keys)
    assert before == {folder: (folder / "rounds.jsonl").read_bytes() for folder in before}
    alone = run_of(seed=1)
    (same,) = (run for run in found.runs if (run.policy, run.seed) == ("load-aware", 1))
    assert [row.test_loss for row in same.rows] == [row.test_loss for row in alone.rows]


OWN = """
from torch import nn
from torch.nn import functional
import numpy as np
import tramfl

table = np.random.default_rng(0).normal(size=(90, 4))
app = tramfl.App(
    model=lambda: nn.Linear(4, 1),
    data=tramfl.Data((table, table[:, 1]), (table[:30], table[:30, 1]), strata=np.arange(90) % 3),
    loss=lambda outputs, targets: functional.mse_loss(outputs[:, 0], targets),
    metrics=["mae"],
)
"""
KEYS = ("--set", "partition.layout=iid", "--set", "partition.nodes=2", "--set", "budget.metric=mae", "--rounds", 2)


def test_the_command_line_takes_an_app_targets_of_its_metric_and_tracks_them(
    cli: Cli, tmp_path: Path, modules_of_the_current_folder: None
) -> None:
    (tmp_path / "gauges.py").write_text(OWN)
    one = cli("run", "--app", "gauges:app", *KEYS, "--target", "1.5,0.01", "--track", "tensorboard")
    assert one.code == 0, one.err
    assert "MAE 1.5: first reached" in one.out
    events = EventAccumulator(str(tmp_path / "runs/gauges.app-load-aware-0/tensorboard"))
    events.Reload()
    assert "mae" in events.Tags()["tensors"]
    two = cli("compare", "--app", "gauges:app", *KEYS, "--policies", "load-aware,random", "--seeds", 1, "--jobs", 1)
    assert two.code == 0, two.err
    assert load_run(tmp_path / "runs/compare/gauges.app/random-0").summary.cost.model_bits == 32 * 5
    cli("run", "--target", "ninety").refused("--target ninety: give numbers with commas between")
    cli("run", "--target", "1.5").refused("--target 1.5: give accuracies between 0 and 1")

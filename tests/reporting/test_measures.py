"""A run names its own metric everywhere: tables, figures, page and live view; played by a small real regression."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

import tramfl
from tramfl.config import Budget, Partition, Scenario, TrainingSettings
from tramfl.record import Row
from tramfl.reporting import Run, as_table, load_run, times_to_target, verdict
from tramfl.reporting.dashboard.feed import Feed
from tramfl.reporting.dashboard.folder import FolderSource
from tramfl.reporting.figures import write_figures
from tramfl.reporting.measures import Measure, Target, in_order_of_difficulty
from tramfl.reporting.page import render
from tramfl.reporting.runs import diverged_rounds, doubts

MAE = Measure("mae", lower=True)


def regression() -> tramfl.App:
    rng = np.random.default_rng(0)
    inputs, strata = rng.normal(size=(120, 4)), np.arange(120) % 3
    targets = inputs @ np.array([2.0, -1.0, 0.5, 1.0]) + strata
    data = tramfl.Data((inputs, targets), (inputs, targets), strata=strata, classes=("x", "y", "z"))

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(outputs[:, 0], wanted)

    return tramfl.App(model=lambda: nn.Linear(4, 1), data=data, loss=loss, metrics=["mae", "r2"])


SCENARIO = replace(
    Scenario(),
    name="houses",
    variance_limit=400.0,
    partition=Partition(layout="iid", nodes=3),
    training=TrainingSettings(learning_rate=0.02),
    budget=Budget(metric="mae", targets=(1.4, 1.0), rounds=12),
)


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    place = tmp_path_factory.mktemp("houses")
    for policy in ("load-aware", "random"):
        tramfl.simulate(SCENARIO, policy=policy, app=regression(), out=place / policy)
    return [load_run(place / "load-aware"), load_run(place / "random")]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("diverged") / "run"
    training = replace(SCENARIO.training, learning_rate=1e30)
    with pytest.warns(UserWarning, match="the training loss at node"):
        tramfl.simulate(replace(SCENARIO, training=training), app=regression(), out=place)
    return load_run(place)


def packed_data(page: str) -> Any:
    found = re.search(r'<script[^>]* id="data"[^>]*>([^<]*)<', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_of_an_error_the_lower_target_is_the_harder_one() -> None:
    aims = [Target(MAE, 0.5), Target(MAE, 2.0), Target(Measure(), 0.9), Target(Measure(), 0.7)]
    assert [str(aim) for aim in in_order_of_difficulty(aims)] == ["MAE 2", "MAE 0.5", "70 %", "90 %"]
    assert MAE.best([3.0, 1.0]) == 1.0


def test_a_table_names_the_metric_and_its_direction(houses: list[Run]) -> None:
    console = Console(width=120, record=True)
    console.print(as_table(times_to_target(houses)))
    text = " ".join(console.export_text().split())
    assert "Virtual seconds to reach a value of MAE (lower is better)" in text
    assert text.index("MAE 1.4") < text.index("MAE 1 ")
    assert "%" not in text
    assert "accuracy" not in text


def test_the_verdict_on_one_run_speaks_of_its_metric(houses: list[Run]) -> None:
    said = verdict(houses[:1])
    assert re.search(r"MAE 1(\.4)? (after|in)", said), said
    assert "accuracy" not in said
    assert "MAE" in verdict(houses)


def test_the_page_draws_the_metric_where_accuracy_is_drawn(houses: list[Run]) -> None:
    page = render(houses)
    assert "accuracy" not in page.partition('id="library"')[0].lower().partition("<style")[0]
    assert "Test MAE over virtual time" in page
    assert "Lower and further left is better." in page
    assert "MAE: lower is better." in page
    assert "Last MAE" in page
    view = packed_data(page)["plots"]["s0-metric0"]["views"][0]
    line = next(trace for trace in view["data"] if trace.get("name") == "load-aware")
    assert line["y"][-1] == pytest.approx(houses[0].measured, rel=1e-4)
    assert "Test MAE %{y:.4g}" in line["hovertemplate"]
    assert view["layout"]["yaxis"]["title"]["text"] == "Test MAE"
    assert "ticksuffix" not in view["layout"]["yaxis"]


def test_the_table_of_rounds_has_the_metric(houses: list[Run]) -> None:
    page = render(houses[:1])
    assert '<th scope="col">MAE</th>' in page
    values = packed_data(page)["rounds"]["tested"]
    assert values == [MAE.value(metrics(row)["mae"]) if row.node is not None else "" for row in houses[0].rows]


def metrics(row: Row) -> dict[str, float]:
    assert isinstance(row.metrics, dict)
    return row.metrics


def test_figures_are_called_after_the_metric(houses: list[Run], tmp_path: Path) -> None:
    names = [path.name for path in write_figures(houses, tmp_path, "svg")]
    assert "mae-over-time.svg" in names
    assert "accuracy-over-time.svg" not in names


def test_runs_with_different_metrics_are_raced_and_drawn_apart(houses: list[Run]) -> None:
    ours, theirs = houses
    budget = replace(theirs.settings.budget, metric="r2", direction=None, targets=(0.5,))
    summary = replace(theirs.summary, seconds_to_target={"0.5": 1.0})
    other = Run(theirs.folder, replace(theirs.settings, budget=budget), theirs.resolved, theirs.rows, summary)
    times = times_to_target([ours, other])
    assert {(time.policy, str(time.aim)) for time in times} == {
        ("load-aware", "MAE 1.4"),
        ("load-aware", "MAE 1"),
        ("random", "R² 0.5"),
    }
    assert not any(time.wins for time in times)
    page = render([ours, other])
    assert "Test MAE over virtual time" in page
    assert "Test R² over virtual time" in page
    assert any("budget.metric" in note for note in doubts([ours, other]))
    said = verdict([ours, other])
    assert "MAE" in said
    assert "R²" in said


def test_the_live_view_gets_the_metric_its_direction_and_its_values(houses: list[Run]) -> None:
    feed = Feed(FolderSource(houses[0].folder))
    news = json.loads(feed.changes("", 0, -1, 0.0))
    assert (news["metric"], news["now"]["metric"], news["now"]["lower_is_better"]) == ("MAE", "mae", True)
    assert news["rows"][-1][14] == houses[0].measured


def test_a_round_without_a_finite_loss_says_so_in_its_row_and_others_say_nothing(
    houses: list[Run], diverged: Run
) -> None:
    assert all(b'"diverged"' not in (run.folder / "rounds.jsonl").read_bytes() for run in houses)
    assert all("diverged" not in (run.folder / "summary.json").read_text() for run in houses)
    rounds = [row.round for row in diverged.rows if row.diverged is True]
    assert rounds
    assert diverged_rounds(diverged) == rounds
    assert diverged.summary.diverged == tuple(rounds[:10])
    (note,) = [note for note in doubts([diverged]) if "diverged" in note]
    assert f"from round {rounds[0]} on" in note
    page = render([diverged])
    assert note in page
    reasons = packed_data(page)["rounds"]["reason"]
    assert "It diverged" in reasons[rounds[0] - 1]
    news = json.loads(Feed(FolderSource(diverged.folder)).changes("", 0, -1, 0.0))
    assert [row[0] for row in news["rows"] if row[19]] == rounds

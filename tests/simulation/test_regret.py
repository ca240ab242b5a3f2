"""How much longer a run took than with an oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tramfl.config import Budget, LoadModel, Scenario
from tramfl.record import Regret, RunFolder
from tramfl.reporting import load_runs
from tramfl.reporting.colours import looks
from tramfl.reporting.run_plots import inside
from tramfl.reporting.summary import regret_text
from tramfl.simulation.play import Request, play
from tramfl.simulation.scenarios import scenario_named


def scenario(**loads: object) -> Scenario:
    model = LoadModel(kind="ar1", clock="slot", **loads)  # type: ignore[arg-type]
    return replace(scenario_named("mnist-3"), loads=model, budget=Budget(rounds=25))


def test_the_regret_is_the_runs_time_against_that_of_its_oracle_for_as_many_samples(tmp_path: Path) -> None:
    run = play(Request(scenario=scenario(prediction="last"), train=False, out=tmp_path / "run"))
    regret = run.summary().regret
    assert isinstance(regret, Regret)
    assert RunFolder(tmp_path / "run").summary() == run.summary()
    oracle = play(Request(scenario=replace(scenario(), budget=Budget(samples=run.summary().samples)), train=False))
    before, last = oracle.rows[-2:]
    missing = run.summary().samples - sum(before.used)
    seconds = before.total_seconds + (last.total_seconds - before.total_seconds) * missing / sum(last.samples)
    assert regret.seconds == pytest.approx(run.summary().total_seconds - seconds)
    assert regret.ratio == pytest.approx(run.summary().total_seconds / seconds)


def test_a_run_that_knew_its_loads_has_no_regret_in_its_file(tmp_path: Path) -> None:
    for number, prediction in enumerate(("oracle", 0.0)):
        folder = RunFolder(tmp_path / str(number))
        run = play(Request(scenario=scenario(prediction=prediction), train=False, out=folder.path))
        assert run.summary().regret is UNSET
        assert "regret" not in (folder.path / "summary.json").read_text()


def test_a_resumed_run_has_the_regret_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole = scenario(prediction="blend")
    part = replace(whole, budget=Budget(rounds=10))
    play(Request(scenario=part, train=False, out=tmp_path / "run"))
    resumed = play(Request(scenario=whole, train=False, out=tmp_path / "run", resume=True))
    assert resumed.summary().regret == play(Request(scenario=whole, train=False)).summary().regret


def test_a_run_faster_than_its_oracle_says_so() -> None:
    assert regret_text(Regret(-2.0, 0.5)).startswith("2.00 s shorter")
    assert regret_text(Regret(2.0, 1.5)) == "2.00 s longer than with loads known exactly (1.500 times as long)"


def test_the_page_sets_predicted_against_actual_times_and_loads_only_where_rows_have_both(tmp_path: Path) -> None:
    for number, (prediction, there) in enumerate((("last", True), (None, False))):
        wanted = scenario(prediction=prediction) if prediction else replace(scenario(), loads=LoadModel())
        play(Request(scenario=wanted, train=False, out=tmp_path / str(number)))
        runs = load_runs([tmp_path / str(number)])
        figures = {plot.key: plot for plot in inside(runs, looks([runs[0].policy]))}
        assert ("foreseen" in figures) == there
        if there:
            assert "longer than with loads known exactly" in figures["foreseen"].words
            trained = [row for row in runs[0].rows if row.node is not None]
            assert len(figures["foreseen"].views[0]["data"][0]["y"]) == len(trained)
            compute, links = figures["foreseen-loads"].views[0]["data"]
            assert len(compute["y"]) == len(trained)
            assert len(links["y"]) == sum(row.node != row.holder for row in trained)
            row, node = trained[0], trained[0].node
            assert node is not None
            assert row.actual is not UNSET
            actual, predicted = row.actual.flops[node], row.loads.flops[node]
            assert actual is not None
            assert compute["customdata"][0] == [row.round, pytest.approx(actual / (predicted or 0.0), rel=1e-3)]

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import tomli_w
from msgspec.structs import asdict, replace

from tests.conftest import Cli
from tramfl.config import Budget
from tramfl.simulation.experiment import Experiment
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

PLAN = Path(__file__).parents[2] / "examples" / "plan.toml"


def test_the_table_has_a_line_for_every_node_and_the_reason_below(cli: Cli) -> None:
    done = cli("plan", PLAN)
    assert done.code == 0
    lines = {line.split()[1]: line for line in done.out.splitlines()[2:7]}
    assert list(lines) == ["bergen", "oslo", "tromsø", "stavanger", "trondheim"]
    assert "(holder)" in lines["oslo"]
    assert lines["oslo"].split()[-1] == "chosen"
    assert lines["trondheim"].split()[2:] == ["no", "report"]
    assert "oslo keeps the model and trains 1,142 samples" in done.out
    assert "at tromsø and" in " ".join(done.out.split())
    assert "ode 1" not in done.out
    assert "Samples of each label: 300, 592, 250." in done.out


def test_the_table_fits_a_terminal_of_eighty_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "stavanger" in cli("plan", PLAN).out
    assert "…" not in cli("plan", PLAN).out


def test_json_has_the_same_decision_with_every_candidate(cli: Cli) -> None:
    decision = cli("plan", PLAN, "--format", "json").data
    assert decision["node"] == 1
    assert decision["samples"] == [300, 592, 250]
    assert [c["node"] for c in decision["candidates"]] == [0, 1, 2, 3]
    best = max(decision["candidates"], key=lambda c: c["score"])
    assert best["node"] == 1
    assert best["score"] > best["score_of_waiting"]
    assert all(c["feasible"] and c["label_variance"] <= 10_000 for c in decision["candidates"])


def test_the_holder_may_be_named(cli: Cli, tmp_path: Path) -> None:
    named = PLAN.read_text().replace("holder = 1 ", 'holder = "oslo" ')
    (tmp_path / "p.toml").write_text(named)
    assert cli("plan", "p.toml").out == cli("plan", PLAN).out
    (tmp_path / "p.toml").write_text(named.replace('"oslo" ', '"rome" '))
    assert "key `holder` is rome; give the name of one node (bergen, oslo," in cli("plan", "p.toml").err


def test_the_policy_of_the_file_decides(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PLAN.read_text().replace("load-aware", "time-first"))
    assert cli("plan", "p.toml", "--format", "json").data["policy"] == "time-first"


def test_a_plan_of_a_runs_state_decides_what_the_run_decided(cli: Cli, tmp_path: Path) -> None:
    scenario = replace(scenario_named("mnist-5"), policy="random", seed=8, budget=Budget(rounds=4))
    setting = scheduling_only(scenario)
    rows = list(Experiment(scenario, setting).rounds())
    for before, row in pairwise(rows):
        speeds = zip(row.loads.flops, row.loads.bandwidth, strict=True)
        nodes = [
            {"held": held, "flops": flops} | ({} if bandwidth is None else {"bandwidth": bandwidth})
            for held, (flops, bandwidth) in zip(setting.held.tolist(), speeds, strict=True)
        ]
        state = {"holder": row.holder, "used": before.used, "seconds": before.total_seconds, "round": before.round}
        plan = state | {"policy": "random", "seed": 8, "cost": asdict(setting.cost), "nodes": nodes}
        (tmp_path / "p.toml").write_text(tomli_w.dumps(plan))
        decision = cli("plan", "p.toml", "--format", "json").data
        assert (decision["node"], tuple(decision["samples"])) == (row.node, row.samples)


def test_a_name_in_brackets_is_not_taken_for_markup(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PLAN.read_text().replace("bergen", "[red]bergen[/red]"))
    assert "[red]bergen[/red]" in cli("plan", "p.toml").out


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("holder = 1", "holder = 7", ["`holder` is 7", "0 to 4"]),
        ("holder = 1", "holdr = 1", ["unknown key `holdr`", "did you mean `holder`"]),
        ("held = [900, 400, 0]", "held = [900, 400]", ["`nodes[0].held` has 2 counts", "3 labels"]),
        ("held = [900, 400, 0]", "held = [900, -4, 0]", ["`nodes[0].held[1]`", ">= 0"]),
        ("held = [900, 400, 0]", "held = [900, 99999999999999999999, 0]", ["nodes[0].held[1]"]),
        ("bandwidth = 80e6", "", ["`nodes[0].bandwidth` is missing", "from oslo"]),
        ("flops = 2.5e12", "flops = nan", ["`nodes[0].flops`"]),
        ("seconds = 340.5", "seconds = inf", ["`seconds`", "finite"]),
        ("model_bits = 38.42e6", "", ["`cost.model_bits` is missing"]),
        ('"load-aware"', '"best"', ["no policy `best`", "load-aware, random"]),
        ("used = [", "used = ", ["not valid TOML"]),
    ],
)
def test_a_state_that_makes_no_sense_is_refused_by_key(
    cli: Cli, tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    text = PLAN.read_text()
    assert before in text
    (tmp_path / "p.toml").write_text(text.replace(before, after, 1))
    cli("plan", "p.toml").refused(*words)


def test_a_file_that_is_not_there_is_named(cli: Cli) -> None:
    cli("plan", "nowhere.toml").refused("nowhere.toml", "no such file")

"""`benchmarks/retimed.py`: a kept run under another clock is the run that is played with that clock."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.results import keep, kept_runs
from benchmarks.retimed import main, retimed
from tramfl.cli.options import changed
from tramfl.methods import method_named, with_method
from tramfl.notation import BadInput
from tramfl.simulation.grid import play_cell
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_named

SETTINGS = ["exchange.local_steps=2", "evaluation.every=2", "budget.targets=[0.2, 0.3]", "budget.held_for=2"]
SLOTS = ["loads.clock=slot", "loads.slot_seconds=0.5"]
BARRIERS = ("gossip", "gossip-ring", "gossip-pairs", "fedavg", "fedprox", "cyclic", "feddc", "pdmm", "admm", "cmfd")


def played(place: Path, method: str, *sets: str) -> Path:
    """The kept run of a method on digits."""
    named = with_method(scenario_named("digits-5-uneven"), method_named(method))
    scenario = changed(named, named.name, ["budget.samples=4000", *SETTINGS, *sets])
    folder = place / "runs" / f"{method}-{scenario.seed}"
    play_cell(Request(scenario=scenario, out=folder, threads=1))
    (file,) = keep([folder], place / "kept")
    return file


def assert_same_run(content: bytes, file: Path) -> None:
    """But for `tests`, which only a run under another clock has."""
    (one, *lines), (other, *tests) = content.splitlines(), file.read_bytes().splitlines()
    head = msgspec.json.decode(one)
    assert head.pop("tests").startswith("kept/digits-5-uneven/")
    assert head == msgspec.json.decode(other)
    assert lines == tests


@pytest.mark.parametrize("method", BARRIERS)
def test_a_run_under_another_clock_is_the_run_that_is_played_with_it(method: str, tmp_path: Path) -> None:
    file = played(tmp_path / "rounds", method)
    name, content = retimed(file, sets=SLOTS)
    assert name == f"digits-5-uneven/{method}-0.jsonl"
    in_slots = played(tmp_path / "slots", method, *SLOTS)
    assert_same_run(content, in_slots)
    assert in_slots.read_bytes() != file.read_bytes()


def test_a_run_ends_where_its_budget_ends_under_the_new_clock(tmp_path: Path) -> None:
    budget = "budget.seconds=4"
    _, content = retimed(played(tmp_path / "one", "gossip", "loads.clock=slot"), sets=["loads.clock=round", budget])
    assert_same_run(content, played(tmp_path / "other", "gossip", budget))


def test_a_run_that_would_go_on_under_the_new_clock_is_refused(tmp_path: Path) -> None:
    short = played(tmp_path, "gossip", "budget.seconds=4")
    with pytest.raises(BadInput, match=r"goes on after its \d+ rounds; play it for longer"):
        retimed(short, sets=["budget.seconds=400"])


def test_a_server_beside_the_nodes_only_moves_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = played(tmp_path / "node", "fedavg")
    main(
        [str(file), "--into", str(tmp_path / "made"), "--method", "fedavg-beside", "--set", "exchange.local_steps=2"]
    )
    made = tmp_path / "made" / "digits-5-uneven" / "fedavg-beside-0.jsonl"
    assert capsys.readouterr().out == f"{made}\n"
    assert_same_run(made.read_bytes(), played(tmp_path / "beside", "fedavg-beside"))
    assert [run.policy for run in kept_runs([made])] == ["fedavg-beside"]


@pytest.mark.parametrize("method", ["fedavg-m-of-n", "gossip-async", "feddc-load-aware"])
def test_a_method_whose_trainings_depend_on_the_loads_is_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"would train or average other models .* play the run again"):
        retimed(played(tmp_path, method), sets=SLOTS)


def test_a_run_of_other_training_is_refused(tmp_path: Path) -> None:
    file = played(tmp_path, "gossip")
    for setting in ("seed=1", "exchange.local_steps=3", "training.learning_rate=0.1"):
        key = setting.partition("=")[0]
        with pytest.raises(BadInput, match=f"`{key}` changes what is computed; play the run again"):
            retimed(file, sets=[setting])
    with pytest.raises(BadInput, match=r"`exchange\.topology` changes"):
        retimed(file, sets=["exchange.topology=ring"])


def test_a_model_that_travels_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = played(tmp_path, "load-aware")
    with pytest.raises(SystemExit, match="one model travels"):
        main([str(file), "--into", str(tmp_path / "made")])

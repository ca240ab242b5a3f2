from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors import safe_open

import tramfl
from tests.conftest import Cli, Process, ended
from tramfl.config import Budget, LoadModel
from tramfl.notation import label_variance
from tramfl.scheduling.policy import policy_named
from tramfl.simulation.loads import UniformLoads
from tramfl.simulation.scenarios import scenario_named

ROW = {
    "round", "holder", "node", "samples", "loads", "compute_seconds", "transfer_seconds", "idle_seconds",
    "total_seconds", "label_variance", "test_accuracy",
}  # fmt: skip
SUMMARY = {"seconds_to_target", "total_seconds", "rounds", "samples", "cost"}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_five_files_with_the_names_that_other_tools_rely_on(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "--rounds", 4, "--target", "0.5,1", "--out", "run")
    assert done.code == 0
    assert "digits-5-uneven, load-aware, seed 0: 4 rounds" in done.out
    assert "accuracy 100 %: not reached" in done.out
    assert "report: run/report.html" in done.out
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "report.html",
    }  # fmt: skip

    found = rows(folder)
    assert [row["round"] for row in found] == [1, 2, 3, 4]
    used, holder = [0] * 10, found[0]["holder"]
    for row in found:
        assert row.keys() >= ROW
        assert row["holder"] == holder
        holder = row["holder"] if row["node"] is None else row["node"]
        assert len(row["loads"]["flops"]) == len(row["loads"]["bandwidth"]) == 5
        assert [node for node, b in enumerate(row["loads"]["bandwidth"]) if b is None] == [row["holder"]]
        used = [a + s for a, s in zip(used, row["samples"], strict=True)]
        assert row["label_variance"] == label_variance(used)
        assert row["decision"]["reason"]
    assert 0.1 < found[-1]["test_accuracy"] < 1

    summary = json.loads((folder / "summary.json").read_text())
    assert summary.keys() >= SUMMARY
    assert summary["cost"] == {"flops_per_sample": 71.57e6, "model_bits": 38.42e6}
    assert summary["rounds"] == 4
    assert summary["samples"] == sum(used)
    assert summary["total_seconds"] == found[-1]["total_seconds"]
    assert summary["seconds_to_target"].keys() == {"0.5", "1"}
    assert summary["seconds_to_target"]["1"] is None
    reached = next(row for row in found if row["test_accuracy"] >= 0.5)
    assert summary["seconds_to_target"]["0.5"] == reached["total_seconds"]

    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["budget"]["rounds"] == 4
    assert config["resolved"]["trained"] is True
    assert config["resolved"]["versions"].keys() == {"tramfl", "python", "numpy", "torch"}
    assert len(config["resolved"]["held"]) == 5
    with safe_open(folder / "model.safetensors", framework="np") as model:
        assert model.metadata() == {"round": "4"}
        assert model.keys()


def test_the_same_seed_gives_the_same_bytes_in_two_processes_and_another_seed_others(
    cli: Cli, process: Process, tmp_path: Path
) -> None:
    other = process("run", "--rounds", 6, "--out", "a", "--quiet", PYTHONHASHSEED="7", OMP_NUM_THREADS="2")
    assert cli("run", "--rounds", 6, "--out", "b").code == 0
    assert cli("run", "--rounds", 6, "--out", "c", "--seed", 1).code == 0
    assert ended(other).code == 0
    a, b, c = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_without_out_the_folder_is_called_after_scenario_policy_and_seed(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "mnist-3", "--policy", "tram", "--seed", 4, "--no-training", "--rounds", 2).code == 0
    assert (tmp_path / "runs/mnist-3-tram-4/rounds.jsonl").exists()


def test_quiet_prints_the_result_alone(cli: Cli) -> None:
    done = cli("run", "--no-training", "--rounds", 2, "--out", "run", "--quiet")
    assert done.err == ""
    assert done.out.count("\n") == 1
    assert "2 rounds" in done.out


def test_json_on_stdout_is_the_summary_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "--no-training", "--rounds", 2, "--out", "run", "--format", "json")
    assert done.data == json.loads((tmp_path / "run/summary.json").read_text())
    assert done.err == ""


def test_without_a_limit_a_schedule_ends_after_200_rounds(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "mnist-5", "--no-training", "--out", "run").code == 0
    assert len(rows(tmp_path / "run")) == 200


def test_set_and_the_options_change_the_scenario(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "run", "--no-training", "--rounds", 2, "--policy", "random", "--seed", 9, "--target", "0.25", "--out", "run",
        "--set", "variance_limit=50", "--set", "loads.kind=constant", "--set", 'name="mine"',
    )  # fmt: skip
    assert done.code == 0
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert (config["policy"], config["seed"], config["name"]) == ("random", 9, "mine")
    assert config["budget"]["targets"] == [0.25]
    assert (config["variance_limit"], config["loads"]["kind"]) == (50.0, "constant")


def test_recorded_loads_are_replayed(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "--no-training", "--rounds", 5, "--seed", 3, "--out", "a").code == 0
    assert cli("run", "--no-training", "--rounds", 5, "--loads", "a/rounds.jsonl", "--out", "b").code == 0
    a, b = ([row["loads"]["flops"] for row in rows(tmp_path / name)] for name in "ab")
    assert a == b


@pytest.mark.parametrize("way", [["--no-training"], ["--threads", "2"]])
def test_a_runs_own_description_plays_it_again_as_it_was(cli: Cli, tmp_path: Path, way: list[str]) -> None:
    assert cli("run", "--rounds", 4, "--seed", 3, "--out", "a", *way).code == 0
    assert cli("run", "a/config.toml", "--out", "b").code == 0
    for name in ("rounds.jsonl", "config.toml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    resolved = tomllib.loads((tmp_path / "b/config.toml").read_text())["resolved"]
    assert (resolved["trained"], resolved.get("threads")) == ((False, None) if len(way) == 1 else (True, 2))


def test_data_that_changed_since_are_refused_when_a_run_is_resumed_or_played_again(cli: Cli, tmp_path: Path) -> None:
    def write(brightness: int) -> None:
        labels = np.arange(60) % 3
        images = np.random.default_rng(0).integers(0, 200, (60, 4, 4), dtype=np.uint8) + np.uint8(brightness)
        np.savez(
            tmp_path / "scans.npz",
            train_images=images, train_labels=labels, test_images=images, test_labels=labels, classes=["a", "b", "c"],
        )  # fmt: skip

    write(0)
    layout = "[partition]\nlayout = 'dirichlet'\nnodes = 3\n[budget]\nrounds = 2\n"
    (tmp_path / "mine.toml").write_text(f"dataset = 'npz:scans.npz'\n{layout}")
    assert cli("run", "mine.toml", "--out", "run", "--quiet").code == 0
    assert cli("run", "run/config.toml", "--out", "again", "--quiet").code == 0
    assert cli("run", "--resume", "--out", "run", "--rounds", 3, "--quiet").code == 0
    before = (tmp_path / "run/rounds.jsonl").read_bytes()

    write(7)
    cli("run", "--resume", "--out", "run", "--rounds", 4).refused("run: the data of npz:scans.npz have changed")
    cli("run", "run/config.toml", "--out", "third").refused("run: the data of npz:scans.npz have changed")
    assert (tmp_path / "run/rounds.jsonl").read_bytes() == before
    assert not (tmp_path / "third").exists()


def test_a_run_with_the_callers_own_objects_is_not_played_again_from_its_description(
    cli: Cli, tmp_path: Path
) -> None:
    class Mine(UniformLoads):
        pass

    scenario = replace(scenario_named("mnist-10"), budget=Budget(rounds=2))
    source = Mine(LoadModel(), np.full(10, 1e9), 0)
    tramfl.simulate(scenario, loads=source, train=False, out=tmp_path / "own")
    cli("run", "own/config.toml", "--out", "again").refused("own/config.toml", "the caller's own loads", "Mine")
    cli("run", "--resume", "--out", "own", "--rounds", 3).refused("the caller's own loads", "Mine")
    assert not (tmp_path / "again").exists()


def test_what_a_caller_brought_to_a_run_is_named_where_it_is_missing_and_may_be_replaced(
    cli: Cli, tmp_path: Path
) -> None:
    class Mine:
        name = "mine"

        def decide(self, *arguments: Any, **keys: Any) -> Any:
            return policy_named("tram").decide(*arguments, **keys)

    loads = UniformLoads(LoadModel(), np.full(3, 1e9), 0)
    run: dict[str, Any] = {"policy": Mine(), "loads": loads, "rounds": 2, "train": False, "out": tmp_path / "own"}
    tramfl.simulate("digits-3", **run)
    cli("run", "own/config.toml", "--out", "again").refused("the caller's own policy", "Mine")
    cli("run", "own/config.toml", "--policy", "random", "--out", "again").refused("the caller's own loads")
    replaced = ("--policy", "random", "--loads", "own/rounds.jsonl")
    assert "digits-3, random" in cli("run", "own/config.toml", *replaced, "--out", "again").out
    other = tramfl.simulate(tmp_path / "own" / "config.toml", policy="random", loads=loads, train=False)
    assert other.summary.policy == "random"


def test_a_policy_is_named_as_module_and_class(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stubborn.py").write_text(
        "from tramfl.scheduling.baselines import TimeFirst\n\n\nclass Stubborn(TimeFirst):\n    name = 'stubborn'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = cli("run", "--no-training", "--rounds", 3, "--policy", "stubborn:Stubborn", "--out", "run")
    assert done.code == 0
    assert {row["decision"]["policy"] for row in rows(tmp_path / "run")} == {"stubborn"}
    assert cli("run", "run/config.toml", "--out", "again").code == 0
    assert rows(tmp_path / "again") == rows(tmp_path / "run")
    cli("run", "--no-training", "--policy", "stubborn:Missing", "--out", "no").refused("stubborn:Missing")


@pytest.mark.parametrize("name", ["../../escaped", "/abs", "a/b", "..", ".", "", "a\\b"])
def test_a_scenarios_name_cannot_choose_a_folder_elsewhere(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/s.toml").write_text(
        f"name = '{name}'\n[cost]\nflops_per_sample = 1e6\nmodel_bits = 1e6\n[budget]\nrounds = 2\n"
    )
    before = set(tmp_path.rglob("*"))
    for command in ("run", "compare"):
        cli(command, "inside/s.toml", "--no-training").refused(f"name = {name!r}", "no name for a folder")
    cli("compare", "inside/s.toml", "--no-training", "--out", "inside/grid").refused(f"name = {name!r}")
    assert set(tmp_path.rglob("*")) == before
    assert cli("run", "inside/s.toml", "--no-training", "--out", "inside/run").code == 0
    assert set(tmp_path.iterdir()) == {tmp_path / "inside"}


def test_targets_and_times_are_printed_with_the_digits_that_count(cli: Cli) -> None:
    fast = ("--set", "loads.kind=constant", "--set", "loads.flops=1e14", "--set", "loads.bandwidth=1e12")
    done = cli("run", "--rounds", 1, "--target", "0.895,0.904", *fast, "--out", "run")
    assert "seed 0: 1 round (0 skipped)" in done.out
    assert re.search(r"samples in 0\.00\d*[1-9]\d* s of virtual time\.", done.out)
    assert "accuracy 89.5 %: not reached" in done.out
    assert "accuracy 90.4 %: not reached" in done.out
    assert "1 rounds" not in done.out


def test_help_names_the_scenario_that_is_played_by_default(cli: Cli) -> None:
    for command in ("run", "compare"):
        assert "(default: digits-5-uneven)" in " ".join(cli(command, "--help").out.split())


def test_a_run_that_ended_before_its_first_test_is_not_said_to_be_without_training(cli: Cli) -> None:
    assert cli("run", "--rounds", 5, "--set", "evaluation.every=10", "--out", "run", "--quiet").code == 0
    printed = cli("report", "run").out
    assert "its model was not tested: evaluation.every is 10" in printed
    assert "Scheduling only" not in printed


TINY = ("run", "--no-training", "--rounds", "2", "--out", "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "digits-7"], ["no scenario `digits-7`", "digits-5-uneven", ".toml"]),
        (["run", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        ([*TINY, "--policy", "best"], ["no policy `best`", "load-aware", "tram"]),
        ([*TINY, "--set", "policy=best"], ["no policy `best`"]),
        ([*TINY, "--set", "training.batchsize=3"], ["`training.batchsize`", "did you mean `batch_size`"]),
        ([*TINY, "--set", "training.batch_size=0"], ["`training.batch_size`", ">= 1"]),
        ([*TINY, "--set", "training.batch_size=many"], ["`training.batch_size`", "a whole number", "text"]),
        ([*TINY, "--set", "training"], ["--set training", "key=value", "--set training.batch_size=64"]),
        ([*TINY, "--set", "=3"], ["--set =3", "key=value"]),
        ([*TINY, "--set", "seed.x=3"], ["`seed` is a value, not a table"]),
        (
            [*TINY, "--set", "loads.kind=heavy"],
            ["`loads.kind`", "uniform, constant, heterogeneous, ar1, daily, bursts, trace, replay"],
        ),
        ([*TINY, "--set", "loads.kind=replay"], ["`loads.trace` is missing", "rounds.jsonl"]),
        ([*TINY, "--set", "loads.flops=[1.0, 2.0]"], ["`loads.flops` has 2 numbers", "5 nodes"]),
        ([*TINY, "--set", "partition.layout=ring"], ["ring", "5-uneven"]),
        ([*TINY, "--loads", "trace.jsonl"], ["trace.jsonl", "No such file"]),
        ([*TINY, "--target", "70"], ["--target 70", "between 0 and 1", "0.7,0.9"]),
        ([*TINY, "--target", "high"], ["--target high", "0.7,0.9"]),
        ([*TINY, "--target", "nan"], ["--target nan"]),
        ([*TINY, "--track", "paper"], ["--track paper", "tensorboard, mlflow"]),
        ([*TINY, "--resume", "--overwrite"], ["--resume", "--overwrite", "one of them"]),
        (["run", "--no-training", "--set", "dataset=npz:a.npz"], ["label counts", "mnist"]),
        (["run", "--set", "dataset=npz:a.npz", "--out", "run"], ["a.npz", "no such file"]),
        (["run", "--set", "dataset=birds", "--out", "run"], ["'birds'", "npz:PATH"]),
        (["run", "--set", "training.network=vgg", "--out", "run"], ["vgg", "mnist-cnn"]),
        (["run", "--set", "training.weights=w.safetensors", "--out", "run"], ["w.safetensors"]),
        (["run", "--set", "training.device=abacus", "--out", "run"], ["abacus"]),
    ],
)
def test_bad_input_is_one_sentence_that_says_what_would_be_right(
    cli: Cli, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    cli(*arguments).refused(*words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = \nx = 1", ["s.toml", "not valid TOML", "line 1"]),
        ("sede = 1", ["s.toml", "unknown key `sede`", "did you mean `seed`"]),
        ("seed = 'x'", ["s.toml", "`seed`", "a whole number"]),
        ("[budget]\ntargets = [2]", ["s.toml", "`budget.targets[0]`", "<= 1"]),
        ("[partition]\nlayout = 5", ["s.toml", "`partition.layout`", "text in quotes"]),
        ("dataset = 'digits'", ["cost.flops_per_sample"]),
        ("[cost]\nflops_per_sample = 1\nmodel_bits = 1\n[partition]\nlayout = 'iid'", ["partition.nodes"]),
    ],
)
def test_a_scenario_file_that_is_wrong_is_refused_by_file_and_key(
    cli: Cli, tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "s.toml").write_text(text)
    cli("run", "s.toml", "--no-training", "--out", "run").refused(*words)


def test_a_scenario_file_without_any_limit_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("[budget]\ntargets = [0.5]")
    cli("run", "s.toml", "--out", "run").refused("no limit", "budget.rounds")
    assert not (tmp_path / "run").exists()


def test_a_trace_of_another_number_of_nodes_is_refused(cli: Cli) -> None:
    assert cli("run", "digits-3", "--no-training", "--rounds", 2, "--out", "a").code == 0
    cli("run", "digits-5", "--no-training", "--loads", "a/rounds.jsonl").refused("3 nodes", "5")


def test_a_folder_with_a_run_is_left_alone_without_overwrite(cli: Cli, tmp_path: Path) -> None:
    assert cli(*TINY).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    cli(*TINY, "--seed", 1, "--track", "tensorboard").refused(
        "run already holds a run", "--resume", "--overwrite", "--out"
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert cli(*TINY, "--seed", 1, "--overwrite").code == 0
    assert (tmp_path / "run/rounds.jsonl").read_bytes() != before["rounds.jsonl"]
    assert (tmp_path / "run/report.html").read_bytes() != before["report.html"]


def test_an_overwrite_that_cannot_begin_loses_nothing(cli: Cli, tmp_path: Path) -> None:
    assert cli(*TINY).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    cli("run", "--set", "dataset=npz:a.npz", "--out", "run", "--overwrite").refused("a.npz")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("place", ["file/run", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_named_before_anything_is_done(
    cli: Cli, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    cli("run", "--rounds", 2, "--out", place).refused(place, "cannot be written", "--out")


def test_a_folder_somebody_else_is_at_work_in_is_refused(cli: Cli, tmp_path: Path) -> None:
    import fcntl

    assert cli(*TINY).code == 0
    place = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    try:
        cli(*TINY, "--overwrite").refused("another process is at work", "run")
        cli("run", "--resume", "--out", "run").refused("another process is at work")
    finally:
        os.close(place)
    assert cli("run", "--resume", "--out", "run").code == 0


def test_paths_with_brackets_are_printed_as_they_are(cli: Cli) -> None:
    done = cli("run", "--no-training", "--rounds", 2, "--out", "[bold]run[/bold]")
    assert "Record in [bold]run[/bold], report: [bold]run[/bold]/report.html" in done.out

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import tramfl
from tramfl.learning.data.datasets import Dataset
from tramfl.learning.training.learner import Learner
from tramfl.notation import BadInput, Decision
from tramfl.record import CONFIG_FILE, ROUNDS_FILE, Row, RunFolder
from tramfl.scheduling.policy import policy_named
from tramfl.scheduling.timing import compute_seconds, transfer_seconds
from tramfl.simulation.loads import RoundLoads
from tramfl.simulation.scenarios import scenario_named


@pytest.fixture(scope="module")
def result() -> tramfl.Result:
    return tramfl.simulate("digits-5-uneven", rounds=12, targets=[0.5, 1.0], seed=2)


def test_a_result_says_when_a_target_was_reached(result: tramfl.Result) -> None:
    seconds = result.seconds_to(0.5)
    assert seconds == result.summary.seconds_to_target["0.5"]
    assert seconds is not None
    assert 0 < seconds < result.summary.total_seconds
    assert result.seconds_to(1.0) is None
    assert result.folder is None


def test_the_tables_are_flat_and_complete(result: tramfl.Result) -> None:
    rounds = result.rounds
    assert [row["round"] for row in rounds] == list(range(1, 13))
    plain = (int, float, str, type(None))
    for table in (rounds, result.usage, result.candidates):
        assert all(isinstance(value, plain) for row in table for value in row.values())
    assert sum(row["samples"] for row in rounds) == result.summary.samples
    assert sum(row["samples"] for row in result.usage) == result.summary.samples
    assert {row["label"] for row in result.usage} == {str(label) for label in range(10)}
    chosen = [row for row in result.candidates if row["chosen"]]
    assert [row["node"] for row in chosen] == [row.node for row in result.rows if row.node is not None]
    assert result.labels == tuple("0123456789")
    assert len(result.held) == 5


def test_a_recorded_run_is_the_same_run(result: tramfl.Result, tmp_path: Path) -> None:
    seen: list[Row] = []
    recorded = tramfl.simulate(
        replace(scenario_named("digits-5-uneven"), seed=2),
        rounds=12,
        targets=[0.5, 1.0],
        out=tmp_path / "run",
        observe=seen.append,
    )
    assert recorded.rows == result.rows == tuple(seen) == tuple(RunFolder(tmp_path / "run").rows())
    with pytest.raises(BadInput, match="already holds a run"):
        tramfl.simulate(rounds=12, out=tmp_path / "run")
    again = tramfl.simulate(recorded.scenario, out=tmp_path / "run", resume=True, rounds=14)
    assert again.rows[:12] == result.rows
    assert len(again.rows) == 14
    assert len(tramfl.simulate(rounds=1, out=tmp_path / "run", overwrite=True).rows) == 1


def test_an_interrupt_reaches_the_caller_and_leaves_a_folder_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: tramfl.Result
) -> None:
    def stop(row: Row) -> None:
        if row.round == 5:
            raise KeyboardInterrupt

    keys: dict[str, Any] = {"rounds": 12, "targets": [0.5, 1.0], "seed": 2, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        tramfl.simulate("digits-5-uneven", observe=stop, **keys)
    assert len(RunFolder(tmp_path).rows()) == 5
    assert tramfl.simulate("digits-5-uneven", resume=True, **keys).rows == result.rows


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"scenario": "digits-3"}, "`name` is digits-5 there and digits-3 here"),
        ({"seed": 4}, "`seed` is 0 there and 4 here"),
        ({"policy": "random"}, "`policy` is load-aware there and random here"),
        ({"settings": {"wait_seconds": 7.0}}, r"`wait_seconds` is .* there and 7\.0 here"),
        ({"train": True}, "without training"),
    ],
)
def test_another_run_is_not_resumed_in_place_of_the_one_that_is_there(
    tmp_path: Path, others: dict[str, Any], words: str
) -> None:
    run: dict[str, Any] = {"scenario": "digits-5", "train": False, "out": tmp_path / "run"}
    tramfl.simulate(rounds=3, **run)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in (CONFIG_FILE, ROUNDS_FILE)}
    with pytest.raises(BadInput, match=words):
        tramfl.simulate(rounds=5, resume=True, **(run | others))
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    assert len(tramfl.simulate(rounds=5, resume=True, **run).rows) == 5
    assert (tmp_path / "run" / ROUNDS_FILE).read_bytes().startswith(before[ROUNDS_FILE])


def test_resuming_starts_a_run_where_nothing_is_there_yet(tmp_path: Path) -> None:
    run: dict[str, Any] = {"train": False, "out": tmp_path / "new", "resume": True}
    first = tramfl.simulate(rounds=3, **run)
    assert len(first.rows) == 3
    assert tramfl.simulate(rounds=5, **run).rows[:3] == first.rows


def test_only_a_simulated_run_can_be_resumed(tmp_path: Path) -> None:
    tramfl.simulate(train=False, rounds=3, out=tmp_path)
    config = tmp_path / CONFIG_FILE
    config.write_text(config.read_text().replace("[resolved]\n", '[resolved]\nclock = "real"\n'))
    with pytest.raises(BadInput, match="record of a real federation; replay it with"):
        tramfl.simulate(train=False, rounds=5, out=tmp_path, resume=True)


class Always(nn.Module):
    """Looks at one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.last = nn.Flatten(), nn.Linear(4, 3)

    def forward(self, images: Any) -> Any:
        return self.last(self.flat(images))


class Cyclic:
    """Node after node, one sample of each label it has."""

    name = "cyclic"

    def decide(self, ledger: Any, loads: Any, held: Any, holder: int, cost: Any, rng: Any) -> Decision:
        node = ledger.round % len(held)
        samples = tuple(int(n > 0) for n in held[node])
        compute = compute_seconds(sum(samples), cost, loads.flops[node])
        transfer = transfer_seconds(cost, loads.bandwidth[node])
        return Decision(self.name, node, samples, compute, transfer, 0.0, "It is its turn.")


class Steady:
    """Each node twice as fast as the one before."""

    def at(self, round_: int) -> RoundLoads:
        return RoundLoads([1e9, 2e9, 4e9], [[math.inf if i == j else 1e8 for j in range(3)] for i in range(3)])


def blobs() -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = rng.normal(size=(90, 2, 2)) + labels[:, None, None]
    return Dataset.from_arrays("blobs", images[:60], labels[:60], images[60:], labels[60:])


AMONG_THREE = {"partition.layout": "iid", "partition.nodes": 3, "training.batch_size": 2}


def on_blobs(**arguments: Any) -> tramfl.Result:
    """Six rounds of a network of the user's own."""
    keys: dict[str, Any] = {"model": Always, "data": blobs(), "rounds": 6, "settings": AMONG_THREE}
    return tramfl.simulate("digits-3", **(keys | arguments))


def test_model_data_policy_and_loads_may_all_be_the_users_own(tmp_path: Path) -> None:
    result = on_blobs(policy=Cyclic(), loads=Steady(), out=tmp_path)
    assert [row.node for row in result.rows] == [0, 1, 2, 0, 1, 2]
    assert result.rows[0].loads.flops == (1e9, 2e9, 4e9)
    assert all(row.test_accuracy is not None for row in result.rows)
    # The record does not claim that another's model was trained.
    config = RunFolder(tmp_path).scenario()
    assert (config.policy, config.dataset, config.training.network) == ("cyclic", "blobs", "Always")
    assert result.summary.policy == "cyclic"


def test_data_may_be_given_by_a_function() -> None:
    assert on_blobs(data=blobs).rows == on_blobs(data=lambda data_dir: blobs()).rows == on_blobs().rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 7))}, r"training\.network = .*7"),
        ({"model": nn.Flatten()}, r"training\.network = 'Flatten' has no weights to train"),
        ({"model": lambda: "a network"}, r"training\.network = .*str, not a torch\.nn\.Module"),
        ({"data": "digits"}, r"the data gave a str, not a tramfl\.Data"),
        ({"data": lambda: [1, 2]}, "the data gave a list"),
    ],
)
def test_a_network_or_data_that_cannot_be_used_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        on_blobs(**arguments)


def test_a_network_of_the_users_own_is_left_as_it_was_and_trains_alike_again() -> None:
    net = Always()
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    first, again = (on_blobs(model=lambda: net, seed=3) for _ in range(2))
    assert first.rows == again.rows
    assert all(torch.equal(weight, before[name]) for name, weight in net.state_dict().items())


def test_the_callers_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            on_blobs(rounds=1)
            assert torch.get_num_threads() == threads
            with pytest.raises(BadInput):
                on_blobs(model=nn.Flatten())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_numbers_of_numpy_are_as_good_as_pythons() -> None:
    plain = tramfl.simulate(train=False, seed=3, rounds=4, targets=(0.5, 0.75), settings={"wait_seconds": 2.0})
    keys: dict[str, Any] = {"seed": np.int64(3), "rounds": np.int32(4), "settings": {"wait_seconds": np.float64(2)}}
    in_array: Any = np.array([0.5, 0.75])
    for targets in (in_array, list(in_array)):
        assert tramfl.simulate(train=False, targets=targets, **keys) == plain


def test_without_training_there_are_no_accuracies() -> None:
    result = tramfl.simulate("mnist-10", train=False, rounds=5)
    assert all(row.test_accuracy is None for row in result.rows)
    assert result.seconds_to(0.1) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"settings": {"training.batchsize": 3}}, r"unknown key `training\.batchsize`; did you mean `batch_size`"),
        ({"settings": {"seed.of.what": 3}}, "`seed.of.what`: `seed` is a value, not a table"),
        ({"policy": "best"}, "no policy `best`"),
        ({"scenario": "digits-9"}, "no scenario `digits-9`"),
        ({"targets": [7]}, r"budget\.targets"),
        ({"rounds": 0}, r"budget\.rounds"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        tramfl.simulate(train=False, **arguments)


def test_importing_tramfl_costs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, tramfl; tramfl.__version__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


def test_a_learner_forgets_what_no_node_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    original = Learner._keep

    def keep(self: Learner, *arguments: Any) -> None:
        nonlocal most
        original(self, *arguments)
        most = max(most, len(self._kept))

    monkeypatch.setattr(Learner, "_keep", keep)
    tramfl.simulate("digits-10", policy="random", rounds=60, targets=())
    assert most <= 6, "models kept at once, whatever the number of rounds"


def test_policies_by_name_and_by_object_decide_alike() -> None:
    by_name = tramfl.simulate("mnist-5", policy="tram", train=False, rounds=9)
    by_object = tramfl.simulate("mnist-5", policy=policy_named("tram"), train=False, rounds=9)
    assert by_name.rows == by_object.rows


def test_one_target_needs_no_list() -> None:
    result = tramfl.simulate("digits-3", targets=0.9, rounds=1, train=False)
    assert result.scenario.budget.targets == (0.9,)


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_threads_that_cannot_be_are_refused(threads: Any) -> None:
    with pytest.raises(BadInput, match=r"threads = .*: give a whole number of at least 1"):
        tramfl.simulate("digits-3", rounds=1, threads=threads)


class Stays:
    """The next round is skipped, always."""

    def decide(self, ledger: Any, loads: Any, held: Any, holder: int, cost: Any, rng: Any) -> Decision:
        return Decision("stays", None, (0,) * held.shape[1], 0.0, 0.0, 1.0, "So.")


@pytest.mark.parametrize("policy", [Stays, Stays(), Stays().decide], ids=["class", "object", "function"])
def test_a_policy_is_an_object_its_class_or_its_function(policy: Any) -> None:
    rows = tramfl.simulate("digits-3", policy=policy, train=False, rounds=2).rows
    assert [row.node for row in rows] == [None, None]


def test_a_policy_that_returns_nothing_is_an_error_and_no_traceback() -> None:
    def forgets(ledger: Any, loads: Any, held: Any, holder: int, cost: Any, rng: Any) -> None:
        pass

    with pytest.raises(BadInput, match="the policy returned None; decide must return"):
        tramfl.simulate("digits-3", policy=forgets, train=False, rounds=2)


def test_observe_may_stop_the_run_which_then_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    run: dict[str, Any] = {"scenario": "digits-3", "train": False, "rounds": 9, "out": tmp_path}
    stopped = tramfl.simulate(observe=lambda row: row.round == 4, **run)
    assert len(stopped.rows) == 4
    assert (stopped.summary.status, stopped.summary.stopped_because) == ("stopped", "observe returned True.")
    assert len(tramfl.simulate(resume=True, **run).rows) == 9


class Half:
    """Loads of a caller's own."""

    def __init__(self, flops: float = 5e12) -> None:
        self.flops = flops

    def at(self, round_: int) -> RoundLoads:
        return RoundLoads([self.flops * (1 + round_)] * 3, [[1e8] * 3] * 3)


def test_a_run_with_objects_of_the_callers_own_is_not_played_again_without_them(tmp_path: Path) -> None:
    run: dict[str, Any] = {"scenario": "digits-3", "train": False, "out": tmp_path}
    first = tramfl.simulate(policy=Stays(), loads=Half(), rounds=3, **run)
    config = str(tmp_path / CONFIG_FILE)
    for given, missing in (({}, "policy"), ({"policy": Stays()}, "loads"), ({"loads": Half()}, "policy")):
        words = rf"played with the caller's own {missing}, .*:(Stays|Half), which no file can bring back"
        with pytest.raises(BadInput, match=words):
            tramfl.simulate(config, train=False, **given)
        with pytest.raises(BadInput, match=words):
            tramfl.simulate(rounds=5, resume=True, **run, **given)
    assert tramfl.simulate(config, train=False, policy=Stays(), loads=Half()).rows == first.rows
    with pytest.raises(BadInput, match="line 1: the loads given are not those of the run there"):
        tramfl.simulate(policy=Stays(), loads=Half(1e12), rounds=5, resume=True, **run)
    more = tramfl.simulate(policy=Stays(), loads=Half(), rounds=5, resume=True, **run)
    assert more.rows[:3] == first.rows


def test_a_policy_that_can_be_imported_is_recorded_by_reference_and_played_again(tmp_path: Path) -> None:
    from tramfl.scheduling.baselines import Tram

    first = tramfl.simulate("digits-3", policy=Tram, train=False, rounds=4, out=tmp_path)
    assert first.scenario.policy == "tramfl.scheduling.baselines:Tram"
    assert tramfl.simulate(tmp_path / CONFIG_FILE, train=False).rows == first.rows


def test_own_data_leave_a_fingerprint_and_other_data_are_refused(tmp_path: Path) -> None:
    first = on_blobs(out=tmp_path, rounds=2)
    known = RunFolder(tmp_path).resolved()
    assert known.data is not None
    assert known.own.keys() >= {"data"}
    with pytest.raises(BadInput, match=r"own data, .*Dataset, which no file can bring back"):
        tramfl.simulate(tmp_path / CONFIG_FILE)
    assert on_blobs(out=tmp_path, rounds=3, resume=True).rows[:2] == first.rows
    other = dataclasses.replace(blobs(), train_images=blobs().train_images + 1)
    with pytest.raises(BadInput, match="was played on other data: their fingerprint is"):
        on_blobs(out=tmp_path, rounds=4, resume=True, data=other)


def test_a_single_node_plays_alone_and_sends_nothing(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("cat,dog\n30,40\n")
    settings = {"partition.held": str(table), "cost.flops_per_sample": 1e6, "cost.model_bits": 1e6}
    result = tramfl.simulate("digits-3", train=False, rounds=3, settings=settings)
    assert [(row.node, row.transfer_seconds) for row in result.rows] == [(0, 0.0)] * 3


def test_a_schedule_is_played_from_a_table_of_counts_of_any_size(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("cat,dog\n" + "\n".join(f"{30 + i},{60 - i}" for i in range(25)) + "\n")
    settings = {"partition.held": str(table), "cost.flops_per_sample": 1e6, "cost.model_bits": 1e6}
    result = tramfl.simulate("digits-3", train=False, rounds=6, settings=settings)
    assert result.labels == ("cat", "dog")
    assert len(result.held) == 25
    assert len(result.rows[0].loads.flops) == 25
    tramfl.simulate("digits-3", train=False, rounds=3, settings=settings, out=tmp_path / "run")
    table.write_text(table.read_text().replace("30,60", "31,60"))
    changed = r"the counts in .*counts.csv have changed since the run there"
    with pytest.raises(BadInput, match=changed):
        tramfl.simulate("digits-3", train=False, rounds=6, settings=settings, out=tmp_path / "run", resume=True)
    with pytest.raises(BadInput, match=changed):
        tramfl.simulate(tmp_path / "run" / CONFIG_FILE, train=False)
    with pytest.raises(BadInput, match=r"partition\.held is a table of counts without data: add --no-training"):
        tramfl.simulate("digits-3", rounds=6, settings=settings)
    wrong = {
        "1,2\n3\n": "row 2, must have 2 whole counts",
        "": "has no row of counts",
        "30,6o\n31,59\n": "row 1, mixes counts and names",
    }
    for text, words in wrong.items():
        table.write_text(text)
        with pytest.raises(BadInput, match=words):
            tramfl.simulate("digits-3", train=False, rounds=6, settings=settings)

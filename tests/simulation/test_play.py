"""Wherever a run is interrupted, it leaves a folder from which it goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tramfl.config import Scenario, Transit
from tramfl.learning.training.learner import Learner
from tramfl.notation import BadInput
from tramfl.record import RowWriter, RunFolder
from tramfl.simulation import play as module
from tramfl.simulation.experiment import Experiment, Playing
from tramfl.simulation.play import Request, drawn_by, play
from tramfl.simulation.scenarios import scenario_named

ROUNDS = 8


def digits(policy: str = "load-aware", **training: Any) -> Scenario:
    scenario = scenario_named("digits-5-uneven")
    budget = replace(scenario.budget, rounds=ROUNDS, targets=(1.0,))
    return replace(scenario, policy=policy, budget=budget, training=replace(scenario.training, **training))


def rows_of(folder: Path) -> bytes:
    return (folder / "rounds.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    play(Request(scenario=digits(), out=folder, threads=1))
    return folder


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """Ctrl-C just before or just after the `call`-th call of a method."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def interrupted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise KeyboardInterrupt
        result = original(*arguments, **named)
        if calls == call:
            raise KeyboardInterrupt
        return result

    patch.setattr(owner, name, interrupted)


def test_a_coded_run_with_an_averaged_read_out_goes_on_as_if_it_had_not_been_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = digits("express")
    scenario = replace(
        scenario, transit=Transit(codec="int4"), evaluation=replace(scenario.evaluation, readout="average")
    )
    play(Request(scenario=scenario, out=tmp_path / "whole", threads=1))
    with monkeypatch.context() as patch:
        interrupt(patch, Experiment, "_score", 5, after=False)
        play(Request(scenario=scenario, out=tmp_path / "broken", threads=1))
    play(Request(scenario=scenario, out=tmp_path / "broken", threads=1, resume=True))
    for name in ("rounds.jsonl", "model.safetensors", "state.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2, 5, ROUNDS])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Learner, "train"), (Learner, "scores"), (RowWriter, "write"), (Experiment, "_score"), (module, "observe")],
)
def test_a_run_interrupted_anywhere_is_resumed_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, owner: Any, name: str, call: int, after: bool
) -> None:
    request = Request(scenario=digits(), out=tmp_path / "run", threads=1)
    seen: list[int] = []

    def observe(_: Playing, row: Any) -> None:
        seen.append(row.round)
        if owner is module and len(seen) == call:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if owner is not module:
            interrupt(patch, owner, name, call, after=after)
        stopped = play(request, observe)
    assert stopped.summary().rounds == rows_of(tmp_path / "run").count(b"\n")
    assert rows_of(whole).startswith(rows_of(tmp_path / "run"))

    assert play(replace(request, resume=True)).summary().status == "finished"
    for file in ("rounds.jsonl", "summary.json", "model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.parametrize("policy", ["load-aware", "random", "time-first", "variance-first", "tram"])
@pytest.mark.parametrize("kind", ["uniform", "ar1"])
def test_a_schedule_cut_after_any_round_goes_on_the_same(tmp_path: Path, policy: str, kind: str) -> None:
    base = scenario_named("mnist-5")
    scenario = replace(
        base, policy=policy, budget=replace(base.budget, rounds=25), loads=replace(base.loads, kind=kind)
    )
    request = Request(scenario=scenario, out=tmp_path, train=False)
    play(request)
    whole = rows_of(tmp_path)
    lines = whole.splitlines(keepends=True)
    for kept in range(len(lines)):
        (tmp_path / "rounds.jsonl").write_bytes(b"".join(lines[:kept]))
        play(replace(request, resume=True))
        assert rows_of(tmp_path) == whole, f"resumed after {kept} rounds"


def test_a_resumed_run_is_tested_after_the_same_rounds(tmp_path: Path) -> None:
    scenario = replace(digits(), evaluation=replace(digits().evaluation, every=3))
    shorter = replace(scenario, budget=replace(scenario.budget, rounds=4))
    play(Request(scenario=scenario, out=tmp_path / "a", threads=1))
    play(Request(scenario=shorter, out=tmp_path / "b", threads=1))
    play(Request(scenario=scenario, out=tmp_path / "b", threads=1, resume=True))
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")


def test_momentum_that_travels_along_survives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(scenario=digits(carry_momentum=True), out=tmp_path / "a", threads=1)
    play(request)
    with monkeypatch.context() as patch:
        interrupt(patch, Learner, "scores", 4, after=True)
        play(replace(request, out=tmp_path / "b"))
    play(replace(request, out=tmp_path / "b", resume=True))
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")


def test_weights_are_saved_now_and_then_and_a_killed_run_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    request = Request(scenario=digits(), out=tmp_path, threads=1)
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)

    class Killed(BaseException):
        """Stands for SIGKILL: nothing is cleaned up after it."""

    def die(*_: object) -> None:
        raise Killed

    def observe(_: Playing, row: Any) -> None:
        if row.round == 5:
            monkeypatch.setattr(RunFolder, "conclude", die)
            monkeypatch.setattr(RunFolder, "save_model", die)
            raise Killed

    with pytest.raises(Killed):
        play(request, observe)
    monkeypatch.undo()
    replayed: list[int] = []
    play(replace(request, resume=True), lambda _, row: replayed.append(row.round))
    assert replayed == [6, 7, 8]
    assert rows_of(tmp_path) == rows_of(whole)


def test_a_policy_that_decides_nonsense_ends_the_run_but_keeps_what_it_did(tmp_path: Path) -> None:
    from tramfl.scheduling.policy import policy_named

    class Failing:
        """The paper's policy until the fourth round."""

        def decide(self, ledger: Any, loads: Any, held: Any, *rest: Any) -> Any:
            found = policy_named("load-aware").decide(ledger, loads, held, *rest)
            return replace(found, samples=(-1,) * 10) if ledger.round == 3 else found

    request = Request(scenario=digits(), out=tmp_path, threads=1)
    with pytest.raises(BadInput, match="decided samples"):
        play(request, policy=Failing())
    assert rows_of(tmp_path).count(b"\n") == 3
    play(replace(request, resume=True))
    assert rows_of(tmp_path).count(b"\n") == ROUNDS


def test_what_a_node_has_drawn_is_the_sum_of_its_rounds(whole: Path) -> None:
    import numpy as np

    rows = RunFolder(whole).rows()
    drawn = drawn_by(rows, np.zeros((5, 10), dtype=np.int64))
    assert drawn.sum(axis=0).tolist() == list(rows[-1].used)
    assert drawn[rows[0].node or 0].sum() >= sum(rows[0].samples)

"""`tramfl up`: a whole federation of real processes, and its record replayed in simulation."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Cli
from tramfl.record import RunFolder, read_rows

# What is trained, where and on how many samples: what a decision is.
DECISION = ("node", "holder", "samples")


def test_three_sites_reach_90_percent_and_decide_as_the_simulator_does(tmp_path: Path, cli: Cli) -> None:
    assert cli("run", "--no-training", "--rounds", 9, "--out", "real").code == 0
    rules = ("--target", "0.7,0.9", "--set", "evaluation.every=2")
    up = ("up", "digits-3", "--sites", 3, "--seed", 1, *rules, "--out", "real")
    cli(*up).refused("already holds a run")
    done = cli(*up, "--overwrite")
    assert done.code == 0, done
    assert RunFolder(tmp_path / "real").resolved().clock == "real"
    real = list(read_rows(tmp_path / "real" / "rounds.jsonl"))
    assert max(row.test_accuracy or 0.0 for row in real) >= 0.9
    # A replay knows the loads of the recorded rounds and what they took: nothing else came from the real sites.
    replay = ("--loads", "real/rounds.jsonl", "--rounds", len(real), "--target", "1.0", "--out", "simulated")
    assert cli("run", "real/config.toml", *replay).code == 0
    simulated = list(read_rows(tmp_path / "simulated" / "rounds.jsonl"))
    for ours, theirs in zip(simulated, real, strict=True):
        assert [getattr(ours, key) for key in DECISION] == [getattr(theirs, key) for key in DECISION]
        # Where rounds are quicker than tests a site leaves some out; it never tests where a simulation would not.
        if theirs.test_accuracy is not None:
            assert ours.test_accuracy == theirs.test_accuracy
    # The folder is a run's like any other, except that it cannot be resumed.
    assert cli("report", "real").code == 0
    cli("run", "--resume", "--out", "real").refused("record of a real federation", "--loads")
    cli("up", "--out", "real").refused("already holds a run")


def test_sites_and_scenario_must_fit(cli: Cli) -> None:
    cli("up", "digits-5", "--sites", 3).refused("5 nodes", "3 sites")

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tramfl.notation import BadInput, ModelCost
from tramfl.record import Resolved, RunFolder
from tramfl.simulation.play import Request, play
from tramfl.simulation.scenarios import scenario_named

SCENARIO = scenario_named("digits-3")
RESOLVED = Resolved(trained=False, labels=("x", "y"), held=((1, 0), (0, 2)), cost=ModelCost(1.0, 2.0))


def begun(path: Path) -> RunFolder:
    folder = RunFolder(path)
    with folder.alone():
        folder.begin(SCENARIO, RESOLVED).close()
    return folder


def test_what_was_begun_is_read_back(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a" / "b")
    assert folder.holds_run
    assert folder.scenario() == SCENARIO
    assert replace(folder.resolved(), versions={}) == RESOLVED
    assert folder.rows() == []
    assert folder.saved_weights() is None
    with pytest.raises(BadInput, match="already holds a run"):
        folder.check_free()


def test_a_folder_that_got_no_run_is_not_left_behind(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").alone():
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()


def test_what_somebody_else_keeps_in_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    begun(tmp_path)
    begun(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_two_processes_never_write_the_same_folder(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tramfl.record import RunFolder
with RunFolder(Path(sys.argv[1])).alone():
    print("mine", flush=True)
    sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "mine\n"
    with pytest.raises(BadInput, match="another process is at work"), RunFolder(tmp_path).alone():
        pass
    other.communicate("")
    with RunFolder(tmp_path).alone():
        pass


def test_an_older_folder_that_does_not_say_how_it_was_played_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    text = (tmp_path / "config.toml").read_text().replace("trained = false\n", "")
    (tmp_path / "config.toml").write_text(text)
    assert replace(folder.resolved(), versions={}) == replace(RESOLVED, trained=None)
    (tmp_path / "config.toml").write_text(text.split("[resolved]")[0])
    assert folder.resolved() == Resolved()


def test_rows_are_durable_before_the_weights_that_stand_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path)
    synced: list[str] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder.save_model(b"weights")
    assert synced == ["rounds.jsonl", "model.safetensors.part"]
    assert folder.saved_weights() == b"weights"


def test_a_config_says_which_versions_it_was_made_with(tmp_path: Path) -> None:
    play(Request(scenario=scenario_named("digits-3"), out=tmp_path, train=False))
    text = (tmp_path / "config.toml").read_text()
    assert "[resolved.versions]" in text
    assert f'python = "{sys.version.split()[0]}"' in text

"""`benchmarks/results.py`: the tables from kept runs are those from the runs' folders, letter by letter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.results import SUFFIX, keep, kept_runs, main
from tests.conftest import Cli
from tramfl.cli.reproduce import PaperDataset, PaperLayout, reproduce
from tramfl.notation import BadInput
from tramfl.reporting.race import race_tables
from tramfl.reporting.reproduction import reproduction_tables
from tramfl.reporting.runs import load_run, load_runs

SETTINGS = ("budget.samples=1500", "evaluation.every=2", "budget.targets=[0.3, 0.7]")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layouts and two seeds of four methods; one model travels in two of them, once with coded weights."""
    place = tmp_path_factory.mktemp("played")
    reproduce(
        dataset=[PaperDataset.digits],
        scenario=[PaperLayout.ten, PaperLayout.uneven],
        seeds=2,
        methods="express,cmfd,gossip-pairs",
        set_=list(SETTINGS),
        out=place,
        jobs=1,
        quiet=True,
    )
    return place


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def test_a_race_is_rebuilt_letter_by_letter(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Kept 16 runs" in printed(capsys, "keep", played, "--into", tmp_path)
    table = (played / "table.md").read_text()
    assert "| cmfd | first reached | 0." in table
    assert printed(capsys, "race", tmp_path) == table + "\n"
    without = printed(capsys, "race", tmp_path, "--methods", "cmfd")
    assert "express" not in without
    plain = without.replace("**", "")  # of fewer methods another one is the quickest
    assert set(plain.splitlines()) < set(table.replace("**", "").splitlines())
    one = printed(capsys, "race", tmp_path, "--seeds", "1-1")
    assert "1 seed\n" in one
    assert "2 seeds" not in one


def test_table_one_is_rebuilt_letter_by_letter(cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = "load-aware,random,variance-first"
    settings = [word for setting in (*SETTINGS, "budget.held_for=2") for word in ("--set", setting)]
    done = cli("compare", "digits-3", "--methods", policies, "--seeds", 2, *settings, "--out", "paper", "--quiet")
    assert done.code == 0, done.err
    printed(capsys, "keep", tmp_path / "paper", "--into", tmp_path / "kept")
    table = reproduction_tables(load_runs([tmp_path / "paper"]))
    assert "±" in table
    assert printed(capsys, "table-one", tmp_path / "kept") == table + "\n"


def test_a_kept_run_has_its_tests_and_its_end_in_few_bytes_always_the_same(played: Path, tmp_path: Path) -> None:
    files = keep([played], tmp_path / "one")
    again = keep([played], tmp_path / "two")
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    for run in load_runs([played]):
        file = tmp_path / "one" / run.scenario / f"{run.folder.name}{SUFFIX}"
        (kept,) = kept_runs([file])
        rounds = [row.round for row in run.rows if row.is_tested or row is run.rows[-1]]
        assert [row.round for row in kept.rows] == rounds
        assert kept.settings == run.settings
        assert kept.resolved == run.resolved
        assert kept.summary == run.summary
        assert len(file.read_bytes()) < 3000 + 120 * len(rounds)


def test_a_run_of_other_settings_replaces_a_kept_one_only_on_demand(played: Path, tmp_path: Path) -> None:
    folder = played / "digits-10" / "cmfd-0"
    (file,) = keep([folder], tmp_path / "kept")
    before = file.read_bytes()
    keep([folder], tmp_path / "kept")
    other = tmp_path / "cmfd-0"
    shutil.copytree(folder, other)
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('network = "digits-mlp"', 'network = "/home/me/net.py"'))
    with pytest.raises(BadInput, match="other settings"):
        keep([other], tmp_path / "kept")
    assert file.read_bytes() == before
    keep([other], tmp_path / "kept", over=True)
    assert b'"network":"net.py"' in file.read_bytes()


def test_a_variant_keeps_its_name_apart(played: Path, tmp_path: Path) -> None:
    for variant in (None, "tuned"):
        keep([played / "digits-10" / "load-aware-0"], tmp_path / "kept", variant=variant)
    table = race_tables(kept_runs([tmp_path / "kept"]))
    assert "| load-aware | " in table
    assert "| load-aware, tuned | " in table


def test_what_is_not_a_finished_run_is_refused_in_a_sentence(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "cmfd-0"
    shutil.copytree(played / "digits-10" / "cmfd-0", begun)
    (begun / "summary.json").unlink()
    assert load_run(begun).summary.status == "not ended"
    for arguments in (["keep", begun], ["keep", tmp_path / "nowhere"], ["race", tmp_path / "nowhere"]):
        with pytest.raises(SystemExit, match="run"):
            printed(capsys, *arguments)
    (tmp_path / f"x{SUFFIX}").write_text("no\n")
    with pytest.raises(SystemExit, match="is not a kept run"):
        printed(capsys, "race", tmp_path)

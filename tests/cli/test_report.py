from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Path:
    assert cli("run", "--no-training", "--rounds", 12, "--out", "a/one", "--quiet").code == 0
    return tmp_path / "a/one"


def test_a_report_of_one_run_goes_into_its_folder(cli: Cli, run: Path) -> None:
    (run / "report.html").unlink()
    done = cli("report", "a/one")
    assert done.code == 0
    assert "Report: a/one/report.html" in done.out
    assert "digits-5-uneven" in (run / "report.html").read_text()


def test_a_folder_of_runs_stands_for_all_of_them(cli: Cli, run: Path, tmp_path: Path) -> None:
    assert cli("run", "--no-training", "--rounds", 12, "--policy", "tram", "--out", "a/two", "--quiet").code == 0
    done = cli("report", "a", "--out", "page.html")
    assert done.code == 0
    assert "load-aware schedules" in done.out
    assert "tram" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("format", ["pdf", "png", "svg"])
def test_figures_are_drawn_in_the_format_asked_for(cli: Cli, run: Path, format: str) -> None:
    done = cli("figures", "a/one", "--format", format)
    assert done.code == 0
    drawn = [Path(line) for line in done.out.splitlines()]
    assert len(drawn) >= 3
    assert all(path.suffix == f".{format}" and (run.parents[1] / path).stat().st_size > 1000 for path in drawn)


@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_folder_that_is_no_run_is_named(cli: Cli, tmp_path: Path, command: str) -> None:
    cli(command, "nowhere").refused("nowhere", "no such folder")
    (tmp_path / "empty").mkdir()
    cli(command, "empty").refused("empty", "not a run", "config.toml")


def test_a_damaged_record_is_named(cli: Cli, run: Path) -> None:
    (run / "rounds.jsonl").write_text("{}\n")
    cli("report", "a/one").refused("rounds.jsonl", "line 1")


@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_place_that_cannot_be_written_is_named_in_one_sentence(cli: Cli, run: Path, command: str) -> None:
    for place in ("a/one/rounds.jsonl/x", "/proc/f.html"):
        done = cli(command, "a/one", "--out", place)
        done.refused(place, "cannot be written", "--out")
        assert "resumed" not in done.err


def test_runs_of_two_machines_are_merged_and_reported_on_once(cli: Cli, tmp_path: Path) -> None:
    for machine, seeds in (("one", "0-1"), ("two", "1-2")):
        options = ("--no-training", "--rounds", 3, "--seeds", seeds, "--policies", "random", "--jobs", 1, "--quiet")
        assert cli("compare", *options, "--out", machine).code == 0
    done = cli("merge", "one", "two", "--out", "all")
    assert done.code == 0
    assert "3 runs added to all, 0 were there; report: all/report.html" in done.out
    assert sorted(path.parent.name for path in (tmp_path / "all").rglob("rounds.jsonl")) == [
        "random-0", "random-1", "random-2",
    ]  # fmt: skip
    assert "0 runs added to all, 3 were there" in cli("merge", "one", "two", "--out", "all").out
    cli("merge", "nowhere", "--out", "all").refused("nowhere")

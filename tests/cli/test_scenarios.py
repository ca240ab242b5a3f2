from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Cli
from tramfl.simulation.scenarios import DEFAULT, scenario_from, scenario_named, scenario_names


def test_every_scenario_of_the_issue_is_listed_with_its_nodes(cli: Cli) -> None:
    out = cli("scenarios").out
    for dataset in ("digits", "mnist", "cifar10"):
        for layout in ("3", "5", "10", "5-uneven"):
            assert f"{dataset}-{layout}" in out
    assert f"{DEFAULT} (default)" in out
    assert "9, 7, 5, 3, 1" in out


@pytest.mark.parametrize("name", scenario_names())
def test_what_show_prints_reads_back_as_the_same_scenario(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.toml").write_text(cli("scenarios", "show", name).out)
    assert scenario_from(str(tmp_path / "mine.toml")) == scenario_named(name)


def test_a_shown_scenario_runs_from_its_file_as_it_does_by_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(cli("scenarios", "show", "mnist-10").out)
    for scenario in ("mine.toml", "mnist-10"):
        assert cli("run", scenario, "--no-training", "--rounds", 20, "--out", f"of-{scenario}").code == 0
    assert (tmp_path / "of-mine.toml/rounds.jsonl").read_bytes() == (
        tmp_path / "of-mnist-10/rounds.jsonl"
    ).read_bytes()


def test_a_file_without_a_name_is_called_after_itself(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "hospital.toml").write_text("seed = 3\n")
    assert 'name = "hospital"' in cli("scenarios", "show", "hospital.toml").out


def test_an_unknown_scenario_is_refused_with_those_there_are(cli: Cli) -> None:
    cli("scenarios", "show", "digits-4").refused("`digits-4`", "digits-5-uneven", ".toml")


BY_DIRICHLET = "[partition]\nlayout = 'dirichlet'\nnodes = 3\n[budget]\nrounds = 2\n"


@pytest.mark.parametrize("dataset", ["digits", "npz:scans.npz"])
def test_layout_shows_what_a_run_of_the_same_file_divides_among_its_nodes(
    cli: Cli, tmp_path: Path, dataset: str
) -> None:
    labels = np.arange(60) % 3
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    np.savez(
        tmp_path / "scans.npz",
        train_images=images, train_labels=labels, test_images=images, test_labels=labels, classes=["a", "b", "c"],
    )  # fmt: skip
    (tmp_path / "mine.toml").write_text(f"seed = 4\ndataset = '{dataset}'\n{BY_DIRICHLET}")
    done = cli("scenarios", "layout", "mine.toml")
    assert done.code == 0
    assert cli("run", "mine.toml", "--out", "run", "--quiet").code == 0
    resolved = tomllib.loads((tmp_path / "run/config.toml").read_text())["resolved"]
    heading, *nodes, _ = (line.split() for line in done.out.splitlines())
    assert heading == ["node", *resolved["labels"], "total"]
    shown = [[0 if count == "-" else int(count) for count in row[1:-1]] for row in nodes]
    assert shown == resolved["held"]

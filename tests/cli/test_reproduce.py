"""`tramfl reproduce` on made-up images: what it leaves and how it goes on, not what comes out."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Cli
from tramfl.cli import reproduce as reproduction
from tramfl.methods import method_named, method_names
from tramfl.record import read_rows
from tramfl.scheduling.policy import policy_names
from tramfl.simulation.play import Request


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), 1))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """MNIST's four files with 400 and 100 images: a bright bar in a row for each label, and noise."""
    folder = tmp_path / "made-up" / "mnist"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 400), ("t10k", 100)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 60, (count, 28, 28))
        images[np.arange(count), 4 + 2 * labels, 4:24] = 255
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder.parent


def command(data: Path, *more: object) -> tuple[object, ...]:
    return (
        "reproduce", "--dataset", "mnist", "--scenario", "5-uneven", "--seeds", 1, "--samples", 60, "--jobs", 1,
        "--data-dir", data, "--out", "paper", "--set", "variance_limit=20", *more,
    )  # fmt: skip


def test_it_leaves_a_table_figures_and_a_page_and_goes_on_where_it_stopped(
    cli: Cli, tmp_path: Path, data: Path
) -> None:
    done = cli(*command(data, "--quiet"))
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    table = (tmp_path / "paper/table.md").read_text()
    assert "### mnist, 70% test accuracy" in table
    assert "### mnist, 90% test accuracy" in table
    for policy, paper in (("load-aware", "5.09"), ("random", "42.21"), ("time-first", "34.80")):
        assert f"| {policy} | first reached | " in table
        assert f"| {policy} | held | " in table
        assert f"(paper {paper}" in table
    rows = list(read_rows(tmp_path / "paper/mnist-5-uneven/random-0/rounds.jsonl"))
    tests = [row.test_accuracy for row in rows if row.test_accuracy is not None][-5:]
    end = f"{sum(tests) / len(tests):.0%} after {rows[-1].total_seconds:.0f} s"
    assert f"| random | {end} |" in table.partition("### mnist, where the budget ended")[2]
    figures = {path.stem for path in (tmp_path / "paper/figures/mnist-5-uneven").glob("*.png")}
    assert len(figures) >= 5
    assert (tmp_path / "paper/report.html").exists()

    (tmp_path / "paper/mnist-5-uneven/random-0/summary.json").unlink()
    (tmp_path / "paper/table.md").unlink()
    again = cli(*command(data))
    assert again.code == 0
    assert "3 runs were finished before." in again.err
    assert (tmp_path / "paper/table.md").read_text() == table
    assert table in again.out
    assert "Table: paper/table.md, figures: paper/figures, report: paper/report.html" in again.out


def test_files_that_are_missing_and_cannot_be_fetched_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    done = cli(*command(tmp_path / "empty", "--quiet"))
    done.refused("train-images-idx3-ubyte.gz", "empty/mnist", "--data-dir")


def test_cifar10_asks_for_its_weights_at_once(cli: Cli) -> None:
    cli("reproduce", "--dataset", "cifar10").refused("cifar10", "--weights")
    cli("reproduce").refused("--weights", "--dataset mnist")


def test_methods_are_set_against_load_aware_with_the_floor_beside_them(cli: Cli, tmp_path: Path, data: Path) -> None:
    # With a target that the first test reaches, both methods have a time.
    done = cli(*command(data, "--methods", "express", "--set", "budget.targets=[0.02]"))
    assert done.code == 0, done.err
    table = (tmp_path / "paper/table.md").read_text()
    assert "### mnist, 2% test accuracy: time over load-aware's" in table
    assert "| express | first reached | " in table
    assert "floor" in table
    assert (tmp_path / "paper/mnist-5-uneven/express-0/rounds.jsonl").exists()
    cli(*command(data, "--methods", "load-aware")).refused("name one method at least beside load-aware")


def test_all_methods_but_the_other_policies_are_raced_and_tested_as_rarely_as_asked(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[Request] = []
    monkeypatch.setattr(reproduction, "play_grid", lambda requests, *_: played.extend(requests))
    monkeypatch.setattr(reproduction, "_conclude", lambda *_: None)
    done = cli(
        "reproduce", "--dataset", "digits", "--scenario", "5", "--methods", "all", "--test-every", 512, "--seeds", 1
    )
    assert done.code == 0, done.err
    every = {request.scenario.method_name: request.scenario.evaluation.every for request in played}
    assert set(every) == {"load-aware", *(set(method_names()) - set(policy_names()))} | {"express"}
    assert every["load-aware"] == every["express"] == 1
    steps = method_named("gossip-async").settings["exchange.local_steps"]
    assert every["gossip-async"] == max(1, 512 // (steps * 32))

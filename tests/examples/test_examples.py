"""Every example runs, as its own text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Cli
from tramfl.record import Sent, read_rows

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_your_own_model_data_and_loads_end_in_a_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "own_model.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    seconds = dict(re.findall(r"(load-aware|random|variance-first) +│.*│ ([\d.]+|--) +│", done.stdout))
    assert len(seconds) == 3
    assert float(seconds["load-aware"]) > 0
    assert not done.stderr
    assert list(tmp_path.iterdir()) == []


def test_your_own_model_is_a_page_of_code() -> None:
    assert len((EXAMPLES / "own_model.py").read_text().splitlines()) <= 80


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The plug-ins as pip would lay them out, without pip and without a network."""
    place = tmp_path / "site"
    for package in ("own_policy", "own_method"):
        project = tomllib.loads((EXAMPLES / package / "pyproject.toml").read_text())["project"]
        about = place / f"{package}-{project['version']}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        groups = project["entry-points"].items()
        entries = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items()) for group, names in groups]
        (about / "entry_points.txt").write_text("\n".join(entries))
        (place / package).symlink_to(EXAMPLES / package / "src" / package)
    return place


def run(place: Path | None, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(place)} if place else {})}
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_your_own_policy_is_found_by_its_name_once_it_is_installed(installed: Path, tmp_path: Path) -> None:
    arguments = ("run", "--policy", "stay-or-nearest", "--no-training", "--rounds", "30", "--out", "run")
    assert "no policy `stay-or-nearest`" in run(None, tmp_path, *arguments).stderr
    done = run(installed, tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    record = (tmp_path / "run/rounds.jsonl").read_text()
    assert record.count("\n") == 30
    assert "The model stays and trains" in record
    assert "over the fastest link that helps" in record


def test_your_own_policy_is_raced_against_the_others_in_worker_processes(installed: Path, tmp_path: Path) -> None:
    policies = "load-aware,stay-or-nearest"
    done = run(
        installed, tmp_path, "compare", "--policies", policies, "--no-training", "--seeds", "1", "--rounds", "5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stay-or-nearest" in done.stdout


def test_your_own_method_is_listed_run_and_raced_once_it_is_installed(installed: Path, tmp_path: Path) -> None:
    arguments = ("run", "digits-3", "--method", "pass-on", "--rounds", "3", "--out", "run")
    assert "no method `pass-on`" in run(None, tmp_path, *arguments).stderr
    assert "pass-on" in run(installed, tmp_path, "methods").stdout
    done = run(installed, tmp_path, *arguments, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    for row in read_rows(tmp_path / "run/rounds.jsonl"):
        assert row.sent == tuple(Sent((node - 1) % 3, node, 38.42e6) for node in range(3))
        assert row.decision.reason == "3 nodes train and pass their models on."
    raced = ("compare", "digits-3", "--methods", "load-aware,pass-on", "--no-training", "--seeds", "1")
    done = run(installed, tmp_path, *raced, "--rounds", "5")
    assert done.returncode == 0, done.stderr
    assert "pass-on" in done.stdout


@pytest.mark.parametrize(("package", "tests"), [("own_policy", 8), ("own_method", 5)])
def test_your_own_part_passes_the_contract_as_its_readme_says(
    installed: Path, tmp_path: Path, package: str, tests: int
) -> None:
    place = EXAMPLES / package / "tests"
    quiet = ("-q", "-n", "0", "-p", "no:cacheprovider", f"--rootdir={place}", "-c", os.devnull)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, str(place)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{tests} passed" in done.stdout


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("own_policy", ("--policy stay-or-nearest", "tramfl.policies")),
        ("own_method", ("--method pass-on", "tramfl.methods")),
    ],
)
def test_the_readme_of_a_plug_in_names_what_is_there(package: str, words: tuple[str, ...]) -> None:
    text = (EXAMPLES / package / "README.md").read_text()
    for word in (f"pip install -e examples/{package}", *words):
        assert word in text


def test_three_hospitals_train_in_simulation_and_as_real_sites_with_the_same_app(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, study = EXAMPLES / "hospitals", EXAMPLES / "hospitals" / "study.toml"
    monkeypatch.syspath_prepend(str(place))
    simulated = cli("run", study, "--app", "wards:app", "--out", "simulated")
    assert "accuracy 90 %: first reached after" in simulated.out, simulated
    assert cli("init", "f", "--sites", "north,south,west", "--scenario", study).code == 0
    site = tmp_path / "f" / "sites" / "west" / "site.toml"
    site.write_text(site.read_text() + f'app = "wards:app"\napp_folder = "{place}"\n')
    found = cli("preflight", site, "--format", "json").data
    (model,) = (f for f in found["findings"] if f["check"] == "model and data")
    # All of this hospital's records but those it keeps aside: 180, 30 and 110.
    assert model["good"]
    assert "none: 162, mild: 27, severe: 99" in model["message"]

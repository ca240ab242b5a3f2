from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tramfl
from tramfl.notation import BadInput


@pytest.fixture(scope="module")
def result() -> tramfl.Result:
    return tramfl.simulate("digits-3", rounds=4, targets=[0.3, 1.0])


def test_the_model_of_a_result_has_the_accuracy_of_its_last_row(result: tramfl.Result) -> None:
    from tramfl.learning.data.datasets import load_dataset

    data = load_dataset("digits", Path())
    model = result.model()
    assert not model.training
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    images = torch.tensor(data.test_images)
    scale = 255.0 if data.test_images.dtype == "uint8" else 1.0
    with torch.no_grad():
        answers = model((images / scale - mean) / std).argmax(dim=1)
    right = (answers == torch.tensor(data.test_labels)).float().mean().item()
    last = [row.test_accuracy for row in result.rows if row.test_accuracy is not None][-1]
    assert right == pytest.approx(last, abs=0.02)
    assert result.model() is not model


def test_a_result_is_a_data_frame_a_line_and_a_page_in_a_notebook(result: tramfl.Result) -> None:
    import pandas as pd

    frame = result.dataframe()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["round"]) == [1, 2, 3, 4]
    assert repr(result).startswith("Result(digits-3, load-aware, seed 0, finished: 4 rounds, ")
    assert "1: not reached" in repr(result)
    html = result._repr_html_()
    assert "<table>" in html
    assert "<svg" in html


def test_a_result_of_several_models_says_which_of_them_was_tested() -> None:
    for method, words in (
        ("cmfd", "the mean over the nodes&#x27; models"),
        ("fedavg", "the one model that all agree on"),
    ):
        html = tramfl.simulate("digits-3", method=method, rounds=1)._repr_html_()
        assert words in html
    assert ">tested<" not in tramfl.simulate("digits-3", rounds=1)._repr_html_()


def test_without_training_there_is_no_model() -> None:
    with pytest.raises(BadInput, match="played without training: there is no model"):
        tramfl.simulate("digits-3", rounds=1, train=False).model()


def test_a_comparison_in_python_is_that_of_the_command(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"policies": ["load-aware", "random"], "seeds": "4-5", "rounds": 3, "train": False}
    found = tramfl.compare("digits-3", grid={"wait_seconds": [1.0, 2.0]}, jobs=1, out=tmp_path, **keys)
    assert len(found.runs) == 8
    assert {run.settings.wait_seconds for run in found.runs} == {1.0, 2.0}
    assert {run.seed for run in found.runs} == {4, 5}
    assert len(found.dataframe()) == 16, "two targets each"
    assert found.verdict in repr(found)
    assert "<svg" in found._repr_html_()
    assert found.report(tmp_path / "page.html").stat().st_size > 100_000
    assert len(tramfl.Comparison.load(tmp_path).runs) == 8
    with pytest.raises(BadInput, match="there is no policy `fast`"):
        tramfl.compare(policies=["fast"])


def test_the_public_names_are_there_to_see() -> None:
    assert dir(tramfl) == sorted(tramfl.__all__)
    for name in tramfl.__all__:
        assert getattr(tramfl, name) is not None


def test_a_bar_shows_how_far_a_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    tramfl.simulate("digits-3", rounds=3, train=False, progress=True)
    assert "round 3" in capsys.readouterr().err
    tramfl.simulate("digits-3", rounds=3, train=False)
    assert capsys.readouterr().err == ""


def test_a_script_of_two_lines_compares_without_being_run_again_by_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "race.py"
    lines = [
        "import tramfl",
        'print(tramfl.compare("digits-3", policies=["random", "tram"], seeds=1, train=False, rounds=2, jobs=2))',
    ]
    script.write_text("\n".join(lines))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Comparison of 2 runs") == 1

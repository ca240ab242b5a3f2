"""The examples of training your own things: each runs as its text says, in this process."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "training"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    loaded(name).main()
    return capsys.readouterr().out


def test_messages_are_classified_by_their_tokens_to_a_macro_f1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r"macro F1 ([\d.]+), AUROC ([\d.]+)", printed("text", capsys, monkeypatch))
    assert found is not None
    assert float(found[1]) >= 0.9
    assert float(found[2]) > 0.95


def test_a_number_is_predicted_and_regions_are_balanced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed("regions", capsys, monkeypatch)
    found = re.search(r"mean absolute error ([\d.]+)", text)
    assert found is not None
    assert float(found[1]) <= 0.75
    used = [int(n.replace(",", "")) for n in re.findall(r": ([\d,]+) samples used", text)]
    assert len(used) == 4
    # Half of all households are on the coast and a tenth in the hills.
    assert max(used) < 1.2 * min(used)


def test_only_adapters_travel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("adapters", capsys, monkeypatch)
    found = re.search(r"travel \((\d+)%\)", text)
    accuracy = re.search(r"accuracy ([\d.]+)%", text)
    assert found is not None
    assert accuracy is not None
    assert int(found[1]) <= 5
    assert float(accuracy[1]) >= 85


def test_a_folder_of_images_is_learnt_with_augmentation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    text = printed("folder", capsys, monkeypatch)
    accuracy = re.search(r"192 training images of disc, frame, stripes\n\d+ rounds, accuracy ([\d.]+)%", text)
    assert accuracy is not None
    assert float(accuracy[1]) >= 90

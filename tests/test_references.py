"""The user's own objects by name: where their modules may come from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tramfl import references
from tramfl.notation import BadInput
from tramfl.references import look_only_in, referred


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_places", [Path.cwd])
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_module_of_the_current_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_here.py").write_text("found = 3")
    monkeypatch.chdir(tmp_path)
    assert referred("named_here:found", "app") == 3


def test_a_site_takes_no_module_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_here.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    look_only_in(None)
    with pytest.raises(BadInput, match="planted_here cannot be imported"):
        referred("planted_here:found", "app")


def test_a_site_takes_modules_from_the_folder_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "named_there.py").write_text("found = 5")
    look_only_in(tmp_path)
    assert referred("named_there:found", "app") == 5

from __future__ import annotations

import pytest

from tests.system_parts import require


def test_a_program_that_is_there_is_found() -> None:
    assert require("sh").endswith("sh")


def test_a_missing_program_skips_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        require("no-such-program")


def test_a_missing_program_fails_its_test_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        require("no-such-program")

from __future__ import annotations

import subprocess
from pathlib import Path

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


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_what_cannot_be_installed_is_named_and_fails_only_under_ci(tmp_path: Path, ci: str, code: int) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    script = Path(__file__).parents[1] / "scripts" / "system_parts.sh"
    environment = {"PATH": str(tmp_path), "CI": ci}
    done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "chromium etcd-server iproute2 prometheus;" in done.stderr

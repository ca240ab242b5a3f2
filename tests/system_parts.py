"""Programs that tests use and pip does not install: without one its tests are skipped, except under CI=true."""

from __future__ import annotations

import os
import shutil

import pytest

TIED = (setpriv, "--pdeathsig", "KILL", "--") if (setpriv := shutil.which("setpriv")) else ()
"""The words before a command that the kernel is to kill when the thread that started it ends: no process of a test
stays behind, however the tests end. Start such a command in the main thread, or in one that outlives the command."""


def require(program: str) -> str:
    """The path of a program; where it is missing the test is skipped, and under CI=true it fails."""
    found = shutil.which(program)
    if found is not None:
        return found
    reason = f"{program} is not installed; scripts/system_parts.sh installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)

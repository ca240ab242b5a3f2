"""Real servers and callers in one process, on a machine that may be busy."""

from __future__ import annotations

import pytest

from tests.runtime.sites import SECONDS
from tramfl.runtime.transport import calling


@pytest.fixture(autouse=True)
def long_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers wait for a handshake as long as tests wait for anything: where it fails, their calls do."""
    monkeypatch.setattr(calling, "CONNECT_SECONDS", int(SECONDS))

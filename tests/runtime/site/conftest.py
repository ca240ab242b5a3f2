"""Patience with sites: one that lives answers, however busy the machine; one that has ended is known at once."""

from __future__ import annotations

import pytest

from tramfl.runtime.operator import operating, preflight


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "ANSWER_SECONDS", 30.0)
    monkeypatch.setattr(preflight, "PEER_SECONDS", 30.0)

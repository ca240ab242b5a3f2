"""Two sites, one with a newer protocol: they start no run together, the newer joins none, and each says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import PATIENCE
from tests.runtime.federations import LocalFederation
from tramfl.config import Budget, Partition
from tramfl.notation import BadInput
from tramfl.runtime.wire import PROTOCOL
from tramfl.simulation.scenarios import scenario_named

SCENARIO = replace(
    scenario_named("digits-3"), partition=Partition(layout="iid", nodes=2), budget=Budget(rounds=100_000)
)
REMEDY = "all sites of a federation, and its operator, need the same minor version of tramfl"


def test_a_site_of_a_newer_protocol_starts_no_run_and_joins_none(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import tramfl.runtime.wire as wire\nwire.PROTOCOL += 1\n")

    def newer(name: str) -> tuple[str, ...]:
        return ("env", f"PYTHONPATH={tmp_path}") if name == "b" else ()

    with LocalFederation(tmp_path / "f", SCENARIO, 2, wrap=newer) as federation:
        federation.start("b")
        federation.wait("b", lambda: any(e["event"] == "started" for e in federation.events("b")))
        federation.start("a")
        federation.ready("a")
        with pytest.raises(BadInput, match=rf"site b cannot take part: .*tramfl\.v{PROTOCOL + 1}\.Site.*{REMEDY}"):
            federation.order("start", "first")
        assert federation.status().record is None
        federation.kill("b")
        assert "not there yet: b" in federation.order("start", "first")
        federation.start("b")
        assert federation.processes["b"].wait(PATIENCE) != 0
        (ended,) = (e["reason"] for e in federation.events("b") if e["event"] == "broken")
        assert f"run first is of protocol {PROTOCOL}, and this site" in ended
        assert f"has protocol {PROTOCOL + 1}; install the version of tramfl that the other sites have." in ended

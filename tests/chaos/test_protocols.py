"""Sites of different versions.

With another protocol they start no run together, the newer joins none, and each says why, once. With one protocol
they work together: a federation is upgraded one site at a time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import tramfl
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
        assert federation.answers("a").record is None
        federation.kill("b")
        assert "not there yet: b" in federation.order("start", "first")
        federation.start("b")
        # It does not end: a record of another protocol may be a hostile member's. It waits for one that it can read.
        said = federation.seen("word about the protocol", lambda: next(iter(ignored(federation)), None))
        assert f"the run there is of protocol {PROTOCOL}, and this site" in said
        assert f"has protocol {PROTOCOL + 1}; install the version of tramfl that the other sites have." in said
        federation.wait_for_round(federation.record.round + 5)
        assert ignored(federation) == [said], "said once, though the run goes on"
        assert federation.processes["b"].poll() is None


def ignored(federation: LocalFederation) -> list[str]:
    """Why the newer site ignores the record."""
    return [event["reason"] for event in federation.events("b") if event["event"] == "record-ignored"]


NEXT = "99.0.0"


def next_version(folder: Path) -> Path:
    """A copy of the program with another version's number, whose sites say more about themselves than these do."""
    copy = folder / "tramfl"
    shutil.copytree(Path(tramfl.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "version.py").write_text(f'"""The version."""\n\n__version__ = "{NEXT}"\n')
    wire = (copy / "runtime" / "wire.py").read_text()
    assert wire.count("    twin: str | None = None\n") == 1
    (copy / "runtime" / "wire.py").write_text(
        wire.replace("    twin: str | None = None\n", '    mood: str = "new"\n    twin: str | None = None\n')
    )
    return folder


def wait_for_a_round_at(federation: LocalFederation, name: str) -> None:
    node, now = federation.names.index(name), federation.record.round
    federation.wait(f"round at {name}", lambda: any(r.node == node for r in federation.rows() if r.round > now))


def test_a_federation_is_upgraded_one_site_at_a_time_while_its_run_goes_on(tmp_path: Path) -> None:
    newer = next_version(tmp_path / "next")
    upgraded: set[str] = set()

    def version(name: str) -> tuple[str, ...]:
        return ("env", f"PYTHONPATH={newer}") if name in upgraded else ()

    scenario = replace(SCENARIO, partition=Partition(layout="iid", nodes=3), policy="random")
    with LocalFederation(tmp_path / "f", scenario, 3, wrap=version) as federation:
        federation.begin()
        before = federation.wait_for_round(3)
        for name in federation.names:
            process = federation.processes[name]
            process.terminate()
            assert process.wait(PATIENCE) == 0, federation.logs()
            upgraded.add(name)
            federation.start(name)
            federation.ready(name)
            wait_for_a_round_at(federation, name)
            status = federation.answers()
            found = {s.site: s.report.version for s in status.sites if s.report is not None}
            assert found == {n: NEXT if n in upgraded else tramfl.__version__ for n in federation.names}
            said = status.mixed_versions
            assert (said is None) == (len(upgraded) == 3), said
            assert said is None or f"tramfl {NEXT} (protocol {PROTOCOL})" in said
        after = federation.record
        assert (after.run, after.epoch) == (before.run, before.epoch), "nobody was lost, so nobody took over"
        assert [row.round for row in federation.rows()][: after.round] == list(range(1, after.round + 1))
        federation.order("stop")
        federation.rest()

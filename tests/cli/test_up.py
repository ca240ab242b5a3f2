"""`tramfl up`: a whole federation of real processes, and its record replayed in simulation."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Cli, Process, ended
from tramfl.record import Row, RunFolder, read_rows
from tramfl.runtime.weights.store import file_digest

# What is trained, where and on how many samples: what a decision is.
DECISION = ("node", "holder", "samples")


def test_three_sites_reach_90_percent_and_decide_as_the_simulator_does(tmp_path: Path, cli: Cli) -> None:
    assert cli("run", "--no-training", "--rounds", 9, "--out", "real").code == 0
    rules = ("--target", "0.7,0.9", "--set", "evaluation.every=2")
    up = ("up", "digits-3", "--sites", 3, "--seed", 1, *rules, "--out", "real")
    cli(*up).refused("already holds a run")
    real: list[Row] = []
    # A machine that stands still for seconds may make a site give a round up, which costs it seconds, or take the
    # run over: a replay cannot know that. The first round may lose tenths of a second while sites join.
    while not real or any(row.lost_seconds > 1 or row.epoch > 1 for row in real):
        done = cli(*up, "--overwrite")
        assert done.code == 0, done
        real = list(read_rows(tmp_path / "real" / "rounds.jsonl"))
    assert RunFolder(tmp_path / "real").resolved().clock == "real"
    assert max(row.test_accuracy or 0.0 for row in real) >= 0.9
    # A replay knows the loads of the recorded rounds and what they took: nothing else came from the real sites.
    replay = ("--loads", "real/rounds.jsonl", "--rounds", len(real), "--target", "1.0", "--out", "simulated")
    assert cli("run", "real/config.toml", *replay).code == 0
    simulated = list(read_rows(tmp_path / "simulated" / "rounds.jsonl"))
    for ours, theirs in zip(simulated, real, strict=True):
        assert [getattr(ours, key) for key in DECISION] == [getattr(theirs, key) for key in DECISION]
        # Where rounds are quicker than tests a site leaves some out; it never tests where a simulation would not.
        if theirs.test_accuracy is not None:
            assert ours.test_accuracy == theirs.test_accuracy
    # The folder is a run's like any other, except that it cannot be resumed.
    assert cli("report", "real").code == 0
    cli("run", "--resume", "--out", "real").refused("record of a real federation", "--loads")
    cli("up", "--out", "real").refused("already holds a run")


def test_sites_and_scenario_must_fit(cli: Cli) -> None:
    cli("up", "digits-5", "--sites", 3).refused("5 nodes", "3 sites")


LIAR = """
import os, sys
from pathlib import Path

file = next((Path(word) for word in sys.orig_argv if word.endswith("/c/site.toml")), None)
if file is not None:
    import msgspec
    from msgspec.structs import replace
    from tramfl.runtime.registers import Standing
    from tramfl.runtime.site.hosting import Hosting
    from tramfl.runtime.site.orders import Orders
    from tramfl.runtime.transport import Refusal
    from tramfl.runtime.weights.store import file_digest

    own = Path(os.environ["OWN_FILE"])
    honest = Orders._here

    def lie(orders):
        found = honest(orders)
        standing = msgspec.msgpack.decode(found.record, type=Standing) if found.record else None
        weights = next((file.parent / "state").glob("runs/*/*.safetensors"), None)
        if standing is None or standing.versioned is None or weights is None:
            return found
        if not own.exists():
            content = weights.read_bytes()
            header = 8 + int.from_bytes(content[:8], "little")
            own.write_bytes(content[:header] + bytes(len(content) - header))
        true, mine = standing.versioned, {"digest": file_digest(own), "copies": (2,)}
        weights, safe = replace(true.record.weights, **mine), replace(true.record.safe, **mine)
        false = replace(true.record, status="stopped", holder=2, weights=weights, safe=safe)
        shown = replace(standing, versioned=replace(true, record=false, revision=1 << 40))
        return replace(found, record=msgspec.msgpack.encode(shown))

    async def no_load(hosting, peer, ask):
        raise Refusal("this site only talks")

    Orders._here, Hosting.load = lie, no_load
    Hosting.model_path = lambda hosting, digest: own
"""
"""Site c takes no part, and reports to the operator that the run has ended, with weights of its own making."""


def test_a_lying_site_neither_ends_a_live_run_nor_delivers_its_own_file(tmp_path: Path, process: Process) -> None:
    (tmp_path / "lies").mkdir()
    (tmp_path / "lies" / "sitecustomize.py").write_text(LIAR)
    own, street = tmp_path / "own.safetensors", tmp_path / "street"
    up = ("up", "digits-3", "--sites", 3, "--rounds", 8, "--out", "real", "--keep", street, "--format", "json")
    done = ended(process(*up, PYTHONPATH=str(tmp_path / "lies"), OWN_FILE=str(own)))
    assert done.code == 0, done
    assert own.exists(), "the site has lied"
    assert done.data["status"] == "finished"
    assert len(list(read_rows(tmp_path / "real" / "rounds.jsonl"))) == done.data["rounds"] >= 8
    stored = [path for name in "ab" for path in (street / "sites" / name / "state").glob("runs/*/*.safetensors")]
    delivered = file_digest(tmp_path / "real" / "model.safetensors")
    assert delivered in set(map(file_digest, stored))
    assert delivered != file_digest(own)

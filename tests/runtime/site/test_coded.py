"""Real sites whose models travel in four bits a weight; they test and deliver a mean of what passed through them."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from tests.conftest import Cli
from tests.runtime.federations import LocalFederation
from tramfl.config import Budget
from tramfl.learning.model.coded_files import RawFile, decoded_file
from tramfl.learning.model.weights import from_bytes
from tramfl.methods import EXPRESS, with_method
from tramfl.simulation.scenarios import scenario_named

EXPRESS_RUN = with_method(scenario_named("digits-3"), EXPRESS)
SCENARIO = replace(
    EXPRESS_RUN, budget=Budget(rounds=100_000), evaluation=replace(EXPRESS_RUN.evaluation, every=4, subset=100)
)

OTHER_FIRST_WEIGHTS = """
import os, sys
if "node" in sys.orig_argv:
    os.environ["ANOTHER_PYTORCH"] = str(any(word.endswith("c/site.toml") for word in sys.orig_argv))
elif os.environ.get("ANOTHER_PYTORCH") == "True":
    from tramfl.learning.training import building
    build = building.build_network
    building.build_network = lambda *names, seed, **more: build(*names, seed=seed + 1, **more)
"""


def test_coded_models_survive_a_kill_and_a_site_without_the_reference_and_are_delivered_plain(
    tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "sitecustomize.py").write_text(OTHER_FIRST_WEIGHTS)
    environment = {"PYTHONPATH": str(tmp_path)}
    with LocalFederation(tmp_path / "f", SCENARIO, 3, lease_seconds=6.0, environment=environment) as federation:
        federation.start()
        federation.ready()
        federation.order("start", "run")
        federation.recorded("training at c", lambda row: row.node == 2)
        fetched = [line for line in federation.events("c") if line["event"] == "reference-fetched"]
        assert len(fetched) == 1
        federation.kill("b")
        dead = federation.record.round
        federation.wait_for_round(dead + 3)
        federation.start("b")
        federation.ready()
        federation.recorded("model that has learnt", lambda row: row.round > dead and (row.test_accuracy or 0) > 0.3)
        federation.order("stop")
        federation.rest()

        reference = (federation.site_folder("a") / "state" / "references").glob("*.safetensors")
        plain = next(reference).read_bytes()
        stored = [content for name in federation.names for content in federation.stored(name)]
        assert stored
        for content in stored:
            found = RawFile.of(content)
            assert found.codec == "int4"
            assert found.reference == fetched[0]["digest"]
            assert len(content) < 0.45 * len(plain)  # of so small a network, names and biases are a third

        assert cli("pull", federation.federation, "--out", "mean").code == 0
        assert cli("pull", federation.federation, "--out", "last", "--readout", "last").code == 0
        cli("pull", federation.federation, "--out", "x", "--readout", "visit").refused("tests 'average'")
        mean, last = (tmp_path / name / "model.safetensors" for name in ("mean", "last"))
        newest = from_bytes(last.read_bytes())
        assert last.read_bytes() in [decoded_file(content, plain) for content in stored]
        delivered = from_bytes(mean.read_bytes())
        assert {name: (t.dtype, t.shape) for name, t in delivered.items()} == {
            name: (t.dtype, t.shape) for name, t in from_bytes(plain).items()
        }
        assert newest.keys() == delivered.keys()
        assert not all(newest[name].equal(delivered[name]) for name in newest)
        # The record can be replayed, and charges what the model takes on the wire.
        summary = json.loads((tmp_path / "last" / "summary.json").read_text())
        assert summary["cost"]["model_bits"] < 8 * 0.2 * len(plain)
        assert list((tmp_path / "last").glob("*.safetensors")) == [last]

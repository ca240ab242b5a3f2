"""Three sites as real processes: what an operator does with them, from the first start to the fetched model."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.conftest import Cli
from tests.runtime.federations import LocalFederation, free_ports
from tramfl.cli.federation_source import FederationSource
from tramfl.config import Budget
from tramfl.learning.weights import digest, from_bytes
from tramfl.notation import BadInput
from tramfl.record import read_rows
from tramfl.simulation.scenarios import scenario_named

SCENARIO = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Three sites and a run that has done some rounds; every test leaves it running."""
    with LocalFederation(tmp_path_factory.mktemp("f") / "f", SCENARIO, 3) as federation:
        federation.begin("first")
        federation.wait_for_round(10)
        yield federation


def test_status_shows_the_record_the_sites_and_how_well_times_were_predicted(
    federation: LocalFederation, cli: Cli
) -> None:
    shown = cli("status", federation.federation)
    assert shown.code == 0
    assert "run first is running" in shown.out
    assert all(name in shown.out for name in ("a", "b", "c", "predicted s", "actual s"))
    federation.ready()
    found = cli("status", federation.federation, "--format", "json").data
    assert [site["site"] for site in found["status"]["sites"]] == ["a", "b", "c"]
    assert all(site["alive"] and site["answers"] for site in found["status"]["sites"])
    assert found["status"]["record"]["ledger"]["round"] >= 10
    assert all(row["predicted_seconds"] > 0 and row["actual_seconds"] > 0 for row in found["last_rounds"])


def test_a_site_can_ask_with_its_own_certificate(federation: LocalFederation, cli: Cli) -> None:
    assert cli("status", federation.site_folder("b") / "site.toml").code == 0


def test_a_paused_run_rests_and_goes_on_when_resumed(federation: LocalFederation, cli: Cli) -> None:
    assert "is paused" in cli("pause", federation.federation).out
    federation.wait("rest, with nothing that lies at one site alone", federation.rests)
    before = federation.record
    assert (before.status, before.safe.round) == ("paused", before.round)
    assert cli("resume", federation.federation, "--format", "json").data["done"] is True
    federation.wait_for_round(before.round + 3)


def test_rounds_are_recorded_without_gap_and_add_up_to_the_ledger(federation: LocalFederation) -> None:
    rows = federation.rows()
    assert [row.round for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1].used == tuple(np.sum([row.samples for row in rows], axis=0))
    assert sum(row.test_accuracy is not None for row in rows) > len(rows) / 2
    assert {row.node for row in rows} == {0, 1, 2}


def test_pull_fetches_the_newest_safe_model_and_every_round(
    federation: LocalFederation, cli: Cli, tmp_path: Path
) -> None:
    told = cli("pull", federation.federation, "--out", tmp_path / "pulled", "--format", "json").data
    content = (tmp_path / "pulled" / "model.safetensors").read_bytes()
    assert digest(content) == told["digest"]
    assert set(from_bytes(content)) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    rows = list(read_rows(tmp_path / "pulled" / "rounds.jsonl"))
    assert len(rows) == told["rounds"] >= told["safe_round"] >= 1
    assert (tmp_path / "pulled" / "report.html").exists()
    again = cli("pull", federation.federation, "--out", tmp_path / "pulled", "--format", "json").data
    assert again["rounds"] >= told["rounds"]


def test_pull_does_not_overwrite_a_simulated_run(federation: LocalFederation, cli: Cli, tmp_path: Path) -> None:
    cli("run", "--no-training", "--rounds", 2, "--out", tmp_path / "simulated")
    cli("pull", federation.federation, "--out", tmp_path / "simulated").refused("already holds a run")
    assert not (tmp_path / "simulated" / "model.safetensors").exists()


def test_a_run_that_is_running_cannot_be_started_again(federation: LocalFederation) -> None:
    with pytest.raises(BadInput, match="run first is running; stop it first"):
        federation.order("start", "second")


def test_a_run_needs_a_name_fit_for_a_folder(federation: LocalFederation) -> None:
    with pytest.raises(BadInput, match="no name for a run"):
        federation.order("start", "../elsewhere")


def test_log_lines_say_where_the_run_is(federation: LocalFederation) -> None:
    events = [event for name in federation.names for event in federation.events(name)]
    committed = [event for event in events if event["event"] == "committed"]
    assert committed
    for event in committed:
        assert (event["run"], event["epoch"]) == ("first", 1)
        assert event["round"] >= 1
        assert event["site"] in federation.names
    assert not [event for event in events if event["event"] in ("broken", "failed")]


def test_a_second_process_of_the_same_site_is_refused(federation: LocalFederation, cli: Cli) -> None:
    cli("node", federation.site_folder("a") / "site.toml").refused("another process of site 'a'")


def test_preflight_of_a_running_site_finds_everything_in_order(federation: LocalFederation, cli: Cli) -> None:
    done = cli("preflight", federation.site_folder("a") / "site.toml")
    assert done.code == 0, done
    assert "FIX" not in done.out
    assert done.out.count("clocks agree") == 2


def test_without_certificates_nobody_is_let_in(federation: LocalFederation, cli: Cli) -> None:
    done = cli("status", federation.federation, "--insecure")
    assert done.code == 1
    assert "no site answers" in done.out
    federation.wait("refusal in the log", lambda: any(e["event"] == "refused" for e in federation.events("a")))
    (federation.site_folder("a") / "log.jsonl").write_bytes(b"")  # seen: later tests look for others


def test_a_federation_can_be_watched_and_its_rounds_come_with_their_tests(federation: LocalFederation) -> None:
    before = federation.record.round
    with FederationSource(federation.federation, insecure=False) as source:
        now = source.now()
        assert (now.clock, now.status, [site.name for site in now.sites]) == ("real", "running", ["a", "b", "c"])
        assert now.run.startswith("first/")
        assert all(site.alive and site.held for site in now.sites)
        rows = source.rows(0)
        assert [row.round for row in rows] == list(range(1, len(rows) + 1))
        assert all(row.test_accuracy is not None for row in rows[: before // 2] if row.node is not None)
        assert [row.round for row in source.rows(5)[:2]] == [6, 7]


class TestInsecure:
    """Sites without certificates, which must be asked for."""

    def test_sites_on_loopback_may_do_without_if_asked(self, tmp_path: Path, cli: Cli) -> None:
        port, metrics = free_ports(2)
        assert cli("init", tmp_path / "f", "--sites", "a", "--addresses", f"127.0.0.1:{port}").code == 0
        file = tmp_path / "f" / "sites" / "a" / "site.toml"
        command = ("node", str(file), "--insecure", "--metrics", str(metrics))
        with LocalFederation.process(*command, log=tmp_path / "log") as process:
            LocalFederation.wait_for(
                lambda: b'"started"' in (tmp_path / "log").read_bytes(), process, tmp_path / "log"
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as page:
                text = page.read().decode()
            assert "# TYPE tramfl_site_flops gauge" in text
            assert 'tramfl_events_total{event="started"} 1' in text
            begun = cli("start", tmp_path / "f" / "federation.toml", "--insecure")
            assert "begins at a with 1 sites" in begun.out

    def test_and_nowhere_else(self, tmp_path: Path, cli: Cli) -> None:
        cli("init", tmp_path / "f", "--sites", "a,b", "--addresses", "127.0.0.1:7401,192.0.2.7:7401")
        cli("node", tmp_path / "f/sites/a/site.toml", "--insecure").refused("loopback only", "'b'", "192.0.2.7")
        cli("status", tmp_path / "f/federation.toml", "--insecure").refused("loopback only")


def test_sites_that_would_not_train_the_same_do_not_begin(tmp_path: Path) -> None:
    with LocalFederation(tmp_path / "f", SCENARIO, 3) as federation:
        file = federation.site_folder("c") / "federation.toml"
        file.write_text(file.read_text().replace("learning_rate = 0.05", "learning_rate = 0.06"))
        federation.start()
        federation.ready()
        with pytest.raises(BadInput, match=r"site c differs from . in the \[run\] table"):
            federation.order("start", "run")
        assert federation.status().record is None


def test_an_ended_run_can_be_followed_by_another(federation: LocalFederation) -> None:
    # The last test of the shared federation: it ends its run.
    assert "is stopped" in federation.order("stop")
    federation.wait("rest", federation.rests)
    with pytest.raises(BadInput, match="stopped for good"):
        federation.order("resume")
    with pytest.raises(BadInput, match="fetch its model with tramfl pull"):
        federation.order("start", "second")
    assert "run second begins" in federation.order("start", "second", replacing=True)
    federation.wait_for_round(3)
    assert federation.record.run == "second"


def test_json_of_an_unreachable_federation_is_json_too(tmp_path: Path, cli: Cli) -> None:
    cli("init", tmp_path / "f", "--sites", "a", "--addresses", f"127.0.0.1:{free_ports(1)[0]}")
    done = cli("status", tmp_path / "f" / "federation.toml", "--format", "json")
    assert done.code == 1
    assert json.loads(done.out)["status"]["sites"][0]["answers"] is False
    cli("start", tmp_path / "f" / "federation.toml").refused("no site of 'f' answers")

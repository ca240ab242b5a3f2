"""Three sites as real processes: what an operator does with them, from the first start to the fetched model."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.conftest import Cli
from tests.runtime.federations import LocalFederation, unreadable
from tramfl.config import Budget
from tramfl.learning.model.weights import digest, from_bytes
from tramfl.notation import BadInput
from tramfl.record import RunFolder, read_rows
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.operator.watching import FederationSource
from tramfl.simulation.scenarios import scenario_named

SCENARIO = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000))

THREE_LABELS = """
import numpy as np
import tramfl
from torch import nn
from tramfl.learning.data.datasets import Dataset

def data(site=None):
    labels = np.repeat(np.arange(3), 20)
    inputs = np.random.default_rng(0).normal(size=(labels.size, 1, 1, 8))
    whole = (inputs, labels, inputs, labels)
    return Dataset.from_arrays("three", *whole, classes=("x", "y", "z"), mean=(0.0,), std=(1.0,))

def model(classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(8, classes))

app = tramfl.App(model=model, data=data)
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Three sites and a run that has done some rounds; every test leaves it running."""
    with LocalFederation(tmp_path_factory.mktemp("f") / "f", SCENARIO, 3) as federation:
        federation.begin("first")
        federation.wait_for_round(10)
        yield federation


def list_only_the_first_site(file: Path) -> None:
    text = file.read_text()
    second = text.index("[[site]]", text.index("[[site]]") + 1)
    file.write_text(text[:second] + text[text.index("[register]") :])


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


def test_status_shows_all_but_the_rounds_while_the_register_is_silent(federation: LocalFederation, cli: Cli) -> None:
    with unreadable(federation.folder / "register.sqlite"):
        shown = cli("status", federation.federation)
        told = cli("status", federation.federation, "--format", "json")
    assert (shown.code, told.code) == (0, 0)
    assert "run first is running" in shown.out
    assert "The rounds cannot be read at the moment: no site gives the rounds" in shown.out
    assert "predicted s" not in shown.out
    assert told.data["status"]["record"]["ledger"]["round"] >= 10
    assert told.data["last_rounds"] == []
    assert "the register does not answer" in told.data["last_rounds_unread"]
    federation.wait_for_round(federation.record.round + 3)
    after = cli("status", federation.federation, "--format", "json").data
    assert (len(after["last_rounds"]), after["last_rounds_unread"]) == (5, None)


def test_sites_that_only_the_run_knows_are_shown_by_their_numbers(
    federation: LocalFederation, cli: Cli, tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(federation.folder, fewer, ignore=shutil.ignore_patterns("sites", "register*"))
    list_only_the_first_site(fewer / "federation.toml")
    shown = cli("status", fewer / "federation.toml", "--rounds", 50)
    assert shown.code == 0, shown
    assert "site number 1" in shown.out
    assert "site number 2" in shown.out
    with FederationSource(fewer / "federation.toml", insecure=False) as source:
        assert [site.name for site in source.now().sites] == ["a"]


def test_a_site_can_ask_with_its_own_certificate(federation: LocalFederation, cli: Cli) -> None:
    assert cli("status", federation.site_folder("b") / "site.toml").code == 0


def test_a_paused_run_rests_and_goes_on_when_resumed(federation: LocalFederation, cli: Cli) -> None:
    assert "is paused" in cli("pause", federation.federation).out
    before = federation.rest()
    assert (before.status, before.safe.digest) == ("paused", before.weights.digest)
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


def test_pull_replaces_no_other_run_unless_it_is_told_to(
    federation: LocalFederation, cli: Cli, tmp_path: Path
) -> None:
    pulled = tmp_path / "pulled"
    assert cli("pull", federation.federation, "--out", pulled).code == 0
    config = (pulled / "config.toml").read_text()
    before = (pulled / "model.safetensors").read_bytes(), (pulled / "rounds.jsonl").read_bytes()
    federation.wait_for_round(federation.record.round + 3)
    for line, words in (('run = "other"\n', "a run, 'other', and this one is 'first'"), ("", "this one is 'first'")):
        (pulled / "config.toml").write_text(config.replace('run = "first"\n', line))
        cli("pull", federation.federation, "--out", pulled).refused("already holds a run", words, "--overwrite")
        assert ((pulled / "model.safetensors").read_bytes(), (pulled / "rounds.jsonl").read_bytes()) == before
    assert cli("pull", federation.federation, "--out", pulled, "--overwrite").code == 0
    assert RunFolder(pulled).resolved().run == "first"
    assert (pulled / "rounds.jsonl").read_bytes() != before[1]


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


class TestPreflightOfAnotherRun:
    """A site that would end when it saw the run under way."""

    @pytest.fixture
    def site(self, federation: LocalFederation, tmp_path: Path) -> Path:
        """A folder like that of site a, to change."""
        shutil.copytree(federation.site_folder("a"), tmp_path / "site", ignore=shutil.ignore_patterns("state"))
        return tmp_path / "site"

    def message(self, cli: Cli, site: Path) -> str:
        done = cli("preflight", site / "site.toml", "--format", "json")
        assert done.code == 1
        (found,) = (finding for finding in done.data["findings"] if finding["check"] == "run")
        assert not found["good"]
        return str(found["message"])

    def test_other_labels_are_named(self, cli: Cli, site: Path, tmp_path: Path) -> None:
        (tmp_path / "three_labels.py").write_text(THREE_LABELS)
        with (site / "site.toml").open("a") as file:
            file.write('app = "three_labels:app"\n')
        assert "run first has 10 labels, and this site's data has 3" in self.message(cli, site)

    def test_a_list_that_lacks_sites_is_named(self, cli: Cli, site: Path) -> None:
        list_only_the_first_site(site / "federation.toml")
        assert f"{site / 'federation.toml'} lists only 1; give this site" in self.message(cli, site)


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
    federation.rest()
    with pytest.raises(BadInput, match="stopped for good"):
        federation.order("resume")
    with pytest.raises(BadInput, match="fetch its model with tramfl pull"):
        federation.order("start", "second")
    assert "run second begins" in federation.order("start", "second", replacing=True)
    federation.wait_for_round(3)
    assert federation.record.run == "second"
    federation.order("stop")
    with pytest.raises(BadInput, match="there was a run first before"):
        federation.order("start", "first", replacing=True)


def test_json_of_an_unreachable_federation_is_json_too(tmp_path: Path, cli: Cli) -> None:
    cli("init", tmp_path / "f", "--sites", "a", "--addresses", f"127.0.0.1:{free_ports(1)[0]}")
    done = cli("status", tmp_path / "f" / "federation.toml", "--format", "json")
    assert done.code == 1
    assert json.loads(done.out)["status"]["sites"][0]["answers"] is False
    cli("start", tmp_path / "f" / "federation.toml").refused("no site of 'f' answers")

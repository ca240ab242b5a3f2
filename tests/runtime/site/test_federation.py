"""Three sites as real processes: what an operator does with them, from a bad start to the fetched model.

One federation for all tests, since sites take seconds to start. Its run rests unless a test has it go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from tests.conftest import Cli, Process, ended
from tests.runtime.federations import LocalFederation, patient_register, unreadable
from tramfl.circulation.custody import Entry, Record, first_record
from tramfl.config import Budget
from tramfl.learning.model.weights import digest, from_bytes
from tramfl.notation import BadInput
from tramfl.record import AuditEntry, AuditFile, RunFolder, read_audit, read_rows
from tramfl.runtime.operator import operating, preflight
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.operator.preflight import Finding
from tramfl.runtime.operator.watching import FederationSource
from tramfl.runtime.registers.contract import ABSENT
from tramfl.runtime.settings import RegisterSettings, SiteSettings, read_federation, read_site
from tramfl.runtime.training import Built
from tramfl.runtime.transport import Peers
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import PROTOCOL
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


UNLUCKY = """
from tramfl.scheduling.load_aware import LoadAware

choose = LoadAware.choose

def unlucky(self, now, rng):
    if now.ledger.round == 3:
        raise ZeroDivisionError("one of those days")
    return choose(self, now, rng)

LoadAware.choose = unlucky
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Three sites and a run that has done some rounds and rests, after a bad start; every test leaves it at rest.

    An older run, which does not fit them, is in their register; a and b have no proper count of their lives; and the
    policy fails in the fourth round.
    """
    folder = tmp_path_factory.mktemp("f")
    (folder / "sitecustomize.py").write_text(UNLUCKY)
    with LocalFederation(folder / "f", SCENARIO, 3, environment={"PYTHONPATH": str(folder)}) as federation:
        asyncio.run(leave_an_ended_run(federation.federation))
        for name, text in (("a", "garbage"), ("b", str(1 << 40)), ("c", "8191")):
            state = federation.site_folder(name) / "state"
            state.mkdir(parents=True)
            (state / "incarnation").write_text(text)
        federation.start()
        federation.ready()
        federation.order("start", "first", replacing=True)
        for node in range(3):
            federation.recorded("round of every site", lambda row, node=node: row.node == node)  # type: ignore[misc]
        federation.wait_for_round(12)
        federation.order("pause")
        federation.rest()
        yield federation


@pytest.fixture(scope="module")
def model_of_a(federation: LocalFederation) -> tuple[Finding, Built | None, int]:
    """What preflight finds of the model and data of site a, loaded as the site loads them."""
    return asyncio.run(preflight._model(read_site(federation.site_folder("a") / "site.toml")))


@pytest.fixture
def loaded_once(model_of_a: tuple[Finding, Built | None, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight does not load model and data again: that takes a process with PyTorch every time."""

    async def model(site: SiteSettings) -> tuple[Finding, Built | None, int]:
        return model_of_a

    monkeypatch.setattr(preflight, "_model", model)


@contextlib.contextmanager
def going_on(federation: LocalFederation) -> Iterator[Record]:
    """The run goes on meanwhile; the record from before."""
    before = federation.rest()
    federation.order("resume")
    yield before
    federation.order("pause")
    federation.rest()


async def leave_an_ended_run(path: Path) -> None:
    file = read_federation(path)
    register = patient_register(file, "a")
    credentials = operating.site_credentials(read_site(path.parent / "sites" / "a" / "site.toml"), False)
    assert credentials is not None
    register.records.seal = SiteSeal("a", credentials)
    await register.join()
    members = tuple(Entry(site.name, site.address) for site in file.file.site)
    old = replace(first_record("old", 1, "0" * 64, (1,), 2, members), status="stopped", protocol=PROTOCOL)
    assert await register.swap(ABSENT, old) is not None
    await register.leave()
    await register.close()


def list_only_the_first_site(file: Path) -> None:
    text = file.read_text()
    second = text.index("[[site]]", text.index("[[site]]") + 1)
    file.write_text(text[:second] + text[text.index("[register]") :])


def test_status_shows_the_record_the_sites_and_how_well_times_were_predicted(
    federation: LocalFederation, cli: Cli
) -> None:
    shown = cli("status", federation.federation)
    assert shown.code == 0
    assert "run first is paused" in shown.out
    assert all(name in shown.out for name in ("a", "b", "c", "predicted s", "actual s"))
    found = cli("status", federation.federation, "--format", "json").data
    assert [site["site"] for site in found["status"]["sites"]] == ["a", "b", "c"]
    assert all(site["alive"] and site["answers"] for site in found["status"]["sites"])
    assert found["status"]["record"]["ledger"]["round"] >= 10
    assert all(row["predicted_seconds"] > 0 and row["actual_seconds"] > 0 for row in found["last_rounds"])


def test_status_shows_all_but_the_rounds_while_the_register_is_silent(tmp_path: Path, cli: Cli) -> None:
    soon_silent = RegisterSettings(timeout_seconds=4.0)
    one_node = replace(SCENARIO, partition=replace(SCENARIO.partition, layout="iid", nodes=1))
    with LocalFederation(tmp_path / "f", one_node, 1, register=soon_silent) as alone:
        alone.begin("first")
        alone.wait_for_round(10)
        look_while_the_register_is_silent(alone, cli)


def look_while_the_register_is_silent(federation: LocalFederation, cli: Cli) -> None:
    with unreadable(federation.folder / "register.sqlite"):
        shown = cli("status", federation.federation)
        as_json = cli("status", federation.federation, "--format", "json")
    assert (shown.code, as_json.code) == (0, 0)
    assert "run first is running" in shown.out
    assert "The rounds cannot be read at the moment: no site gives the rounds" in shown.out
    assert "predicted s" not in shown.out
    assert as_json.data["status"]["record"]["ledger"]["round"] >= 10
    assert as_json.data["last_rounds"] == []
    assert "the register does not answer" in as_json.data["last_rounds_unread"]

    def again() -> dict[str, Any] | None:
        found: dict[str, Any] = cli("status", federation.federation, "--format", "json").data
        return found if found["last_rounds"] else None

    after = federation.seen("rounds again", again)
    assert (len(after["last_rounds"]), after["last_rounds_unread"]) == (5, None)


def test_sites_that_only_the_run_knows_are_shown_too(federation: LocalFederation, cli: Cli, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(federation.folder, fewer, ignore=shutil.ignore_patterns("sites", "register*"))
    list_only_the_first_site(fewer / "federation.toml")
    shown = cli("status", fewer / "federation.toml", "--rounds", 50)
    assert shown.code == 0, shown
    with FederationSource(fewer / "federation.toml", insecure=False) as source:
        assert [site.name for site in source.now().sites] == ["a", "b", "c"]


def test_a_site_can_ask_with_its_own_certificate(federation: LocalFederation, cli: Cli) -> None:
    assert cli("status", federation.site_folder("b") / "site.toml").code == 0


def test_a_paused_run_rests_and_goes_on_when_resumed(federation: LocalFederation, cli: Cli) -> None:
    before = federation.rest()
    assert (before.status, before.safe.digest) == ("paused", before.weights.digest)
    assert cli("resume", federation.federation, "--format", "json").data["done"] is True
    federation.wait_for_round(before.round + 3)
    assert "is paused" in cli("pause", federation.federation).out
    federation.rest()


def test_rounds_are_recorded_without_gap_and_add_up_to_the_ledger(federation: LocalFederation) -> None:
    rows = federation.rows()
    assert [row.round for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1].used == tuple(np.sum([row.samples for row in rows], axis=0))
    assert {row.node for row in rows} >= {0, 1, 2}
    # Where rounds are quicker than tests some are left out, but never the newest.
    newest = next(row for row in reversed(rows) if row.node is not None)
    assert newest.test_accuracy is not None


def test_pull_fetches_the_newest_safe_model_and_every_round(
    federation: LocalFederation, cli: Cli, tmp_path: Path
) -> None:
    notes = AuditFile(federation.site_folder("a") / "state")
    for earlier in range(1, 2001):
        notes.note(AuditEntry(0.0, "trained", "first", 0, earlier, f"{earlier:064}", None, "a"))
    pulled = cli("pull", federation.federation, "--out", tmp_path / "pulled", "--format", "json")
    assert not pulled.err
    printed = pulled.data
    content = (tmp_path / "pulled" / "model.safetensors").read_bytes()
    assert digest(content) == printed["digest"]
    assert set(from_bytes(content)) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    rows = list(read_rows(tmp_path / "pulled" / "rounds.jsonl"))
    assert len(rows) == printed["rounds"] >= printed["safe_round"] >= 1
    trail = list(read_audit(tmp_path / "pulled" / "audit.jsonl"))
    assert {e.round for e in trail if e.epoch == 0} == set(range(1, 2001)), "a long trail comes whole"
    trained = {(e.epoch, e.round, e.author) for e in trail if e.what == "trained" and e.noted_by == (e.author,)}
    assert {(row.epoch, row.round, "abc"[row.node]) for row in rows if row.node is not None} <= trained
    made = {entry.digest: entry for entry in trail if entry.what == "trained"}
    newest = max((e for e in trail if e.what == "committed"), key=lambda e: e.round)
    assert made[newest.digest].round == newest.round, "the lineage leads from a digest to its trainer"
    assert (tmp_path / "pulled" / "report.html").exists()
    again = cli("pull", federation.federation, "--out", tmp_path / "pulled", "--format", "json").data
    assert again["rounds"] >= printed["rounds"]


def test_pull_replaces_no_other_run_without_overwrite(federation: LocalFederation, cli: Cli, tmp_path: Path) -> None:
    pulled = tmp_path / "pulled"
    assert cli("pull", federation.federation, "--out", pulled).code == 0
    config = (pulled / "config.toml").read_text()
    before = (pulled / "model.safetensors").read_bytes(), (pulled / "rounds.jsonl").read_bytes()
    with going_on(federation) as record:
        federation.wait_for_round(record.round + 3)
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


def test_a_run_that_has_not_ended_cannot_be_started_again(federation: LocalFederation) -> None:
    with pytest.raises(BadInput, match="run first is paused; stop it first"):
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


@pytest.mark.usefixtures("loaded_once")
def test_preflight_of_a_running_site_finds_everything_in_order(federation: LocalFederation, cli: Cli) -> None:
    done = cli("preflight", federation.site_folder("a") / "site.toml")
    assert done.code == 0, done
    assert "FIX" not in done.out
    assert done.out.count("clocks agree") == 2


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(("seconds_off", "way"), [(90.0, "behind"), (-90.0, "ahead of")])
def test_preflight_names_peers_whose_clock_is_wrong(
    federation: LocalFederation, cli: Cli, monkeypatch: pytest.MonkeyPatch, seconds_off: float, way: str
) -> None:
    # A machine that was suspended since the sites began has set its own clock since, and sites go on with theirs.
    here = {f"peer {s.site}": s.report.at - time.time() for s in federation.status().sites if s.report is not None}
    # Not time.time itself: gRPC makes its deadlines of it.
    monkeypatch.setattr(preflight, "time", SimpleNamespace(time=lambda: time.time() + seconds_off))
    done = cli("preflight", federation.site_folder("a") / "site.toml", "--format", "json")
    found = {finding["check"]: finding for finding in done.data["findings"] if not finding["good"]}
    assert set(found) == {"peer b", "peer c"}
    for peer, finding in found.items():
        said = re.fullmatch(
            rf"its clock is ([\d.]+) s {way} this one; keep both by NTP, and restart the site that was wrong\.",
            finding["message"],
        )
        assert said, finding
        # What the answer took on its way is not counted, and it took no longer than it may.
        assert abs(float(said[1]) - abs(here[peer] - seconds_off)) <= preflight.PEER_SECONDS


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
            file.write(f'app = "three_labels:app"\napp_folder = "{tmp_path}"\n')
        assert "run first has 10 labels, and this site's data has 3" in self.message(cli, site)

    @pytest.mark.usefixtures("loaded_once")
    def test_another_setting_is_named_with_both_values(self, cli: Cli, site: Path) -> None:
        file = site / "federation.toml"
        file.write_text(re.sub("^lease_seconds = .*$", "lease_seconds = 77.0", file.read_text(), flags=re.MULTILINE))
        assert re.fullmatch(
            rf"{re.escape(str(file))}: lease_seconds is 77\.0 here and [\d.]+ in the run first; all sites must .*",
            self.message(cli, site),
        )

    @pytest.mark.usefixtures("loaded_once")
    def test_a_site_that_the_run_does_not_have_is_named(self, cli: Cli, site: Path) -> None:
        with (site / "federation.toml").open("a") as file:
            file.write('\n[[site]]\nname = "e"\naddress = "127.0.0.1:9"\n')
        assert "lists site 'e', which run first does not have" in self.message(cli, site)


def test_sites_of_another_authority_are_named_as_such_and_grpc_says_nothing(
    federation: LocalFederation, process: Process, cli: Cli, tmp_path: Path
) -> None:
    addresses = ",".join(entry.address for entry in read_federation(federation.federation).file.site)
    assert cli("init", tmp_path / "foreign", "--sites", "a,b,c", "--addresses", addresses).code == 0
    foreign = "certificate is of another authority than those in the ca.crt here"
    shown = ended(process("status", tmp_path / "foreign" / "federation.toml", "--format", "json"))
    assert (shown.code, shown.err) == (1, "")
    assert all(foreign in site["why_not"] for site in shown.data["status"]["sites"])
    checked = asyncio.run(_peers_of(tmp_path / "foreign" / "sites" / "a" / "site.toml"))
    assert [finding.check for finding in checked] == ["peer b", "peer c"]
    assert all(foreign in finding.message and not finding.good for finding in checked)


async def _peers_of(site: Path) -> list[Finding]:
    return [finding async for finding in preflight._peers(read_site(site), insecure=False)]


def test_without_certificates_nobody_is_let_in(federation: LocalFederation, cli: Cli) -> None:
    done = cli("status", federation.federation, "--insecure")
    assert done.code == 1
    assert "no site answers" in done.out
    federation.wait("refusal in the log", lambda: any(e["event"] == "refused" for e in federation.events("a")))


def test_a_federation_can_be_watched_and_its_rounds_come_with_their_tests(federation: LocalFederation) -> None:
    with FederationSource(federation.federation, insecure=False) as source:
        now = source.now()
        assert (now.clock, now.status, [site.name for site in now.sites]) == ("real", "running", ["a", "b", "c"])
        assert now.run.startswith("first/")
        assert all(site.alive and site.held for site in now.sites)
        rows = source.rows(0)
        assert [row.round for row in rows] == list(range(1, len(rows) + 1))
        assert any(row.test_accuracy is not None for row in rows)
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


def test_an_ended_run_that_does_not_fit_keeps_no_site_from_the_next(federation: LocalFederation) -> None:
    for name in federation.names:
        (logged,) = (event for event in federation.events(name) if event["event"] == "not-joined")
        assert "run old has 2 labels, and this site's data has 10" in logged["reason"]


def test_a_site_whose_count_of_lives_is_lost_sends_and_is_believed(federation: LocalFederation) -> None:
    events = [event for name in federation.names for event in federation.events(name)]
    assert not [e for e in events if e["event"] == "broken" or "whole numbers" in e.get("reason", "")]
    assert {event["site"] for event in events if event["event"] == "started"} == set(federation.names)


def test_a_policy_that_fails_costs_a_round_and_no_site(federation: LocalFederation) -> None:
    (row,) = (row for row in federation.rows() if row.round == 4)
    assert row.node is None
    assert row.decision.reason == "Nobody trains: the policy failed, see this site's log."
    events = [event for name in federation.names for event in federation.events(name)]
    logged, *_ = (event for event in events if event["event"] == "not-decided")
    assert logged["reason"] == "ZeroDivisionError: one of those days"


def test_a_training_process_that_is_killed_while_it_rests_comes_back_by_itself(federation: LocalFederation) -> None:
    (child,) = psutil.Process(federation.processes["b"].pid).children()
    child.send_signal(signal.SIGKILL)
    federation.wait("notice", lambda: any(e["event"] == "workshop-lost" for e in federation.events("b")))

    def ready() -> bool:
        report = federation.status().sites[1].report
        return report is not None and report.flops is not None

    federation.wait("another process", ready)
    with going_on(federation) as before:
        federation.recorded("round that b trains", lambda row: row.node == 1 and row.round > before.round)


# Where the model cannot be fetched.

ONE_STATUS = 3
"""Questions that it takes to ask every site how it is."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often sites were asked for their status, and for the model."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        ask = getattr(Peers, name)

        async def counting(*arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return await ask(*arguments, **named)

        monkeypatch.setattr(Peers, name, counting)

    count("order")
    count("fetch")
    return counted


def with_two_copies(federation: LocalFederation) -> tuple[Record, list[str]]:
    """A run at rest with its newest weights at two sites, so that a third can tell of them; and those two."""
    while len((record := federation.rest()).safe.copies) != 2:
        with going_on(federation) as before:
            federation.wait_for_round(before.round + 1)
    return record, [federation.names[node] for node in record.safe.copies]


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_weights_that_no_site_has_any_more_are_asked_for_once(
    federation: LocalFederation, cli: Cli, asked: Counter[str], tmp_path: Path
) -> None:
    record, holders = with_two_copies(federation)
    states = [federation.site_folder(name) / "state" / "runs" for name in holders]
    files = [path for state in states for path in state.glob(f"*/*-{record.safe.digest}.safetensors")]
    assert len(files) == 2
    asked.clear()
    for file in files:
        file.rename(file.with_suffix(".away"))
    try:
        done = cli("pull", federation.federation, "--out", tmp_path / "pulled")
    finally:
        for file in files:
            file.with_suffix(".away").rename(file)
    done.refused(f"the weights of round {record.safe.round} lie at {', '.join(holders)}", "are not here")
    assert asked["fetch"] == 2
    assert asked["order"] <= 3 * ONE_STATUS
    assert not (tmp_path / "pulled").exists()


def test_a_model_whose_sites_do_not_answer_is_not_waited_for(
    federation: LocalFederation, cli: Cli, asked: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = tmp_path / "pulled"
    record, holders = with_two_copies(federation)
    assert cli("pull", federation.federation, "--out", pulled).code == 0
    before = content_of(pulled)
    # Only of the sites that do not answer is the limit to run out: the third may take as long as it needs.
    ask = Peers._unary

    async def soon_silent(self: Peers, node: int, name: str, content: bytes, seconds: float) -> bytes:
        return await ask(self, node, name, content, 1.0 if self._name(node) in holders else seconds)

    for name in holders:
        federation.suspend(name)
    monkeypatch.setattr(Peers, "_unary", soon_silent)
    try:
        asked.clear()
        done = cli("pull", federation.federation, "--out", pulled)
    finally:
        for name in holders:
            federation.proceed(name)
    done.refused(
        f"the weights of round {record.safe.round} lie at {', '.join(holders)}, and cannot be fetched",
        "no site that has them answers",
    )
    assert asked == {"order": 2 * ONE_STATUS}
    assert content_of(pulled) == before
    monkeypatch.setattr(Peers, "_unary", ask)
    federation.ready()
    assert cli("pull", federation.federation, "--out", tmp_path / "new").code == 0
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == before["model.safetensors"]


def test_a_bad_round_is_found_in_the_trail_rolled_back_and_its_author_drained(
    federation: LocalFederation, cli: Cli, tmp_path: Path
) -> None:
    with going_on(federation) as now:
        federation.wait_for_round(now.round + 12)
        cli("rollback", federation.federation, 0).refused("run first is running; pause it first, with tramfl pause.")
    before = federation.rest()
    bad, version = before.weights.digest, before.versions[-1]
    rounds = ", ".join(f"{each.round:,}" for each in before.versions)
    assert f"Kept to go back to (tramfl rollback): round {rounds}." in cli("status", federation.federation).out
    wrong = cli("rollback", federation.federation, before.round + 7)
    wrong.refused(f"the weights of round {before.round + 7} are not kept", "can go back to round", str(version.round))

    assert cli("pull", federation.federation, "--out", tmp_path / "bad").code == 0
    trail = list(read_audit(tmp_path / "bad" / "audit.jsonl"))
    (author,) = {entry.author for entry in trail if entry.what == "trained" and entry.digest == bad}
    assert author is not None
    assert cli("drain", author, federation.federation).code == 0
    printed = cli("rollback", federation.federation, version.round)
    assert f"run first is paused at round {version.round} of epoch {before.epoch + 1}" in printed.out, printed
    assert cli("rollback", federation.federation, version.round).code == 0, "an order may be given twice"
    after = federation.rest()
    assert (after.round, after.weights.digest, after.ledger) == (version.round, version.digest, version.ledger)

    with going_on(federation):
        federation.wait_for_round(version.round + 4)
    again = [row for row in federation.rows() if row.epoch > before.epoch]
    assert again
    assert federation.names.index(author) not in {row.node for row in again}
    assert cli("pull", federation.federation, "--out", tmp_path / "good").code == 0
    gone = {
        e.digest: e for e in read_audit(tmp_path / "good" / "audit.jsonl") if e.what in ("rolled-back", "dropped")
    }
    assert (gone[bad].author, gone[bad].round) == (author, before.round)
    assert "Audit trail" in (tmp_path / "good" / "report.html").read_text()
    assert cli("undrain", author, federation.federation).code == 0


def test_an_ended_run_can_be_followed_by_another(federation: LocalFederation) -> None:
    assert "is stopped" in federation.order("stop")
    federation.rest()
    with pytest.raises(BadInput, match="stopped for good"):
        federation.order("resume")
    with pytest.raises(BadInput, match="fetch its model with tramfl pull"):
        federation.order("start", "second")
    assert "run second begins" in federation.order("start", "second", replacing=True)
    assert federation.wait_for_round(3).run == "second"
    federation.order("stop")
    federation.rest()
    with pytest.raises(BadInput, match="there was a run first before"):
        federation.order("start", "first", replacing=True)


def test_a_federation_of_which_nobody_answers_is_asked_once(
    federation: LocalFederation, cli: Cli, asked: Counter[str], tmp_path: Path
) -> None:
    # The last test of the shared federation: it ends its sites.
    federation.end()
    cli("pull", federation.federation, "--out", tmp_path / "pulled").refused("no site of 'test' answers")
    assert asked == {"order": ONE_STATUS}
    assert not (tmp_path / "pulled").exists()


def test_json_of_an_unreachable_federation_is_json_too(tmp_path: Path, cli: Cli) -> None:
    cli("init", tmp_path / "f", "--sites", "a", "--addresses", f"127.0.0.1:{free_ports(1)[0]}")
    done = cli("status", tmp_path / "f" / "federation.toml", "--format", "json")
    assert done.code == 1
    assert json.loads(done.out)["status"]["sites"][0]["answers"] is False
    cli("start", tmp_path / "f" / "federation.toml").refused("no site of 'f' answers")

"""What befalls sites besides their death: lost processes and counters, policies that fail, runs left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from tests.runtime.federations import LocalFederation
from tramfl.circulation.custody import first_record
from tramfl.config import Budget
from tramfl.notation import Ledger, Loads, ModelCost
from tramfl.runtime.registers.contract import ABSENT
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import read_federation
from tramfl.runtime.site import driver
from tramfl.runtime.site.agreement import digest_of_settings
from tramfl.runtime.wire import Load
from tramfl.scheduling.policy import policy_named
from tramfl.simulation.scenarios import scenario_named

SCENARIO = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000))
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
    """Three sites with a run under way that every test leaves running, after a bad start.

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
        federation.order("start", "run", replacing=True)
        federation.wait_for_round(12)
        yield federation


async def leave_an_ended_run(path: Path) -> None:
    file = read_federation(path)
    register = open_register(file, 0)
    await register.join()
    old = replace(first_record("old", 7, "w0", (7,), labels=2), status="stopped")
    assert await register.swap(ABSENT, old) is not None
    await register.leave()
    await register.close()


def test_an_ended_run_that_does_not_fit_keeps_no_site_from_the_next(federation: LocalFederation) -> None:
    for name in federation.names:
        (told,) = (event for event in federation.events(name) if event["event"] == "not-joined")
        assert "run old has a site number 7" in told["reason"]


def test_a_site_whose_count_of_lives_is_lost_sends_and_is_believed(federation: LocalFederation) -> None:
    federation.wait("round of every site", lambda: {row.node for row in federation.rows()} >= {0, 1, 2})
    events = [event for name in federation.names for event in federation.events(name)]
    assert not [e for e in events if e["event"] == "broken" or "whole numbers" in e.get("reason", "")]
    assert {event["site"] for event in events if event["event"] == "started"} == set(federation.names)


def test_a_policy_that_fails_costs_a_round_and_no_site(federation: LocalFederation) -> None:
    (row,) = (row for row in federation.rows() if row.round == 4)
    assert row.node is None
    assert row.decision.reason == "Nobody trains: the policy failed, see this site's log."
    events = [event for name in federation.names for event in federation.events(name)]
    told, *_ = (event for event in events if event["event"] == "not-decided")
    assert told["reason"] == "ZeroDivisionError: one of those days"


def test_a_training_process_that_is_killed_while_it_rests_comes_back_by_itself(federation: LocalFederation) -> None:
    federation.order("pause")
    before = federation.rest().round
    (child,) = psutil.Process(federation.processes["b"].pid).children()
    child.send_signal(signal.SIGKILL)
    federation.wait("notice", lambda: any(e["event"] == "workshop-lost" for e in federation.events("b")))

    def ready() -> bool:
        report = federation.status().sites[1].report
        return report is not None and report.flops is not None

    federation.wait("another process", ready)
    federation.order("resume")
    federation.wait(
        "round that b trains", lambda: any(row.node == 1 and row.round > before for row in federation.rows())
    )


def test_a_run_ends_with_its_newest_weights_though_one_site_was_left(tmp_path: Path) -> None:
    short = replace(SCENARIO, budget=Budget(rounds=40))
    with LocalFederation(tmp_path / "f", short, 3, lease_seconds=1.0) as federation:
        federation.begin()
        federation.wait_for_round(2)
        federation.order("pause")
        holder = federation.rest().holder
        assert holder is not None
        left = federation.names[holder]
        others = [name for name in federation.names if name != left]
        for name in others:
            federation.kill(name)
        federation.order("resume")
        federation.wait_until_stopped()
        record, model = federation.rest(), federation.status().model
        assert model is not None
        assert (model.round, model.digest) == (record.round, record.weights.digest), "all that there is to fetch"
        federation.start(others[0])
        federation.ready(others[0])
        assert federation.rest().safe.digest == record.weights.digest


def test_what_a_site_may_say_it_holds_is_what_the_scheduler_can_count() -> None:
    for labels in (2, 10, 1000):
        most = driver.MOST_HELD // labels
        assert driver._wrong(Load(1e12, None, (most,) * labels), 1e6, labels) is None
        assert "it holds" in str(driver._wrong(Load(1e12, None, (most + 1,) * labels), 1e6, labels))
        for name in ("load-aware", "random", "time-first", "variance-first", "tram"):
            for loads in (Loads((1e12,), (1e6,)), Loads((1.0,), (1.0,))):
                policy_named(name).decide(
                    Ledger.empty(labels), loads, np.full((1, labels), most), 0, ModelCost(1e9, 1e9),
                    np.random.default_rng(0),
                )  # fmt: skip
    assert driver._wrong(Load(1e-300, None, (1, 1)), 1e6, 2) == "1e-300 FLOPS"
    assert driver._wrong(Load(1e12, None, (1, 1)), 1e-300, 2) == "1e-300 bit/s"


def test_sites_that_number_each_other_differently_do_not_agree(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "f", SCENARIO, 3)
    found = read_federation(federation.federation)
    turned = replace(found, file=replace(found.file, site=found.file.site[::-1]))
    assert digest_of_settings(found) != digest_of_settings(turned)
    assert digest_of_settings(found) == digest_of_settings(read_federation(federation.federation))


def test_what_cannot_be_logged_any_more_holds_nobody_up() -> None:
    code = (
        "import os\n"
        "from tramfl.runtime.transport.handshakes import watch\n"
        "end = watch(lambda *_, **__: None)\n"
        "for _ in range(500):\n"
        "    os.write(2, b'x' * 1000 + b'\\n')\n"
        "end()\n"
        "print('done')\n"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, timeout=300, check=True, env=os.environ
        )
    assert done.stdout == b"done\n"

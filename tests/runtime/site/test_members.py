"""Members of a federation of real processes come and go while its run goes on."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.conftest import Cli
from tests.runtime.federations import LocalFederation
from tramfl.config import Budget
from tramfl.runtime.operator.ports import free_ports
from tramfl.simulation.scenarios import scenario_named

# A new site has labels that others have too: without its turn, load-aware may do without it for ever.
SCENARIO = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000), visit_every_rounds=8)


def add(federation: LocalFederation, cli: Cli, name: str) -> None:
    """As an operator does it: one command, and the new site's folder."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    assert cli("cert", "issue", federation.folder, name, "--address", address).code == 0
    with (federation.site_folder(name) / "site.toml").open("a") as file:
        file.write("threads = 1\nshare = 0\n")
    done = cli("members", "add", name, address, "--federation", federation.federation)
    assert done.code == 0, done
    federation.names.append(name)
    federation.start(name)


def ended_with(federation: LocalFederation, name: str, sentence: str) -> None:
    """The site's process ends by itself, with this sentence."""
    federation.wait(f"end of {name}", lambda: federation.processes[name].poll() is not None)
    assert federation.processes[name].returncode == 2
    assert sentence in (federation.site_folder(name) / "log.jsonl").read_text().splitlines()[-1]
    events = federation.events(name)
    assert [event["reason"] for event in events if event["event"] == "must-end" and sentence in event["reason"]]
    assert not [event for event in events if event["event"] in ("broken", "black-box")]


def test_members_come_and_go_while_the_run_goes_on(tmp_path: Path, cli: Cli) -> None:
    with LocalFederation(tmp_path / "f", SCENARIO, 3, lease_seconds=6.0) as federation:
        federation.begin()
        lives = {name: federation.processes[name].pid for name in federation.names}
        federation.wait_for_round(3)

        add(federation, cli, "d")
        rows = federation.recorded("round of the new site", lambda row: row.node == 3)
        assert all(len(row.loads.flops) == 4 for row in rows)
        assert rows[0].sites == ("a", "b", "c")
        assert rows[-1].sites == ("a", "b", "c", "d")
        # The operator's federation.toml does not list d: who is a member is in the register.
        assert "d is drained" in cli("drain", "d", federation.federation).out
        assert "d is taking part again" in cli("undrain", "d", federation.federation).out
        cli("drain", "e", federation.federation).refused("has no member 'e'; it has a, b, c, d")

        cli("members", "remove", "e", "--federation", federation.federation).refused("never had a member 'e'")
        holder = federation.holder()
        assert cli("members", "remove", holder, "--federation", federation.federation).code == 0
        ended_with(federation, holder, f"since an operator removed it with tramfl members remove {holder}")
        after = federation.wait_for_round(federation.record.round + 3)
        assert holder not in {after.members[number].name for number in after.present}
        listed = cli("members", federation.federation, "--format", "json").data
        assert {one["name"]: one["member"] for one in listed} == {name: name != holder for name in "abcd"}

        federation.order("pause")
        resting = federation.rest().holder
        assert resting is not None
        killed = federation.names[resting]
        federation.kill(killed)
        federation.order("resume")
        federation.seen("takeover", lambda: record if (record := federation.record).epoch > after.epoch else None)
        federation.wait_for_round(federation.record.round + 2)
        for name in set("abc") - {holder, killed}:
            assert federation.processes[name].pid == lives[name]
            assert federation.processes[name].poll() is None, "no site is restarted for a change of members"

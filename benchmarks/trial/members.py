"""Sites that join, leave and are shut out while a run goes on."""

from __future__ import annotations

import asyncio
import time

from benchmarks.trial.sites import LEASE_SECONDS, PATIENCE, Far, Goals
from tests.runtime.federations import LocalFederation
from tramfl.circulation.custody import Record
from tramfl.record import Row
from tramfl.runtime.operator.federation_status import FederationStatus
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import read_site
from tramfl.runtime.transport import Peers, Refusal, Unreachable
from tramfl.runtime.wire import AskLoad

VISIT_EVERY = 6
"""Rounds in which every site has its turn, so that a new site must be chosen."""
NEW, REMOVED, REVOKED = "e", "b", "c"
ROUNDS_AFTER = 8
"""Rounds that are looked at after a site was removed."""


def show_members(far: Far, goals: Goals) -> None:
    """Add a site, remove one, revoke the certificate of one, and start one with other settings."""
    far.set_lines(200)
    far.sites.order("start", "members")
    far.sites.wait_for_round(3, PATIENCE)
    _add(far, goals)
    _remove(far, goals)
    _revoke(far, goals)
    _differ(far, goals)
    far.sites.order("stop")
    far.sites.wait_until_stopped()


def _add(far: Far, goals: Goals) -> None:
    sites, number = far.sites, len(far.sites.names)
    processes = {name: process.pid for name, process in sites.processes.items()}
    address = f"{far.network.addresses[number]}:7400"
    far.operate("cert", "issue", ".", NEW, "--address", address)
    with (sites.site_folder(NEW) / "site.toml").open("a") as file:
        file.write("threads = 1\nshare = 0\n")
    began, before = time.monotonic(), sites.record.round
    print(f"  {far.operate('members', 'add', NEW, address)}")
    sites.names.append(NEW)
    sites.start(NEW)
    sites.wait(f"{NEW} in the run", lambda: any(e["event"] == "joined" for e in sites.events(NEW)), PATIENCE)
    joined, at_join = time.monotonic() - began, sites.record.round

    def trained() -> Row | None:
        return next((row for row in sites.rows() if row.round > before and row.node == number), None)

    row = sites.seen(f"round of {NEW}", trained, PATIENCE)
    took = time.monotonic() - began
    goals.note(
        f"members, {NEW} is added: its first round is committed",
        f"{took:.0f} s after the command, {joined:.0f} s of them until its process had joined;"
        f" round {row.round}, {row.round - at_join} after the one in which it joined",
        f"at most {2 * VISIT_EVERY} rounds: twice its turn",
        row.round - at_join <= 2 * VISIT_EVERY,
    )
    restarted = [name for name, pid in processes.items() if not _lives(sites, name, pid)]
    goals.note("members, sites that were restarted for it", ", ".join(restarted) or "none", "none", not restarted)


def _lives(sites: LocalFederation, name: str, pid: int) -> bool:
    return sites.processes[name].pid == pid and sites.processes[name].poll() is None


def _remove(far: Far, goals: Goals) -> None:
    sites, number = far.sites, far.sites.names.index(REMOVED)
    began = time.monotonic()
    print(f"  {far.operate('members', 'remove', REMOVED)}")

    def without(status: FederationStatus) -> Record | None:
        record = status.record
        left = record is not None and not record.is_member(number) and record.holder != number
        return record if left else None

    gone = sites.shown(f"record without {REMOVED}", without, PATIENCE)
    took = time.monotonic() - began
    end = sites.wait_for_round(gone.round + ROUNDS_AFTER, PATIENCE).round
    later = [row.round for row in sites.rows() if gone.round < row.round <= end and row.node == number]
    goals.note(
        f"members, {REMOVED} is removed: no round is planned there",
        f"{took:.1f} s after the command; it trained {len(later)} of rounds {gone.round + 1} to {end}",
        "none, and the run goes on",
        not later,
    )
    sites.wait(f"end of {REMOVED}", lambda: sites.processes[REMOVED].poll() is not None, PATIENCE)


def _revoke(far: Far, goals: Goals) -> None:
    sites = far.sites
    asked = [name for name in sites.names if name not in (REMOVED, REVOKED)]
    stolen = site_credentials(read_site(sites.site_folder(REVOKED) / "site.toml"), insecure=False)
    # The file of the newest site lists all sites.
    everybody = read_site(sites.site_folder(NEW) / "site.toml").federation

    async def refused() -> tuple[str, ...]:
        """The sites that refuse a call with the certificate and the key of the revoked site."""
        thief, found = Peers(Roster(everybody), REVOKED, stolen), []
        for name in asked:
            try:
                await thief.load(sites.names.index(name), AskLoad("members", 1), 5.0)
            except Refusal as error:
                found += [name] if f"the certificate of {REVOKED} is revoked" in str(error) else []
            except Unreachable:
                continue
        await thief.close()
        return tuple(found)

    assert not asyncio.run(refused()), "refused before it is revoked"
    round_, began = sites.record.round, time.monotonic()
    print(f"  {far.operate('cert', 'revoke', REVOKED)}")
    sites.wait("refusal by every site", lambda: len(asyncio.run(refused())) == len(asked), PATIENCE)
    took = time.monotonic() - began
    goals.note(
        f"members, the certificate of {REVOKED} is revoked: {', '.join(asked)} refuse it",
        f"{took:.1f} s after the command",
        f"at most one lease, {LEASE_SECONDS:.0f} s",
        took <= LEASE_SECONDS,
    )
    number = sites.names.index(REVOKED)

    def goes_on(status: FederationStatus) -> Record | None:
        record = status.record
        return record if record is not None and record.round > round_ + 3 and record.holder != number else None

    sites.shown("rounds without the revoked site", goes_on, PATIENCE)


def _differ(far: Far, goals: Goals) -> None:
    sites = far.sites
    sites.processes[NEW].terminate()
    sites.processes[NEW].wait()
    file = sites.site_folder(NEW) / "federation.toml"
    text = file.read_text()
    assert "learning_rate = 0.01\n" in text
    file.write_text(text.replace("learning_rate = 0.01\n", "learning_rate = 0.1\n"))
    earlier = len(sites.events(NEW))
    sites.start(NEW)

    def outcome() -> tuple[str, str] | None:
        events = sites.events(NEW)[earlier:]
        found = (e for e in events if e["event"] in ("joined", "not-joined"))
        return next(((e["event"], e.get("reason", "")) for e in found), None)

    what, reason = sites.seen(f"{NEW} with other settings", outcome, PATIENCE)
    sites.wait_for_round(sites.record.round + 2, PATIENCE)
    reason = reason.replace(str(file), file.name)
    good = what == "not-joined" and "training.learning_rate is 0.1 here and 0.01 in the run" in reason
    goals.note(
        f"members, {NEW} with another training.learning_rate", f"{what}: {reason}", "one sentence names it", good
    )

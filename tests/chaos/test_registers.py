"""Registers that do not answer: no progress, no loss, and on it goes when they are back."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chaos.scenes import Scene, digits, scene
from tests.runtime.etcd import EtcdCluster
from tramfl.config import Budget
from tramfl.notation import BadInput

LEASE_SECONDS = 3.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, EtcdCluster]]:
    """Three sites with three members of etcd."""
    with scene(tmp_path_factory.mktemp("etcd"), "etcd", lease_seconds=LEASE_SECONDS) as made:
        assert made.cluster is not None
        yield made, made.cluster


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_run_goes_on_without_one_member(etcd: tuple[Scene, EtcdCluster], how: str, which: str) -> None:
    chaos, cluster = etcd
    chaos.begin()
    chaos.reach(3)
    lost = cluster.leader() if which == "leader" else cluster.followers()[0]
    (cluster.kill if how == "killed" else cluster.stop)(lost)
    try:
        chaos.advance(5)
    finally:
        cluster.heal()
    chaos.finish()


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_without_two_members_nothing_is_committed_and_nothing_is_lost(
    etcd: tuple[Scene, EtcdCluster], how: str
) -> None:
    chaos, cluster = etcd
    chaos.begin()
    caught = chaos.catch("training")
    before = chaos.record()
    (cluster.kill if how == "killed" else cluster.stop)(*cluster.followers())
    try:
        chaos.traps.clear()  # the training in hand may end
        chaos.wait("silence of the register", lambda: chaos.witness.standing() is None)
        commits = chaos.committed()
        time.sleep(2 * LEASE_SECONDS)
        assert chaos.witness.standing() is None
        assert chaos.committed() == commits
    finally:
        cluster.heal()
    after = chaos.record()
    assert (after.epoch, after.round) >= (before.epoch, before.round)
    chaos.advance()
    chaos.waits_for(caught.site)
    chaos.finish()


def test_all_members_killed_and_started_again_forget_nothing(etcd: tuple[Scene, EtcdCluster]) -> None:
    chaos, cluster = etcd
    chaos.begin()
    before = chaos.reach(5)
    cluster.restart(*cluster.numbers)
    after = chaos.record()
    assert (after.epoch, after.round) >= (before.epoch, before.round)
    chaos.advance()
    chaos.finish()


@pytest.mark.parametrize("leases", [0.5, 3.0])
def test_a_locked_file_holds_a_run_up_and_no_more(sqlite: Scene, leases: float) -> None:
    sqlite.begin()
    sqlite.reach(5)
    with locked(sqlite):
        before = sqlite.record()
        with pytest.raises(BadInput, match="the register does not answer"):
            sqlite.federation.order("pause", once=True)
        time.sleep(leases * LEASE_SECONDS)
        assert sqlite.record() == before
    # It goes on: an order that was said to have failed is not carried out later.
    after = sqlite.advance()
    assert after.round > before.safe.round
    sqlite.finish()


def test_the_end_of_a_run_reaches_a_register_that_was_silent_at_that_moment(tmp_path: Path) -> None:
    scenario = replace(digits(), budget=Budget(rounds=8))
    with scene(tmp_path, "sqlite", scenario=scenario, lease_seconds=LEASE_SECONDS) as chaos:
        chaos.begin()
        chaos.catch("commit made", from_round=8)
        with locked(chaos):
            chaos.traps.clear()
            chaos.wait("end of the budget", lambda: "finished" in {e["event"] for e in all_events(chaos)})
            time.sleep(2 * LEASE_SECONDS)
            assert chaos.record().status == "running"
        chaos.wait("end of the run", lambda: chaos.record().status == "stopped")
        chaos.federation.rest()
        chaos.check()


@contextlib.contextmanager
def locked(chaos: Scene) -> Iterator[None]:
    """Nobody can write to the file meanwhile."""
    path = chaos.federation.folder / "register.sqlite"
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


def all_events(chaos: Scene) -> list[dict[str, Any]]:
    """What the sites' logs say."""
    return [event for name in chaos.names for event in chaos.federation.events(name)]


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three sites with a SQLite file."""
    with scene(tmp_path_factory.mktemp("sqlite"), "sqlite", lease_seconds=LEASE_SECONDS) as made:
        yield made

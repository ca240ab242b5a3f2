"""Sites that cannot reach each other: each in a network namespace, a member of etcd beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chaos.root import Network
from tests.chaos.scenes import Scene, scene
from tests.runtime.etcd import EtcdCluster

LEASE_SECONDS = 6.0
"""Long enough that no site loses its lease where only the machine is busy."""


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Network]]:
    """Three hosts, each with a site and a member."""
    folder = tmp_path_factory.mktemp("parted")
    with (
        Network(3) as network,
        EtcdCluster(
            folder / "etcd",
            tls=True,
            hosts=network.addresses,
            prefixes=[network.prefix(host) for host in range(3)],
        ) as cluster,
        scene(
            folder,
            "etcd",
            lease_seconds=LEASE_SECONDS,
            cluster=cluster,
            addresses=[f"{address}:7400" for address in network.addresses],
            wrap=lambda name: network.prefix(ord(name) - ord("a")),
        ) as made,
    ):
        yield made, network


def test_a_holder_cut_off_from_the_majority_is_taken_over_and_comes_back_without_a_fork(
    parted: tuple[Scene, Network],
) -> None:
    chaos, network = parted
    chaos.begin()
    caught = chaos.catch("training")
    before, commits = chaos.record(), chaos.committed(caught.site)
    network.part(chaos.names.index(caught.site))
    try:
        chaos.traps.clear()  # it ends its training, and cannot commit it
        chaos.reach(before.safe.round + 3, before.epoch + 1)
        assert chaos.committed(caught.site) == commits, "a site without the majority committed a round"
    finally:
        network.heal()
    chaos.waits_for(caught.site)
    chaos.finish()


def test_a_holder_with_the_majority_goes_on_and_who_was_cut_off_joins_again(parted: tuple[Scene, Network]) -> None:
    chaos, network = parted
    chaos.begin()
    caught = chaos.catch("training")
    before = chaos.record()
    other = next(name for name in chaos.names if name != caught.site)
    commits = chaos.committed(other)
    network.part(chaos.names.index(other))
    try:
        chaos.traps.clear()
        assert chaos.advance(4).epoch == before.epoch, "the holder was never out of reach of the majority"
        assert chaos.committed(other) == commits
    finally:
        network.heal()
    chaos.waits_for(other)
    chaos.finish()


def test_without_any_majority_nobody_advances_and_nothing_is_lost(parted: tuple[Scene, Network]) -> None:
    chaos, network = parted
    chaos.begin()
    caught = chaos.catch("training")
    before = chaos.record()
    network.part(0, 1)
    network.cut(0)
    try:
        chaos.traps.clear()
        chaos.wait("silence of the register", lambda: chaos.witness.standing() is None)
        commits = chaos.committed()
        time.sleep(2 * LEASE_SECONDS)
        assert chaos.committed() == commits
    finally:
        network.heal()
    after = chaos.record()
    assert (after.epoch, after.round) >= (before.epoch, before.round)
    chaos.advance()
    chaos.waits_for(caught.site)
    chaos.finish()

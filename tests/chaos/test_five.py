"""Five sites, two of them lost together: killed, or cut off with each other for company."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.root import Network
from tests.chaos.scenes import Kind, scene
from tests.runtime.etcd import EtcdCluster


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_the_holder_and_another_of_five_may_be_killed_at_once(tmp_path: Path, kind: Kind) -> None:
    with scene(tmp_path, kind, 5) as chaos:
        chaos.begin()
        caught = chaos.catch("training")
        before = chaos.record()
        # Of the two that have the safe weights one must stay: more than that nobody promises.
        copies = {chaos.names[node] for node in before.safe.copies}
        other = next(name for name in chaos.names if name not in {caught.site, *copies})
        chaos.kill(caught.site, other)
        chaos.reach(before.safe.round + 3, before.epoch + 1)
        chaos.revive()
        chaos.hears_of(other)
        chaos.finish()


def test_two_of_five_cut_off_together_do_not_advance(tmp_path: Path) -> None:
    with (
        Network(5) as network,
        EtcdCluster(
            tmp_path / "etcd",
            tls=True,
            hosts=network.addresses[:3],
            prefixes=[network.prefix(host) for host in range(3)],
        ) as cluster,
        scene(
            tmp_path,
            "etcd",
            5,
            cluster=cluster,
            addresses=[f"{address}:7400" for address in network.addresses],
            wrap=lambda name: network.prefix(ord(name) - ord("a")),
        ) as chaos,
    ):
        chaos.begin()
        caught = chaos.catch("training")
        before = chaos.record()
        copies = {chaos.names[node] for node in before.safe.copies}
        # Never two of the three that have a member of etcd beside them, nor both that have the safe weights.
        others = "de" if caught.site in "abc" else "abc"
        together = [caught.site, next(name for name in others if not copies <= {caught.site, name})]
        commits = chaos.committed(*together)
        network.part(*(chaos.names.index(name) for name in together))
        try:
            chaos.traps.clear()
            chaos.reach(before.safe.round + 3, before.epoch + 1)
            assert chaos.committed(*together) == commits, "a site without the majority committed a round"
        finally:
            network.heal()
        for name in together:
            chaos.hears_of(name)
        chaos.finish()

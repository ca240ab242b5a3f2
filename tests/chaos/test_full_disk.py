"""A site whose disk is full: it is left out, and takes part again once there is room."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.chaos.root import SmallDisk, mounted, small_disks
from tests.chaos.scenes import Kind, Scene, scene
from tests.runtime.federations import LONG_LEASE, LocalFederation
from tramfl.notation import BadInput
from tramfl.runtime.weights.store import SPARE_BYTES

SITE = "b"


def _with_small_disk(disks: list[SmallDisk], federation: LocalFederation) -> None:
    disks.append(mounted(federation.site_folder(SITE) / "state", megabytes=80))


@pytest.fixture(scope="module", params=["sqlite", "etcd"])
def cramped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Scene, SmallDisk]]:
    """Three sites, one of them with a small disk."""
    kind: Kind = request.param
    with (
        small_disks() as disks,
        scene(
            tmp_path_factory.mktemp(kind),
            kind,
            lease_seconds=LONG_LEASE,  # nobody is lost here
            prepare=functools.partial(_with_small_disk, disks),
        ) as made,
    ):
        yield made, disks[0]


def test_a_receiver_without_room_is_left_out_until_it_has_some(cramped: tuple[Scene, SmallDisk]) -> None:
    chaos, disk = cramped
    chaos.begin()
    before = chaos.reach(4)
    disk.fill(leaving=SPARE_BYTES // 2)
    try:
        chaos.wait("refusal for want of room", lambda: _refusals(chaos) > 0)
        assert chaos.advance(5).epoch == before.epoch
    finally:
        disk.empty()
    chaos.waits_for(SITE)
    chaos.finish()


def test_a_holder_without_a_byte_left_hands_the_model_on(cramped: tuple[Scene, SmallDisk]) -> None:
    chaos, disk = cramped
    chaos.begin()
    caught = chaos.catch("training", site=SITE)
    assert caught.site == SITE
    before = chaos.record()
    disk.fill(leaving=0)
    try:
        chaos.traps.clear()
        assert chaos.advance(5).epoch == before.epoch
        assert any(event["event"] == "training-failed" for event in chaos.federation.events(SITE))
    finally:
        disk.empty()
    chaos.waits_for(SITE)
    chaos.finish()


def test_a_run_does_not_begin_while_a_disk_is_full_and_the_site_is_named(cramped: tuple[Scene, SmallDisk]) -> None:
    chaos, disk = cramped
    chaos.begin()
    chaos.reach(2)
    chaos.finish()
    disk.fill(leaving=0)
    try:
        with pytest.raises(BadInput, match=f"site {SITE} cannot take part: .*No space left on device"):
            chaos.federation.order("start", "crowded", replacing=True)
    finally:
        disk.empty()
    chaos.begin()
    chaos.finish()


def _refusals(chaos: Scene) -> int:
    events = [event for name in chaos.names for event in chaos.federation.events(name)]
    return sum(event["event"] == "not-sent" and f"{SPARE_BYTES} to spare" in event["reason"] for event in events)

"""The quick part of the faults, in `make test`: one federation with each register, and several faults in a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.scenes import ENDLESS_LEASE, scene

pytestmark = pytest.mark.quick


def test_a_run_survives_the_loss_of_its_holder_and_then_of_everybody(tmp_path: Path) -> None:
    with scene(tmp_path, "sqlite") as chaos:
        chaos.begin()
        caught = chaos.catch("training")
        before = chaos.record()
        chaos.kill(caught.site)
        chaos.reach(before.safe.round + 2, epoch=before.epoch + 1)
        chaos.kill(*(name for name in chaos.names if name != caught.site))
        chaos.check_disks()
        chaos.revive()
        chaos.finish()


def test_a_run_survives_a_stopped_holder_and_the_loss_of_the_register(tmp_path: Path) -> None:
    with scene(tmp_path, "etcd") as chaos:
        chaos.begin()
        caught = chaos.catch("training")
        before = chaos.record()
        chaos.federation.suspend(caught.site)
        chaos.traps.clear()
        chaos.reach(before.safe.round + 2, epoch=before.epoch + 1)
        assert chaos.cluster is not None
        chaos.cluster.kill(*chaos.cluster.followers())
        assert chaos.witness.standing() is None
        chaos.federation.proceed(caught.site)
        chaos.cluster.heal()
        chaos.waits_for(caught.site)
        chaos.finish()


def test_a_run_goes_on_at_once_where_its_holder_and_then_another_are_told_to_end(tmp_path: Path) -> None:
    with scene(tmp_path, "sqlite", lease_seconds=ENDLESS_LEASE) as chaos:
        chaos.begin()
        caught = chaos.catch("gathering")
        before = chaos.record()
        chaos.end(caught.site)
        chaos.reach(before.round + 2)
        chaos.end(next(name for name in chaos.names if name not in (caught.site, chaos.holder())))
        assert chaos.advance(2).epoch == before.epoch, "nobody had to take over"
        chaos.revive()
        chaos.finish()

"""The quick part of the faults, in `make test`: several faults in a row, with SQLite. test_quick_etcd.py has etcd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.scenes import scene

pytestmark = pytest.mark.quick


def test_a_run_survives_the_loss_of_its_holder_and_then_of_everybody_and_a_holder_that_is_told_to_end(
    tmp_path: Path,
) -> None:
    with scene(tmp_path, "sqlite", lease_seconds=6.0) as chaos:
        chaos.begin()
        caught = chaos.catch("training")
        before = chaos.record()
        chaos.kill(caught.site)
        chaos.reach(before.safe.round + 2, epoch=before.epoch + 1)
        chaos.kill(*(name for name in chaos.names if name != caught.site))
        chaos.check_disks()
        chaos.revive()
        caught = chaos.catch("gathering")
        before = chaos.record()
        chaos.end(caught.site)
        assert chaos.reach(before.round + 2).epoch == before.epoch, "nobody had to take over"
        chaos.revive()
        chaos.finish()

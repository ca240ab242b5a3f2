"""The quick part of the faults, with etcd, in `make test`; runtime/site/test_members.py has SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.scenes import scene

pytestmark = pytest.mark.quick


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
        chaos.wait("silence of the register", lambda: chaos.witness.standing() is None)
        chaos.federation.proceed(caught.site)
        chaos.cluster.heal()
        chaos.waits_for(caught.site)
        chaos.finish()

"""The quick part of the faults, with etcd, in `make test`; runtime/site/test_members.py has SQLite."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from tests.chaos.scenes import scene
from tramfl.cli.status import print_status
from tramfl.runtime.operator.federation_status import FederationStatus

pytestmark = pytest.mark.quick


def headline_of(status: FederationStatus) -> str | None:
    """The first line of `tramfl status`; None while the register answers a site that answers."""
    if status.silence is None:
        return None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_status(status, [], None)
    return out.getvalue().splitlines()[0]


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
        headline = chaos.seen("word of it in the status", lambda: headline_of(chaos.federation.status()))
        assert "no member of etcd that is one of a majority answers" in headline
        chaos.federation.proceed(caught.site)
        chaos.cluster.heal()
        chaos.waits_for(caught.site)
        chaos.finish()

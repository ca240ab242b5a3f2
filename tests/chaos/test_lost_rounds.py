"""Losses that cost a round and never the holder: leases are long here, so that a takeover would be a mistake."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.chaos.scenes import Scene, scene
from tests.runtime.federations import LONG_LEASE


@pytest.fixture(scope="module", params=["sqlite", "etcd"])
def chaos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three sites that all tests share; each begins a run of its own."""
    with scene(tmp_path_factory.mktemp(request.param), request.param, lease_seconds=LONG_LEASE) as made:
        yield made


@pytest.mark.parametrize("place", ["halfway", "taking in"])
def test_a_receiver_may_be_killed_before_the_model_is_on_its_disk(chaos: Scene, place: str) -> None:
    chaos.begin()
    caught = chaos.catch(place)
    before = chaos.record()
    chaos.kill(caught.site)
    after = chaos.advance(2)
    assert after.epoch == before.epoch, "the holder was there all the time"
    chaos.revive()
    chaos.waits_for(caught.site)
    chaos.finish()


def test_a_workshop_that_is_killed_ends_a_training_and_nothing_else(chaos: Scene) -> None:
    chaos.begin()
    caught = chaos.catch("training")
    before = chaos.record()
    assert caught.workshop is not None
    os.kill(caught.workshop, signal.SIGKILL)
    chaos.traps.clear()
    assert chaos.advance().epoch == before.epoch
    chaos.waits_for(caught.site)
    chaos.finish()


@pytest.mark.parametrize("place", ["training", "scoring"])
def test_a_workshop_that_hangs_is_ended_and_the_site_trains_again(chaos: Scene, place: str) -> None:
    chaos.begin()
    caught = chaos.catch(place, deadlines=True)
    before = chaos.record()
    # Nobody lets it go: the site has to help itself.
    assert chaos.advance().epoch == before.epoch
    chaos.waits_for(caught.site)
    chaos.finish()

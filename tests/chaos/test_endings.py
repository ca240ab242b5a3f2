"""Sites that are asked to end (SIGTERM): the holder hands the model on, and no site waits for a lease.

Leases are longer here than any test has patience, so a run that goes on was given on, and a site that is gone from
the register gave its lease up.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.chaos.scenes import ENDLESS_LEASE, Scene, scene
from tests.chaos.traps import Caught
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Limits

HOLDERS_PLACES = ("gathering", "halfway", "handover asked", "training", "storing", "commit asked")


@pytest.fixture(scope="module", params=["sqlite", "etcd"])
def chaos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three sites that all tests share; each begins a run of its own."""
    with scene(tmp_path_factory.mktemp(request.param), request.param, lease_seconds=ENDLESS_LEASE) as made:
        yield made


def caught_with_the_only_copy(chaos: Scene) -> tuple[Caught, Record]:
    """A holder that alone has the newest weights, caught while no copy of them is on its way; and the record."""
    from_round = 4
    while True:
        caught = chaos.catch("gathering", from_round)
        record = chaos.record()
        # A copy is sent in the background once half of the bound lies at the holder alone.
        few = record.unsafe_rounds < (Limits().unsafe_rounds + 1) // 2
        if few and record.weights.copies == (record.holder,):
            return caught, record
        from_round = record.round + 2


def has_lease(chaos: Scene, name: str) -> bool:
    return name in chaos.witness.alive()


@pytest.mark.parametrize("place", HOLDERS_PLACES)
def test_a_holder_that_is_asked_to_end_hands_the_model_on_wherever_it_is(chaos: Scene, place: str) -> None:
    chaos.begin()
    caught = chaos.catch(place)
    holder, before = caught.sender or caught.site, chaos.record()
    assert before.holder == chaos.names.index(holder)
    chaos.end(holder)
    assert not has_lease(chaos, holder)
    assert chaos.record().round >= before.round, "a round that was committed is lost"
    assert chaos.reach(before.round + 2).epoch == before.epoch, "nobody had to take over"
    chaos.revive()
    chaos.waits_for(holder)
    chaos.finish()


@pytest.mark.parametrize("place", ["halfway", "taking in"])
def test_a_receiver_that_is_asked_to_end_is_left_out(chaos: Scene, place: str) -> None:
    chaos.begin()
    caught = chaos.catch(place)
    before = chaos.record()
    chaos.end(caught.site)
    assert not has_lease(chaos, caught.site)
    assert chaos.reach(before.round + 2).epoch == before.epoch
    chaos.revive()
    chaos.waits_for(caught.site)
    chaos.finish()


def test_an_idle_site_that_is_asked_to_end_is_gone_at_once(chaos: Scene) -> None:
    chaos.begin()
    caught = chaos.catch("training")
    before = chaos.record()
    idle = next(name for node, name in enumerate(chaos.names) if node not in (before.holder, *before.safe.copies))
    chaos.end(idle)
    assert not has_lease(chaos, idle)
    assert chaos.reach(before.round + 2).epoch == before.epoch
    chaos.revive()
    chaos.waits_for(caught.site)
    chaos.finish()


def test_a_holder_that_nobody_can_take_the_model_from_comes_back_to_it(chaos: Scene) -> None:
    chaos.begin()
    caught, before = caught_with_the_only_copy(chaos)
    chaos.kill(*(name for name in chaos.names if name != caught.site))
    chaos.end(caught.site)
    assert has_lease(chaos, caught.site), "it alone has the newest weights: nobody shall go on from older ones"
    chaos.revive()
    # Within an epoch no round is ever undone.
    assert chaos.reach(before.round + 2).epoch == before.epoch
    chaos.finish()


def test_a_second_signal_does_not_wait_until_the_model_is_handed_on(chaos: Scene) -> None:
    chaos.begin()
    caught = chaos.catch("gathering")
    before = chaos.record()
    others = [chaos.federation.processes[name] for name in chaos.names if name != caught.site]
    for process in others:
        process.send_signal(signal.SIGSTOP)  # who does not answer takes a while to be given up
    chaos.end_at_once(caught.site)
    for process in others:
        process.send_signal(signal.SIGCONT)
    chaos.revive()
    assert chaos.reach(before.round + 2).epoch == before.epoch
    chaos.finish()

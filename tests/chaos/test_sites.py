"""Sites that are killed, stopped and started again, with either register."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.evidence import commits
from tests.chaos.scenes import Scene, scene
from tramfl.circulation.custody import Record

HOLDERS_PLACES = (
    "gathering",
    "halfway",
    "handover asked",
    "handover made",
    "training",
    "storing",
    "commit asked",
    "commit made",
)


@pytest.fixture(scope="module", params=["sqlite", "etcd"])
def chaos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three sites that all tests share; each begins a run of its own."""
    with scene(tmp_path_factory.mktemp(request.param), request.param) as made:
        yield made


@pytest.mark.parametrize("place", HOLDERS_PLACES)
def test_the_holder_may_be_killed_wherever_it_is(chaos: Scene, place: str) -> None:
    chaos.begin()
    caught = chaos.catch(place)
    before = chaos.record()
    chaos.kill(caught.sender or caught.site)
    # Once the record names another, the sender is a sender no more, and nobody has to take over.
    epoch = before.epoch if place == "handover made" else before.epoch + 1
    chaos.reach(before.safe.round + 2, epoch)
    chaos.revive()
    chaos.finish()


@pytest.mark.parametrize("place", ["training", "commit asked", "handover asked"])
def test_a_holder_that_was_stopped_and_continues_changes_nothing(chaos: Scene, place: str) -> None:
    run = chaos.begin()
    caught = chaos.catch(place)
    before = chaos.record()
    chaos.federation.suspend(caught.site)
    chaos.traps.clear()
    chaos.reach(before.safe.round + 3, before.epoch + 1)
    chaos.federation.proceed(caught.site)
    chaos.waits_for(caught.site)
    late = [r for r in commits(chaos.witness.history(run)) if r.epoch == before.epoch and r.round > before.round]
    assert not late, "a round was committed under an epoch that was over"
    chaos.finish()


def test_when_every_copy_is_away_the_run_waits_and_loses_nothing(chaos: Scene) -> None:
    chaos.begin()
    before = killed_with_every_copy(chaos)
    gone = {chaos.names[node] for node in (*before.weights.copies, *before.safe.copies)}
    chaos.wait("lapse of both leases", lambda: not chaos.witness.alive() & gone)
    assert chaos.record() == before
    chaos.check_disks()
    chaos.start(chaos.names[before.weights.copies[0]])
    assert chaos.reach(before.round + 2).safe.round >= before.safe.round
    chaos.revive()
    chaos.finish()


def killed_with_every_copy(chaos: Scene) -> Record:
    """Kill the two sites that have copies of the newest and the safe weights, as soon as there are only two."""
    from_round = 4
    while True:
        chaos.catch("handover made", from_round)
        with chaos.frozen() as record:
            copies = {*record.weights.copies, *record.safe.copies}
            if len(copies) == 2:
                chaos.kill(*(chaos.names[node] for node in copies))
                return record
        chaos.traps.clear()
        from_round = record.round + 2


def test_everything_may_be_killed_and_started_again(chaos: Scene) -> None:
    chaos.begin()
    chaos.reach(5)
    chaos.kill(*chaos.names)
    if chaos.cluster is not None:
        chaos.cluster.restart(*chaos.cluster.numbers)
    before = chaos.record()
    chaos.check_disks()
    chaos.revive()
    assert chaos.reach(before.round + 3).epoch <= before.epoch + 1
    chaos.finish()


def test_a_site_that_was_away_for_a_hundred_rounds_takes_part_again(chaos: Scene) -> None:
    chaos.begin()
    before = chaos.reach(4)
    gone = next(name for node, name in enumerate(chaos.names) if node != before.holder)
    chaos.kill(gone)
    chaos.reach(before.round + 110)
    chaos.revive()
    chaos.waits_for(gone)
    chaos.finish()

"""Probes of links, and who goes first on a site's line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.sites import Log, federation, played
from tramfl.notation import ModelCost, NodeId
from tramfl.runtime.loads import Meters
from tramfl.runtime.roster import Roster
from tramfl.runtime.site import probes
from tramfl.runtime.site.probes import Probes, RightOfWay
from tramfl.runtime.transport import Busy, Unreachable

ASH, BIRCH, CEDAR = range(3)
LONG = 100.0
FOUND = (5e6, 0.01)
"""bit/s and latency."""


@played
async def test_a_copy_goes_on_once_the_probe_and_the_hop_that_began_during_it_have_passed() -> None:
    way, sent = RightOfWay(), 0

    async def copy() -> None:
        nonlocal sent
        for _ in range(3):
            await way.free()
            sent += 1
            await asyncio.sleep(0)

    assert way.is_free
    with contextlib.ExitStack() as hop:
        with way.first():  # a probe
            copying = asyncio.create_task(copy())
            hop.enter_context(way.first())
        await asyncio.sleep(0)  # the copy's turn
        assert (sent, way.is_free) == (0, False)  # the probe is over, the hop is not
    await copying
    assert (sent, way.is_free) == (3, True)


class Trial:
    """The probes of ash; what each finds is up to the test."""

    def __init__(self, folder: Path) -> None:
        cost = ModelCost(flops_per_sample=1.0, model_bits=1e9)
        history, log = folder / "history.json", Log()
        self.meters = Meters(
            cost, 1e9, predictor="last", threads=None, history=history, log=log, training_pid=lambda: None
        )
        self.way = RightOfWay()
        self.outcomes: asyncio.Queue[tuple[float, float] | Exception] = asyncio.Queue()
        self.begun = 0
        self.probes = Probes(Roster(federation()), "ash", self._try_link, self.meters, self.way)

    async def _try_link(self, node: NodeId, seconds: float) -> tuple[float, float]:
        self.begun += 1
        found = await self.outcomes.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            await asyncio.sleep(0)


@played
async def test_a_probe_goes_on_when_the_round_that_asked_for_it_is_over(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    for _ in range(3):  # rounds that end while the probe lasts
        asking = asyncio.create_task(trial.probes.bandwidth(BIRCH, LONG))
        await trial.until(lambda: trial.begun > 0)
        asking.cancel()
        await asyncio.wait((asking,))
    assert trial.begun == 1
    trial.outcomes.put_nowait(FOUND)
    assert await trial.probes.bandwidth(BIRCH, LONG) == trial.meters.bandwidth("birch")
    assert trial.begun == 1


@played
async def test_a_site_that_is_busy_is_probed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "BUSY_SECONDS", 0.0)
    trial = Trial(tmp_path)
    for outcome in (Busy(), Busy(), FOUND):
        trial.outcomes.put_nowait(outcome)
    assert await trial.probes.bandwidth(BIRCH, LONG) == trial.meters.bandwidth("birch")
    assert trial.begun == 3


@played
async def test_a_link_that_is_not_known_yet_is_taken_to_be_like_those_that_are(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    with pytest.raises(Unreachable, match="birch could not be probed in time"):
        await trial.probes.bandwidth(BIRCH, 0.0)  # nothing is known of any link
    trial.meters.probed("cedar", 4e6, 0.0, 0.0)
    known = trial.meters.bandwidth("cedar")
    assert await trial.probes.bandwidth(BIRCH, 0.0) == known
    trial.outcomes.put_nowait(FOUND)
    await trial.until(lambda: trial.meters.bandwidth("birch") is not None)
    assert await trial.probes.bandwidth(BIRCH, 0.0) == trial.meters.bandwidth("birch") != known


@played
async def test_of_a_link_that_lets_no_probe_through_nothing_is_guessed(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.meters.probed("cedar", 4e6, 0.0, 0.0)
    trial.outcomes.put_nowait(Unreachable("birch does not answer"))
    with pytest.raises(Unreachable, match="does not answer"):
        await trial.probes.bandwidth(BIRCH, LONG)
    with pytest.raises(Unreachable, match="birch could not be probed in time"):  # the next probe has begun
        await trial.probes.bandwidth(BIRCH, 0.0)
    trial.outcomes.put_nowait(FOUND)
    assert await trial.probes.bandwidth(BIRCH, LONG) == trial.meters.bandwidth("birch")


@played
async def test_a_probe_that_shared_the_line_with_a_hop_is_made_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    asking = asyncio.create_task(trial.probes.bandwidth(BIRCH, LONG))
    await trial.until(lambda: trial.begun == 1)
    with trial.way.first():
        trial.way.hops += 1
        trial.outcomes.put_nowait((1.0, 0.01))
        await trial.until(trial.outcomes.empty)
    trial.outcomes.put_nowait(FOUND)
    assert await asking == trial.meters.bandwidth("birch")
    assert trial.begun == 2

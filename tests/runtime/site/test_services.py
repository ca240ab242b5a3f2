"""Who goes first on a site's line."""

from __future__ import annotations

import asyncio
import contextlib

from tests.runtime.sites import played
from tramfl.runtime.site.services import RightOfWay


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

"""One run of local sites, from its start to the folder with its record: what `tramfl up` does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

from tramfl.notation import BadInput
from tramfl.record import Row, RunFolder, Summary
from tramfl.runtime.operator.collecting import collect
from tramfl.runtime.operator.federation_status import FederationStatus
from tramfl.runtime.operator.local import LocalSites
from tramfl.runtime.operator.operating import Operator, operator_from
from tramfl.runtime.wire import Order

LOOK_SECONDS = 0.25
READY_SECONDS = 180.0
"""How long the sites may take to load and answer."""
REST_SECONDS = 60.0
"""How long a stopped run is given to come to rest; after that, what there is is collected."""
HOME_SECONDS = 60.0
"""How long a register that does not give the record of an ended run is asked again."""
ROWS_SHOWN = 20
"""Rounds read at each look: a test comes a few rounds after its round."""


class Audience(Protocol):
    """Sees the run go on."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def update(self, status: FederationStatus, rows: list[Row]) -> None:
        """The federation has moved on; `rows` are its last rounds."""
        ...


async def travel(sites: LocalSites, folder: RunFolder, show: Audience, interrupted: asyncio.Event) -> Summary:
    """Start a run, follow it to its end or to an interrupt, and collect its model and record into `folder`."""
    hand = operator_from(sites.federation, False)
    try:
        await _ready(sites, hand, interrupted)
        show.say("sites and their processes: " + ", ".join(f"{n} {p.pid}" for n, p in sites.processes.items()))
        show.say(await hand.order(Order("start", f"up-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")))
        await _follow(hand, show, interrupted)
        return await _collected(hand, folder)
    finally:
        await hand.close()


async def _ready(sites: LocalSites, hand: Operator, interrupted: asyncio.Event) -> None:
    until = time.monotonic() + READY_SECONDS
    while len((await hand.status()).answering) < len(sites.names):
        if dead := sites.dead():
            raise BadInput(f"site {dead[0]} did not start: {sites.last_words(dead[0])}")
        if interrupted.is_set():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            raise BadInput(f"the sites did not answer within {READY_SECONDS:.0f} s.")
        await asyncio.sleep(LOOK_SECONDS)


async def _follow(hand: Operator, show: Audience, interrupted: asyncio.Event) -> None:
    rows: list[Row] = []
    silent = False
    while True:
        status = await hand.status()
        if not status.answering:
            raise BadInput("all sites are gone; nothing could be fetched.")
        record = status.record
        if record is not None:
            try:
                rows, silent = await hand.rows(status, max(1, record.round - ROWS_SHOWN)), False
            except BadInput as error:  # a register may be silent for a moment: the next look tries again
                if not silent:
                    show.say(f"the rounds cannot be read at the moment: {error}")
                silent = True
            show.update(status, rows)
            if interrupted.is_set() or record.status == "stopped":
                break
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), LOOK_SECONDS)
    if not interrupted.is_set():
        await _settled(hand, status)


async def _settled(hand: Operator, status: FederationStatus) -> None:
    """A stopped run still commits its round in hand, copies it to a second site, and tests it."""
    until = time.monotonic() + REST_SECONDS
    while not status.rests and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
        status = await hand.status()


async def _collected(hand: Operator, folder: RunFolder) -> Summary:
    """Model and record of the run; the sites and all they have are gone after this."""
    until = time.monotonic() + HOME_SECONDS
    while True:
        try:
            return (await collect(hand, folder))[1]
        except BadInput:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(LOOK_SECONDS)

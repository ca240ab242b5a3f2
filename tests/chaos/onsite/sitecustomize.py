"""Runs in every process of a site under test, because its folder is on PYTHONPATH: lets a test stop it at a place.

A test lays a trap (tests/chaos/traps.py): a file that says where and from which round on. The first site that comes
by takes it, says who it is, and lingers there until the test lets it go, or kills it. Meanwhile no site gives the
round up because it takes too long, unless the trap says so: a busy machine may need more time between two steps of a
test than any deadline has. The product knows nothing of all this.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("TRAMFL_CHAOS")
SITE = "TRAMFL_CHAOS_SITE"


def caught(where: str, round_: int, **more: object) -> bool:
    """Whether the trap was laid here; it catches once."""
    assert FOLDER is not None
    trap, taken = Path(FOLDER, "trap"), Path(FOLDER, "taken")
    try:
        laid = json.loads(trap.read_bytes())
        if laid["where"] != where or round_ < laid["round"]:
            return False
        if laid["site"] not in (None, os.environ[SITE]):
            return False
        os.rename(trap, taken)
    except (FileNotFoundError, ValueError):
        return False
    says = Path(FOLDER, "caught.new")
    says.write_text(json.dumps({"site": os.environ[SITE], "where": where, "round": round_, **more}))
    os.rename(says, Path(FOLDER, "caught"))
    return True


def held() -> bool:
    assert FOLDER is not None
    return Path(FOLDER, "taken").exists()


def deadlines_wait() -> bool:
    """Whether a site is caught in a trap that stops the deadlines of all sites."""
    assert FOLDER is not None
    try:
        return not json.loads(Path(FOLDER, "taken").read_bytes())["deadlines"]
    except (FileNotFoundError, ValueError):
        return False


def linger() -> None:
    while held():
        time.sleep(0.02)


async def linger_awake() -> None:
    """The site answers and keeps its lease meanwhile."""
    while held():
        await asyncio.sleep(0.02)


def in_the_site() -> None:
    from tramfl.circulation.phases import Gathering, Sending, Storing, Training
    from tramfl.runtime.registers.etcd import EtcdRegister
    from tramfl.runtime.registers.sqlite import SqliteRegister
    from tramfl.runtime.site import services
    from tramfl.runtime.site.driver import Driver
    from tramfl.runtime.weights.arrival import Arrival

    ask, store, begin, take = Driver._asking, Driver._storing, Arrival.__init__, Arrival.take
    woke, watch = Driver._woke, services._watch

    async def asking(self: Driver, command: Any, node: int) -> None:
        if caught("gathering", command.round):
            await linger_awake()
        await ask(self, command, node)

    async def storing(self: Driver, command: Any) -> None:
        phase = self.state.phase
        mine = isinstance(phase, Storing) and phase.ticket == command.ticket
        if caught("storing" if mine else "taking in", command.copy.round):
            await linger_awake()
        await store(self, command)

    def waking(self: Driver, ticket: int) -> None:
        phase = self.state.phase
        overdue = isinstance(phase, Gathering | Sending | Training | Storing) and phase.ticket == ticket
        if overdue and deadlines_wait():
            self._timers[ticket] = self._loop.call_later(0.05, self._woke, ticket)
        else:
            woke(self, ticket)

    async def watching(passage: Any, slowed: Any) -> None:
        """A hop that a trap holds up is not given up for its pace."""
        await watch(passage, lambda left: None if deadlines_wait() else slowed(left))

    def beginning(self: Any, store: Any, manifest: Any, sender: str, consignment: Any) -> None:
        begin(self, store, manifest, sender, consignment)
        self.chaos = consignment

    def taking(self: Any, frame: bytes) -> None:
        take(self, frame)
        offer, size = self.chaos.offer, self.chaos.size
        halfway = size / 3 < self.offset < size
        if halfway and offer.assignment is not None and caught("halfway", offer.round, sender=self._sender):
            linger()

    Driver._asking, Driver._storing, Driver._woke = asking, storing, waking  # type: ignore[method-assign]
    services._watch = watching
    Arrival.__init__, Arrival.take = beginning, taking  # type: ignore[method-assign]
    for register in (SqliteRegister, EtcdRegister):
        linger_at_swaps(register)


def linger_at_swaps(register: Any) -> None:
    swap = register.swap

    async def swapping(self: Any, revision: int, record: Any, row: bytes | None = None) -> Any:
        kind = "handover" if row is None else "commit"
        if caught(f"{kind} asked", record.round):
            await linger_awake()
        swapped = await swap(self, revision, record, row)
        if swapped is not None and caught(f"{kind} made", record.round):
            await linger_awake()
        return swapped

    register.swap = swapping


def in_the_workshop() -> None:
    from tramfl.learning.training.site import SiteLearner

    train, scores = SiteLearner.train, SiteLearner.scores

    def training(self: SiteLearner, parent: Path, samples: Any, round_: int, *files: Any) -> Any:
        if caught("training", round_, workshop=os.getpid()):
            linger()
        return train(self, parent, samples, round_, *files)

    def scoring(self: SiteLearner, weights: Path, targets: Any, *files: Any) -> Any:
        if caught("scoring", 1 << 30, workshop=os.getpid()):
            linger()
        return scores(self, weights, targets, *files)

    SiteLearner.train, SiteLearner.scores = training, scoring  # type: ignore[method-assign, assignment]


if FOLDER is not None:
    if any("tramfl.runtime.training.bench" in word for word in sys.orig_argv):
        in_the_workshop()
    elif "node" in sys.orig_argv:
        os.environ[SITE] = Path(sys.orig_argv[-1]).parent.name
        in_the_site()

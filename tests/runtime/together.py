"""Real sites in one process: `run_site`, real ports, certificates, a real register and real training.

PyTorch is loaded once for all of them. Sites are started and stopped as an operator does it, without new processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.runtime.federations import PATIENT_REGISTER
from tests.runtime.hostile import SCENARIO, BenchInThread
from tramfl.circulation.custody import Record
from tramfl.config import Scenario
from tramfl.runtime.journal import Journal
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.federation_status import FederationStatus
from tramfl.runtime.operator.operating import Operator, operator_from, site_credentials
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import RegisterSettings, SiteEntry, read_site
from tramfl.runtime.site import process, run_site
from tramfl.runtime.training.workshop import Workshop
from tramfl.runtime.wire import Order

PATIENCE = 120.0


class Together:
    """Sites a, b, c ... of one federation."""

    def __init__(
        self,
        folder: Path,
        sites: int = 3,
        lease_seconds: float = 1.0,
        register: RegisterSettings | None = None,
        scenario: Scenario = SCENARIO,
        workshop: type[BenchInThread] = BenchInThread,
        **settings: int,
    ) -> None:
        """`settings` are whole numbers of federation.toml that differ from their defaults."""
        self._workshop = workshop
        self.folder, self.names = folder, tuple(chr(ord("a") + n) for n in range(sites))
        entries = tuple(
            SiteEntry(name=n, address=f"127.0.0.1:{p}") for n, p in zip(self.names, free_ports(sites), strict=True)
        )
        run = founding.run_for(scenario, scenario.partition.nodes or sites)
        plan = founding.NewFederation(name="test", site=entries, register=register or PATIENT_REGISTER, run=run)
        founding.found(plan, folder)
        for file in folder.rglob("federation.toml"):
            text = file.read_text().replace("lease_seconds = 5.0", f"lease_seconds = {lease_seconds}")
            for key, value in settings.items():
                text = re.sub(rf"(?m)^#? ?{key} = \d+", f"{key} = {value}", text)
            file.write_text(text)
        self.file = folder / founding.FEDERATION_FILE
        self.logs = {name: io.BytesIO() for name in self.names}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self.hand: Operator

    @contextlib.asynccontextmanager
    async def begun(self, rounds: int = 3) -> AsyncIterator[Together]:
        """All sites and a run, which has done some rounds."""
        setattr(process, "Workshop", self._workshop)  # noqa: B010 - the site's own import of it
        try:
            self.hand = operator_from(self.file, False)
            for name in self.names:
                self.start(name)
            await self.until(lambda: all(self.events(name, "started") for name in self.names))
            await self.hand.order(Order("start", "run-1"))
            await self.advanced(rounds)
            yield self
        finally:
            for stop in self._stops.values():
                stop.set()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)
            await self.hand.close()
            setattr(process, "Workshop", Workshop)  # noqa: B010

    def start(self, name: str) -> None:
        """Start a site."""
        stop = self._stops[name] = asyncio.Event()
        site = read_site(founding.site_folder(self.folder, name) / founding.SITE_FILE)
        register = open_register(site.federation, name)
        work = run_site(site, register, site_credentials(site, False), Journal(name, self.logs[name]), stop)
        self.tasks[name] = asyncio.create_task(work)

    async def restart(self, name: str) -> None:
        """Stop a site, and start it again."""
        lives = len(self.events(name, "started"))
        self._stops[name].set()
        await self.tasks[name]
        self.start(name)
        await self.until(lambda: len(self.events(name, "started")) > lives)

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a site has logged of one kind."""
        lines = (json.loads(line) for line in self.logs[name].getvalue().splitlines())
        return [line for line in lines if line["event"] == event]

    async def until(self, fact: Callable[[], bool]) -> None:
        """Until something holds."""
        async with asyncio.timeout(PATIENCE):
            while not fact():
                await asyncio.sleep(0.02)

    async def until_so(self, fact: Callable[[], Awaitable[bool]]) -> None:
        """Until something that must be asked for holds."""
        async with asyncio.timeout(PATIENCE):
            while not await fact():
                await asyncio.sleep(0.02)

    async def status(self, fact: Callable[[FederationStatus], bool]) -> FederationStatus:
        """What the operator sees, once something holds of it."""
        async with asyncio.timeout(PATIENCE):
            while not fact(status := await self.hand.status()):
                await asyncio.sleep(0.02)
        return status

    async def record(self, round_: int = 0) -> Record:
        """The record, once this many rounds are done."""
        status = await self.status(lambda seen: seen.record is not None and seen.record.round >= round_)
        assert status.record is not None
        return status.record

    async def advanced(self, rounds: int) -> Record:
        """The record, once some more rounds are done."""
        return await self.record((await self.record()).round + rounds)

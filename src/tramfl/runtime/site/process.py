"""A site: one process that follows the register, answers its peers, and drives the round machine of the run.

Only wiring is here. Each part is a file of its own:

    life           alone in the folder, the incarnation, tasks whose failure ends the site
    member         what all parts work with: files, register, peers, log, clock
    model          model and data as loaded, w_0
    lease          keeps this site's lease
    following      news of the record and of who is alive, into the machine
    participation  the run at hand: its driver and its weights on disk
    driver         events in, commands out; services is what the site does for it
    status         pausing, resuming, stopping; starting: a new run
    hosting        answers calls; orders: what an operator asks; report: what the site says about itself
"""

from __future__ import annotations

import asyncio
import contextlib

from tramfl.runtime.journal import Journal
from tramfl.runtime.loads import Meters
from tramfl.runtime.registers import Register, Silent
from tramfl.runtime.settings import SiteSettings
from tramfl.runtime.site.following import RegisterFollower
from tramfl.runtime.site.hosting import Hosting
from tramfl.runtime.site.lease import keep_lease
from tramfl.runtime.site.life import Incarnation, Tasks, alone_in, steady_clock
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.metrics import Metrics
from tramfl.runtime.site.model import LocalModel, load_model
from tramfl.runtime.site.orders import Orders
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.site.report import Reporter
from tramfl.runtime.site.services import Services
from tramfl.runtime.site.starting import RunStart
from tramfl.runtime.site.status import FinishedRuns, RunStatus
from tramfl.runtime.training import Build, Scorer, Workshop
from tramfl.runtime.transport import Credentials, Peers, Server
from tramfl.runtime.wire import Prepared
from tramfl.scheduling.policy import Policy, PolicySettings, policy_named


async def run_site(
    site: SiteSettings,
    register: Register,
    credentials: Credentials | None,
    log: Journal,
    stop: asyncio.Event,
    metrics: int | None = None,
) -> None:
    """Be a site until `stop` is set; raises what makes that impossible. `metrics` is a port of loopback."""
    scenario = site.federation.file.run
    policy = policy_named(scenario.policy, PolicySettings(scenario.variance_limit, scenario.wait_seconds))
    async with contextlib.AsyncExitStack() as stack:
        member = Member(site, register, Peers(site.federation, site.file.site, credentials), log, steady_clock())
        stack.enter_context(alone_in(member.folder, site.file.site))
        incarnation = Incarnation(member.folder)
        stack.push_async_callback(member.peers.close)
        stack.push_async_callback(register.close)
        workshop = Workshop(Build.of(site), log)
        stack.push_async_callback(workshop.close)
        model = await load_model(workshop, member.folder, site.file.site)
        parts = Parts(member, model, policy, workshop, incarnation)
        server = Server(site.listen, credentials, site.federation, parts.hosting, log)
        stack.push_async_callback(server.stop, 0.5)
        await server.start()
        if metrics is not None:
            await stack.enter_async_context(Metrics(parts.reporter, member, metrics))
        stack.push_async_callback(parts.end)
        parts.start()
        log("started", address=site.listen, incarnation=incarnation.number, held=model.held)
        await parts.tasks.wait_until(stop)
        await parts.leave()
        log("ended")


class Parts:
    """The parts of one site, wired to each other."""

    def __init__(
        self, member: Member, model: LocalModel, policy: Policy, workshop: Workshop, incarnation: Incarnation
    ) -> None:
        log, register = member.log, member.register
        self._member = member
        self.tasks = Tasks(log)
        self._meters = Meters(
            model.cost,
            model.built.flops,
            predictor=member.site.file.predictor,
            threads=member.site.file.threads,
            history=member.folder / "history.json",
            log=log,
            training_pid=lambda: workshop.pid,
        )
        self._finished = FinishedRuns(log)
        reached = self._finished.target_reached
        self._scorer = Scorer(member.folder, workshop, register, member.scenario, log, reached)
        self._services = Services(
            member,
            self._meters,
            workshop,
            self._scorer,
            self._finished,
            self.tasks,
            looks_ahead=getattr(policy, "looks_ahead", False),
        )
        self._participation = Participation(member, model, policy, workshop, self._services, incarnation)
        self._following = RegisterFollower(member, self._participation)
        self._status = RunStatus(self._participation, self._following)
        self.reporter = Reporter(
            member,
            model,
            self._meters,
            workshop,
            incarnation,
            self._participation,
            self._following,
            self._scorer,
            self._finished,
        )
        orders = Orders(
            self._following.look, self.reporter, self._prepare, RunStart(member, self._prepare), self._status, log
        )
        self.hosting = Hosting(
            member, model, self._meters, self._services, self._participation, self._following, orders
        )

    def _prepare(self, run: str) -> Prepared:
        self._participation.prepare(run)
        return self.reporter.prepared()

    def start(self) -> None:
        """Begin all that goes on beside the calls of peers."""
        for work in (
            keep_lease(self._member, self._meters.read_machine),
            self._following.follow(),
            self._scorer.work(),
            self._finished.stop_all(self._status),
        ):
            self.tasks.start(work)

    async def leave(self) -> None:
        """End so that nobody has to wait: hand the model on, then give up the lease, unless the machine keeps it."""
        self.hosting.ending = True
        self._member.log("ending")
        driver = self._participation.driver
        release = driver is None or (await driver.leave()).release
        # Before the lease is given up: the task that keeps it would take another.
        await self.end()
        if release:
            with contextlib.suppress(Silent):
                await self._member.register.leave()

    async def end(self) -> None:
        """Stop everything, and save the history of loads."""
        await self.tasks.end()
        await self._participation.end()
        self._meters.save()

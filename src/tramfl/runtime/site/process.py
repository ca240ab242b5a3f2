"""A site: one process that follows the register, answers its peers, and drives the round machine of the run.

Only wiring is here. Each part is a file of its own:

    life           alone in the folder, the incarnation, tasks whose failure ends the site
    member         what all parts work with: files, register, peers, log, clock
    auditing       the site's audit trail: who made which weights, and which rounds do not count
    model          model and data as loaded, w_0
    revoking       the certificates that this site refuses
    lease          keeps this site's lease
    following      news of the record and of who is alive, into the machine
    participation  the run at hand: its driver and its weights on disk
    driver         events in, commands out; asking, deciding, register_answers, tapes: its parts;
                   services is what the site does for it (surroundings)
    status         pausing, resuming, stopping; starting: a new run
    hosting        answers calls; orders: what an operator asks; report: what the site says about itself
"""

from __future__ import annotations

import asyncio
import contextlib

from tramfl.runtime.journal import Journal
from tramfl.runtime.loads import Meters
from tramfl.runtime.registers import CheckedRegister, Register, Silent
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import SiteSettings
from tramfl.runtime.site.auditing import Auditor
from tramfl.runtime.site.availability import Availability
from tramfl.runtime.site.following import RegisterFollower
from tramfl.runtime.site.hosting import Hosting
from tramfl.runtime.site.lease import keep_lease
from tramfl.runtime.site.life import Incarnation, Tasks, alone_in, steady_clock
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.metrics import Metrics, metrics_address
from tramfl.runtime.site.model import LocalModel, load_model
from tramfl.runtime.site.orders import Orders
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.site.report import Reporter
from tramfl.runtime.site.revoking import Revocations
from tramfl.runtime.site.services import Services
from tramfl.runtime.site.starting import RunStart
from tramfl.runtime.site.status import FinishedRuns, RunStatus
from tramfl.runtime.training import Build, Scorer, Workshop
from tramfl.runtime.transport import Credentials, Peers, Server
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import Prepared
from tramfl.scheduling.guards import guarded
from tramfl.scheduling.policy import Policy, PolicySettings, policy_named


async def run_site(
    site: SiteSettings,
    register: Register,
    credentials: Credentials | None,
    log: Journal,
    stop: asyncio.Event,
    metrics: str | None = None,
) -> None:
    """Be a site until `stop` is set; raises what makes that impossible. `metrics` is [HOST:]PORT."""
    scenario = site.federation.file.run
    policy_named(scenario.policy)  # a policy that is not installed is named before anything is loaded
    async with contextlib.AsyncExitStack() as stack:
        folder = site.beside(site.file.state)
        stack.enter_context(alone_in(folder, site.file.site))
        roster = Roster(site.federation)
        seal = SiteSeal(site.file.site, credentials, roster) if credentials is not None else None
        checked = CheckedRegister(register, folder / "record.msgpack", log, seal)
        peers = Peers(roster, site.file.site, credentials)
        revocations = Revocations(site.file.site, credentials, roster, checked, folder, log)
        now = steady_clock()
        audit = Auditor(folder, site.file.site, now, log)
        member = Member(site, checked, roster, peers, revocations, log, now, audit)
        incarnation = Incarnation(member.folder)
        stack.push_async_callback(member.peers.close)
        stack.push_async_callback(checked.close)
        workshop = Workshop(Build.of(site), log)
        stack.push_async_callback(workshop.close)
        model = await load_model(workshop, member.folder, site.file.site)
        settings = PolicySettings.of(scenario, model.labels)
        policy = guarded(policy_named(scenario.policy, settings), settings)
        parts = Parts(member, model, policy, workshop, incarnation)
        server = Server(site.listen, credentials, roster, parts.hosting, log)
        stack.push_async_callback(server.stop, 0.5)
        await server.start()
        if metrics is not None:
            where = metrics_address(metrics)
            await stack.enter_async_context(Metrics(parts.reporter, member, where, credentials))
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
            threads=member.site.threads,
            history=member.folder / "history.json",
            log=log,
            training_pid=lambda: workshop.pid,
        )
        self._finished = FinishedRuns(log)
        reached = self._finished.target_reached
        self._scorer = Scorer(member.folder, workshop, register, member.scenario, log, reached)
        site = member.site
        self._availability = Availability(member.folder / "availability.json", site.hours, site.file.samples_per_day)
        self._services = Services(
            member,
            self._meters,
            workshop,
            self._scorer,
            self._finished,
            self.tasks,
            self._availability,
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
            self._services.judgement,
            self._availability,
        )
        orders = Orders(
            self._following.look,
            self.reporter,
            self._prepare,
            RunStart(member, self._prepare),
            self._status,
            member.register.repair,
            member.revocations,
            log,
            self._availability,
            member.audit.entries,
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
            keep_lease(self._member, self._meters.read_machine, self.reporter.note_twin),
            self._following.follow(),
            self._services.probes.calibrate(),
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

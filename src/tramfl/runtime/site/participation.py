"""The run that this site takes part in: its driver, and the weights of runs on this site's disk."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

from tramfl.circulation.custody import Record
from tramfl.notation import BadInput
from tramfl.runtime.registers import AGREEMENT
from tramfl.runtime.site.agreement import check_run_name, disagreement, misfit
from tramfl.runtime.site.driver import Driver
from tramfl.runtime.site.life import Incarnation
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.model import LocalModel
from tramfl.runtime.site.surroundings import Surroundings
from tramfl.runtime.training import Workshop
from tramfl.runtime.weights import WeightStore
from tramfl.scheduling.policy import Policy

KEPT_RUNS = 2
"""A site keeps the weights of the present run and of the one before it."""


class Participation:
    """Joins runs, one after the other."""

    def __init__(
        self,
        member: Member,
        model: LocalModel,
        policy: Policy,
        workshop: Workshop,
        services: Surroundings,
        incarnation: Incarnation,
    ) -> None:
        self._member, self._model, self._policy = member, model, policy
        self._workshop, self._services, self._incarnation = workshop, services, incarnation
        self.driver: Driver | None = None
        """The round machine of the run; None before a run has begun."""
        self._unfit: tuple[str, str] | None = None
        """The run that does not fit this site, and why."""
        self._preparing = threading.Lock()

    def driver_of(self, run: str) -> Driver | None:
        """The driver, if it is that of this run."""
        return self.driver if self.driver is not None and self.driver.run == run else None

    async def join(self, record: Record) -> None:
        """Take part in the run of `record`, unless this site does so already.

        A run that does not fit this site is left to the others: this site waits for the next. Raises Silent.
        """
        if self.driver_of(record.run) is not None or not await self._fits(record):
            return
        if self.driver is not None:
            await self.driver.end()
            # The new run's tickets must differ from those of the last.
            self._incarnation.next()
        # Opening the store reads every file in it: in a thread, so that the lease is kept meanwhile.
        store = await asyncio.to_thread(self._opened, record)
        for damaged in store.damaged:
            self._member.log("damaged", file=damaged, reason="its content is not what its name says; set aside")
        self.driver = self._new_driver(record.run, store)
        self._discard_old_runs(record.run)
        holder, copies = record.name_of(record.holder), [copy.digest for copy in store.copies()]
        self._member.log("joined", holder=holder, copies=copies)
        self.driver.start()

    def prepare(self, run: str) -> None:
        """Put w_0 where a run that is about to begin will look for it; what was prepared before is deleted.

        Raises BadInput where this site takes part in that run, or another has not ended.
        """
        driver = self.driver
        if driver is not None and driver.state.seen is not None:
            record = driver.state.seen.record
            if record.status != "stopped" or run == record.run:
                raise BadInput(f"run {record.run} is {record.status}; a run {run} cannot be prepared.")
        with self._preparing:
            shutil.rmtree(self._next, ignore_errors=True)
            self._model.put_initial(WeightStore(self._next / run))

    @property
    def _next(self) -> Path:
        """The folder of the run that was prepared and has not begun: never more than one, whatever peers ask."""
        return self._member.folder / "next"

    def _opened(self, record: Record) -> WeightStore:
        """The store of a run, with w_0 where the record says that it is here."""
        folder = self._folder(record.run)
        with self._preparing:
            if not folder.exists() and (self._next / record.run).is_dir():
                folder.parent.mkdir(exist_ok=True)
                (self._next / record.run).rename(folder)
        store = WeightStore(folder)
        if self._model.initial_digest in (record.weights.digest, record.safe.digest):
            self._model.put_initial(store)
        return store

    async def end(self) -> None:
        """Stop everything that is under way."""
        if self.driver is not None:
            await self.driver.end()

    async def _fits(self, record: Record) -> bool:
        member = self._member
        try:
            check_run_name(record.run)
            if wrong := misfit(record, member.federation, member.site.file.site, len(self._model.held)):
                raise BadInput(wrong)
            agreed = await member.register.rows(record.run, AGREEMENT, AGREEMENT)
            if wrong := disagreement(member.federation, record.run, agreed):
                raise BadInput(wrong)
        except BadInput as error:
            # Not the end of the site: any site can write such a record.
            if self._unfit is None or self._unfit[0] != record.run:
                self._member.log("not-joined", reason=str(error))
            self._unfit = record.run, str(error)
            return False
        return True

    def why_not(self, run: str | None) -> str | None:
        """Why this site does not take part in a run; None where it does, or nobody knows yet."""
        return self._unfit[1] if self._unfit is not None and self._unfit[0] == run else None

    def _new_driver(self, run: str, store: WeightStore) -> Driver:
        member, model, scenario = self._member, self._model, self._member.scenario
        driver = Driver(
            me=member.me,
            roster=member.roster,
            run=run,
            seed=scenario.seed,
            labels=len(model.held),
            limits=member.federation.limits,
            cost=model.cost,
            policy=self._policy,
            policy_name=scenario.policy,
            wait_seconds=scenario.wait_seconds,
            register=member.register,
            store=store,
            workshop=self._workshop,
            surroundings=self._services,
            clock=member.now,
            log=member.log,
            incarnation=self._incarnation.number,
            folder=member.folder,
        )
        driver.held[member.me] = model.held
        return driver

    def _folder(self, run: str) -> Path:
        return self._member.folder / "runs" / run

    def _discard_old_runs(self, run: str) -> None:
        folder = self._folder(run)
        others = sorted((f for f in folder.parent.iterdir() if f != folder), key=lambda f: f.stat().st_mtime)
        for old in others[: -KEPT_RUNS + 1]:
            shutil.rmtree(old, ignore_errors=True)

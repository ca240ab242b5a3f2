"""A federation of real processes on loopback, for tests, chaos and benchmarks: started, killed, stopped, looked at.

Ends only processes that it started, by their ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from tests.system_parts import TIED
from tramfl.circulation.custody import Record
from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import Row
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.federation_status import FederationStatus
from tramfl.runtime.operator.operating import Operator, operator_from
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.registers.contract import Register
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import Federation, RegisterSettings, SiteEntry
from tramfl.runtime.wire import Order

T = TypeVar("T")
COMMAND = (sys.executable, "-c", "from tramfl.cli import main; main()")
PATIENCE = 600.0
"""Seconds until a wait fails: a site that starts beside much other work may take minutes to import PyTorch."""
PATIENT_REGISTER = RegisterSettings(timeout_seconds=20.0)
"""A SQLite file on a disk that may stand still for seconds; an order that takes that long is still carried out."""
LONG_LEASE = 60.0
"""Seconds for which no site that lives is taken for dead, however busy the machine."""


@contextlib.contextmanager
def unreadable(register: Path) -> Iterator[None]:
    """No process can read, or write, a SQLite register meanwhile: every reader needs one of five locks.

    A transaction of another connection would not do: in WAL mode it holds up writers only. A connection that waits
    10 s for its lock fails and is closed, and the last one that is closed deletes the file that has the locks: it is
    not the last as long as the database itself is locked as every open connection locks it.
    """
    with register.open("rb") as database, Path(f"{register}-shm").open("r+b") as shared:
        fcntl.lockf(database, fcntl.LOCK_SH, 510, 0x40000002)  # see "Database File Locking": SHARED_FIRST
        fcntl.lockf(shared, fcntl.LOCK_EX, 5, 123)  # see "The WAL-Index File Format": WAL_READ_LOCK(0) to (4)
        yield


def patient_register(federation: Federation, name: str) -> Register:
    """The federation's register for a test's own use: a disk that stands still for seconds fails no test."""
    patient = replace(federation.file.register, timeout_seconds=PATIENCE)
    return open_register(replace(federation, file=replace(federation.file, register=patient)), name)


class LocalFederation:
    """Sites a, b, c ... as processes."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        sites: int,
        *,
        register: RegisterSettings | None = None,
        lease_seconds: float = LONG_LEASE,
        settings: Mapping[str, Any] | None = None,
        addresses: Sequence[str] | None = None,
        wrap: Callable[[str], Sequence[str]] = lambda name: (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are keys of federation.toml; `wrap` gives words before a site's command (ip netns exec ...)."""
        self.folder = folder
        self.names = [chr(ord("a") + n) for n in range(sites)]
        places = addresses or [f"127.0.0.1:{port}" for port in free_ports(sites)]
        entries = tuple(SiteEntry(name=n, address=a) for n, a in zip(self.names, places, strict=True))
        run = founding.run_for(scenario, sites)
        plan = founding.NewFederation(name="test", site=entries, register=register or PATIENT_REGISTER, run=run)
        founding.found(plan, folder)
        self.federation = folder / founding.FEDERATION_FILE
        for name in self.names:
            self._change(self._site_file(name).parent / founding.FEDERATION_FILE, lease_seconds, settings or {})
            file = self._site_file(name)
            file.write_text(file.read_text() + "threads = 1\n")
        self._change(self.federation, lease_seconds, settings or {})
        self._wrap, self._environment = wrap, dict(environment or {})
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _change(self, path: Path, lease_seconds: float, settings: Mapping[str, Any]) -> None:
        lines = []
        for line in path.read_text().splitlines():
            key = line.partition(" = ")[0]
            wanted = {"lease_seconds": lease_seconds, **settings}
            lines.append(f"{key} = {json.dumps(wanted[key])}" if key in wanted else line)
        path.write_text("\n".join(lines) + "\n")

    def _site_file(self, name: str) -> Path:
        return founding.site_folder(self.folder, name) / founding.SITE_FILE

    def site_folder(self, name: str) -> Path:
        """A site's own folder, with its state and its log."""
        return self._site_file(name).parent

    # Processes.

    def start(self, *names: str) -> None:
        """Start sites; all if none is named."""
        for name in names or self.names:
            assert name not in self.processes or self.processes[name].poll() is not None
            with (self.site_folder(name) / "log.jsonl").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [*TIED, *self._wrap(name), *COMMAND, "node", str(self._site_file(name))],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )

    def kill(self, name: str) -> None:
        """kill -9: the site, not its workshop, which must see for itself."""
        self.processes[name].kill()
        self.processes[name].wait()

    def suspend(self, name: str) -> None:
        """SIGSTOP."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def proceed(self, name: str) -> None:
        """SIGCONT."""
        self.processes[name].send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End everything that is left."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @staticmethod
    @contextlib.contextmanager
    def process(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A command as a process of its own, ended at the end."""
        with log.open("wb") as out:
            process = subprocess.Popen([*TIED, *COMMAND, *arguments], stdout=out, stderr=out, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @staticmethod
    def wait_for(true: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
        """Until something holds, while a process lives."""
        until = time.monotonic() + PATIENCE
        while not true():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)

    # Looking at it.

    @contextlib.contextmanager
    def _hand(self) -> Iterator[tuple[asyncio.Runner, Operator]]:
        with asyncio.Runner() as runner:

            async def made() -> Operator:
                return operator_from(self.federation, False)

            hand = runner.run(made())
            try:
                yield runner, hand
            finally:
                runner.run(hand.close())

    def status(self) -> FederationStatus:
        """As `tramfl status` sees it."""
        with self._hand() as (runner, hand):
            return runner.run(hand.status())

    @property
    def record(self) -> Record:
        """The record, which must be there, at this moment: in the next the run may have moved on."""
        return self.shown("site that shows the record", lambda status: status.record)

    def rows(self) -> list[Row]:
        """Every committed round."""
        return self.recorded("rows", lambda row: True)

    def order(self, what: str, run: str = "", replacing: bool = False, once: bool = False) -> str:
        """As `tramfl start` and the like give it, once there is a site that answers.

        All but start are given again where the register is silent, unless `once`: to do them twice changes nothing.
        """
        self.wait("site that answers", lambda: bool(self.status().answering))
        with self._hand() as (runner, hand):
            while True:
                try:
                    return runner.run(hand.order(Order(what, run, replacing)))  # type: ignore[arg-type]
                except BadInput as error:
                    if once or "the register does not answer" not in str(error) or what == "start":
                        raise

    def start_with(self, least: int, run: str) -> str:
        """As `tramfl start --min-sites` gives it."""
        with self._hand() as (runner, hand):
            return runner.run(hand.order(Order("start", run, True, least)))

    def order_site(self, name: str, what: str) -> str:
        """As `tramfl drain` and `undrain` give it."""
        with self._hand() as (runner, hand):
            return runner.run(hand.order_site(name, Order(what)))  # type: ignore[arg-type]

    def answers(self, *names: str, seconds: float = PATIENCE) -> FederationStatus:
        """The status, once these sites, or all, answer in it."""
        wanted = {self.names.index(name) for name in names or self.names}

        def answering() -> FederationStatus | None:
            status = self.status()  # over new connections: one to a site that has just started may wait for a while
            return status if wanted <= set(status.answering) else None

        return self.seen("sites that answer", answering, seconds)

    def ready(self, *names: str, seconds: float = PATIENCE) -> None:
        """Until these sites, or all, answer."""
        self.answers(*names, seconds=seconds)

    def begin(self, run: str = "run") -> None:
        """Start all sites and a run."""
        self.start()
        self.ready()
        self.order("start", run)

    def wait(self, what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Until something holds; generous, since the machine may be busy."""
        until = time.monotonic() + seconds
        while not true():
            if time.monotonic() > until:
                raise AssertionError(f"no {what} within {seconds:.0f} s\n{self.logs()}")
            time.sleep(0.05)

    def seen(self, what: str, look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
        """What a look finds, once it finds something; not looked at again, since a second look may differ."""
        found: list[T] = []

        def finds() -> bool:
            found[:] = [thing for thing in [look()] if thing is not None]
            return bool(found)

        self.wait(what, finds, seconds)
        return found[0]

    def shown(self, what: str, look: Callable[[FederationStatus], T | None], seconds: float = PATIENCE) -> T:
        """What a look at the status finds, once it finds something; the sites are asked over the same connections."""
        with self._hand() as (runner, hand):
            return self.seen(what, lambda: look(runner.run(hand.status())), seconds)

    def recorded(self, what: str, fits: Callable[[Row], bool]) -> list[Row]:
        """Every committed round, once one of them fits."""

        def found() -> list[Row] | None:
            try:
                rows = runner.run(hand.rows(runner.run(hand.status())))
            except BadInput:  # a busy machine may take longer to read them than a site waits
                return None
            return rows if any(map(fits, rows)) else None

        with self._hand() as (runner, hand):
            return self.seen(what, found)

    def wait_for_round(self, round_: int, seconds: float = PATIENCE) -> Record:
        """The record, once this many rounds are committed."""

        def there(status: FederationStatus) -> Record | None:
            record = status.record
            return record if record is not None and record.round >= round_ else None

        return self.shown(f"round {round_}", there, seconds)

    def rest(self) -> Record:
        """The record of the run, once it has come to rest (`FederationStatus.rests`) and all its sites answer."""

        def resting(status: FederationStatus) -> Record | None:
            lives = {n for n, name in enumerate(self.names) if self.processes[name].poll() is None}
            return status.record if status.rests and lives <= set(status.answering) else None

        return self.shown("rest", resting)

    def wait_until_stopped(self) -> Record:
        """The record, once the run is at its end; the round in hand may still be committed."""

        def stopped(status: FederationStatus) -> Record | None:
            record = status.record
            return record if record is not None and record.status == "stopped" else None

        return self.shown("end of the run", stopped)

    def holder(self) -> str:
        """Who holds the model at this moment; in the next it may be another."""

        def held(status: FederationStatus) -> str | None:
            record = status.record
            return self.names[record.holder] if record is not None and record.holder is not None else None

        return self.shown("holder", held)

    def events(self, name: str) -> list[dict[str, Any]]:
        """A site's log."""
        whole, _, _ = (self.site_folder(name) / "log.jsonl").read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]

    def logs(self) -> str:
        """The ends of all logs, for a message."""
        parts = []
        for name in self.names:
            path = self.site_folder(name) / "log.jsonl"
            lines = path.read_text(errors="replace").splitlines()[-8:] if path.exists() else []
            parts += [f"{name}: {line[:400]}" for line in lines]
        return "\n".join(parts)

    def stored(self, name: str) -> list[bytes]:
        """The weights on a site's disk; a site at rest may still discard old ones, which are left out then."""
        found = []
        for path in (self.site_folder(name) / "state" / "runs").glob("*/*.safetensors"):
            if path.name != "readout.safetensors":
                with contextlib.suppress(FileNotFoundError):
                    found.append(path.read_bytes())
        return found

"""A federation of real processes that things are done to, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil  # type: ignore[import-untyped]
from msgspec.structs import replace

from tests.chaos.evidence import check_disks, check_history, check_logs, check_rows
from tests.chaos.traps import Caught, Traps
from tests.chaos.witness import Witness
from tests.runtime.etcd import EtcdCluster
from tests.runtime.federations import PATIENCE, LocalFederation
from tramfl.circulation.custody import Record
from tramfl.config import Budget, Codec, Scenario, Transit
from tramfl.record import Row
from tramfl.runtime.settings import RegisterSettings
from tramfl.simulation.scenarios import scenario_named

T = TypeVar("T")
Kind = Literal["sqlite", "etcd"]
TARGET = 0.85

UNWANTED = ("broken", "failed", "must-end")
"""Events that no site logs, whatever is done to it here."""
ENDLESS_LEASE = 3600.0
"""Seconds of a lease that no test can wait for: where a run goes on, nobody did."""

codec: Codec = "float32"
"""How models travel; `pytest tests/chaos --codec int4` sets it. Coded models are tested as express tests them."""


def digits(sites: int = 3) -> Scenario:
    """Digits without end, with a network that takes several chunks to send."""
    scenario = scenario_named(f"digits-{sites}")
    network, readout = ("wide", "last") if codec == "float32" else ("Laden", "average")
    return replace(
        scenario,
        training=replace(scenario.training, network=f"wide_network:{network}", learning_rate=0.01),
        transit=Transit(codec=codec),
        evaluation=replace(scenario.evaluation, readout=readout),
        budget=Budget(rounds=10**9),
    )


class Scene:
    """Sites, their register, and a witness."""

    def __init__(
        self, federation: LocalFederation, witness: Witness, traps: Traps, cluster: EtcdCluster | None
    ) -> None:
        self.federation, self.witness, self.traps, self.cluster = federation, witness, traps, cluster
        self.names = federation.names
        self._killed: list[tuple[str, int]] = []
        self._ended: set[int] = set()
        self._numbers = itertools.count(1)
        self._run = ""

    # Runs.

    def begin(self) -> str:
        """Have every site up, and begin a new run."""
        self.traps.clear()
        self.revive()
        record = self.witness.record()
        if record is not None and record.status != "stopped":
            self.federation.order("stop")  # a test that failed left it
        self._killed.clear()
        self._run = f"run-{next(self._numbers)}"
        self.federation.order("start", self._run, replacing=True)
        return self._run

    def record(self) -> Record:
        """The record of the run at hand; the register must answer."""
        record = self.seen("answer of the register", self.witness.record)
        assert record.run == self._run
        return record

    def wait(self, what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Until something holds."""
        self.federation.wait(what, true, seconds)

    def seen(self, what: str, look: Callable[[], T | None]) -> T:
        """What a look finds, once it finds something; not looked at again, since a second look may differ."""
        return self.federation.seen(what, look, PATIENCE)

    def reach(self, round_: int, epoch: int = 1) -> Record:
        """The record, once this many rounds are committed, in this epoch or a later one."""

        def there() -> Record | None:
            record = self.record()
            return record if record.round >= round_ and record.epoch >= epoch else None

        return self.seen(f"round {round_} of epoch {epoch}", there)

    def advance(self, rounds: int = 3) -> Record:
        """Until this many more rounds are committed."""
        return self.reach(self.record().round + rounds)

    def waits_for(self, name: str) -> None:
        """Until a site trains again; it must hold labels that nobody else does, or a policy may do without it."""
        node = self.names.index(name)
        self._waits_for_round(f"that {name} trains", lambda row: row.node == node)

    def hears_of(self, name: str) -> None:
        """Until a round is decided in which a site had reported."""
        node = self.names.index(name)
        self._waits_for_round(f"in which {name} reports", lambda row: row.loads.flops[node] is not None)

    def _waits_for_round(self, what: str, fits: Callable[[Row], bool]) -> None:
        now = self.record().round
        self.wait(f"round {what}", lambda: any(map(fits, self.witness.rows(self._run, self.record().round, now + 1))))

    def committed(self, *names: str) -> int:
        """How many rounds these sites, or all, say they committed."""
        events = [e for name in names or self.names for e in self.federation.events(name)]
        return sum(event["event"] == "committed" for event in events)

    def holder(self) -> str:
        """Who holds the model at this moment; in the next it may be another."""

        def held() -> str | None:
            holder = self.record().holder
            return None if holder is None else self.names[holder]

        return self.seen("holder", held)

    # Faults.

    def catch(self, where: str, from_round: int = 4, site: str | None = None, *, deadlines: bool = False) -> Caught:
        """Lay a trap and wait until a site is in it."""
        self.traps.lay(where, from_round, site, deadlines=deadlines)
        return self.seen(f"site that comes to {where!r} in round {from_round}", self.traps.caught)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[Record]:
        """No site does anything meanwhile (SIGSTOP): the record as it stands, which nobody changes."""
        living = [process for process in self.federation.processes.values() if process.poll() is None]
        for process in living:
            process.send_signal(signal.SIGSTOP)
        try:
            self.wait("stop of every site", lambda: all(_is_stopped(process.pid) for process in living))
            # What a site asked of the register before it was stopped may still be done. What etcd has taken up it
            # writes before the mark, however long its disk takes.
            record = self.record()
            while True:
                time.sleep(0.3)
                if self.cluster is not None:
                    mark = {"key": "bWFyaw==", "value": "bWFyaw=="}  # beside the keys of the federation
                    self.cluster.ask("kv/put", mark).raise_for_status()
                if (later := self.record()) == record:
                    break
                record = later
            yield record
        finally:
            for process in living:
                process.send_signal(signal.SIGCONT)  # does nothing to one that was killed meanwhile

    def kill(self, *names: str) -> None:
        """kill -9, all in one moment."""
        for name in names:
            process = self.federation.processes[name]
            self._killed.append((name, process.pid))
            process.kill()
        for name in names:
            self.federation.processes[name].wait()
        self.traps.clear()

    def end(self, name: str) -> None:
        """SIGTERM: the site ends by itself, in good order, and nothing is left of it.

        A site in a trap is let go once the site that ends has logged that it ended.
        """
        process, said = self.federation.processes[name], self._logged(name, "ended")
        process.terminate()
        self.wait(f"last word of {name}", lambda: self._logged(name, "ended") > said)
        self.traps.clear()
        self.wait(f"end of {name}", lambda: process.poll() is not None)
        self._ended.add(process.pid)
        assert process.returncode == 0, self.federation.logs()
        assert not _left_behind(process.pid), f"{name} left a process behind"

    def end_at_once(self, name: str) -> None:
        """SIGTERM, and again as soon as the site has heard the first: it is gone, as if it had been killed."""
        process, heard = self.federation.processes[name], self._logged(name, "ending")
        process.terminate()
        self.wait(f"{name} to end", lambda: self._logged(name, "ending") > heard)
        self._killed.append((name, process.pid))
        process.terminate()
        self.wait(f"end of {name}", lambda: process.poll() is not None)
        self.traps.clear()
        assert process.returncode == -signal.SIGTERM, self.federation.logs()

    def _logged(self, name: str, what: str) -> int:
        return sum(event["event"] == what for event in self.federation.events(name))

    def revive(self) -> None:
        """Start every site that was killed or ended, and wait until all answer and have a lease."""
        self.start(*(n for n in self.names if self.federation.processes[n].poll() is not None))

    def start(self, *names: str) -> None:
        """Start these sites, and wait until they answer and have a lease."""
        if names:
            self.federation.start(*names)
            self.federation.ready(*names)
        self.wait("leases", lambda: set(names) <= self.witness.alive())

    # Evidence.

    def finish(self) -> Record:
        """Until the target is reached, after all that was done to the run; then everything must be as it should."""
        now = self.record().round
        self.wait(f"test accuracy of {TARGET}", lambda: self._accuracy(now) >= TARGET)
        self.federation.order("stop")
        self.federation.rest()
        return self.check()

    def _accuracy(self, from_round: int) -> float:
        """The best of the rounds from here on."""
        record = self.record()
        found = self.witness.accuracies(record.run, from_round, record.round)
        return max(found.values(), default=0.0)

    def check(self) -> Record:
        """The invariants, of a run at rest."""
        record = self.record()
        history = self.witness.history(record.run)
        assert history[-1].record == record, "the record moves, though it should be at rest"
        check_history(history)
        check_rows(record, self.witness.rows(record.run, record.round), history)
        events = [event for name in self.names for event in self.federation.events(name)]
        check_logs(record.run, history, events, len(self._killed))
        self.check_disks()
        self.check_processes()
        return record

    def check_disks(self) -> None:
        """Every copy that the record names is where it says."""
        check_disks(self.record(), [self.federation.site_folder(name) / "state" for name in self.names])

    def check_processes(self) -> None:
        """No site ended by itself, and no process that was killed left anything behind."""
        killed = {pid for _, pid in self._killed}
        for name, process in self.federation.processes.items():
            assert process.poll() is None or process.pid in killed | self._ended, (
                f"{name} ended by itself\n{self.federation.logs()}"
            )
        broken = [e for n in self.names for e in self.federation.events(n) if e["event"] in UNWANTED]
        assert not broken, broken
        self.wait("end of what killed sites left behind", lambda: not any(map(_left_behind, killed)))


def _is_stopped(pid: int) -> bool:
    """Whether no thread of a process runs: one that waits for the disk stops only after that."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state == "T" for state in states)


def _left_behind(session: int) -> bool:
    """Whether processes of a session are alive; each site has one of its own, named after its first process."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and _session(pid) == session:
                return True
    return False


def _session(pid: int) -> int:
    # After the last ")", because a process may have any name: state, parent, group, session.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])


@contextlib.contextmanager
def scene(
    folder: Path,
    kind: Kind,
    sites: int = 3,
    *,
    scenario: Scenario | None = None,
    lease_seconds: float = 3.0,
    settings: Mapping[str, Any] | None = None,
    cluster: EtcdCluster | None = None,
    addresses: Sequence[str] | None = None,
    wrap: Callable[[str], Sequence[str]] = lambda name: (),
    prepare: Callable[[LocalFederation], None] = lambda federation: None,
) -> Iterator[Scene]:
    """A federation whose sites all answer, and no run yet. `prepare` is called before the sites are started."""
    with contextlib.ExitStack() as stack:
        if kind == "etcd" and cluster is None:
            cluster = stack.enter_context(EtcdCluster(folder / "etcd", tls=True))
        traps = Traps(folder / "traps")
        federation = stack.enter_context(
            LocalFederation(
                folder / "federation",
                scenario or digits(sites),
                sites,
                register=cluster.settings() if cluster is not None else RegisterSettings(),
                lease_seconds=lease_seconds,
                settings=settings,
                addresses=addresses,
                wrap=wrap,
                environment=traps.environment,
            )
        )
        prepare(federation)
        federation.start()
        federation.ready()
        witness = stack.enter_context(Witness(federation.federation, cluster))
        yield Scene(federation, witness, traps, cluster)

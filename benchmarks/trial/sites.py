"""The federation of the trial: sites and members of etcd in network namespaces, and goals to hold figures against."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from tests.chaos.wan import FarNetwork, Line
from tests.runtime.etcd import EtcdCluster
from tests.runtime.federations import COMMAND, LocalFederation
from tramfl.config import Acceptance, Budget, Scenario
from tramfl.simulation.scenarios import scenario_named

LINES = (Line(200, 200, 2.5), Line(100, 60, 8), Line(47, 100, 15), Line(20, 120, 20))
SPARE_LINE = Line(100, 100, 10)
"""Of a fifth site, which may join later."""
LEASE_SECONDS = 20.0
PATIENCE = 600.0
BAD = "d"
"""The site that can be made to train nonsense."""
NETWORKS = Path(__file__).parents[2] / "tests" / "chaos" / "onsite"


def scenario(
    network: str | None = "wide_network:deep", policy: str = "random", visit_every_rounds: int | None = None
) -> Scenario:
    """Digits without end, with a network of 45 MB; the policy random draws the next site, so every link is used."""
    digits = scenario_named("digits-5")
    training = replace(digits.training, learning_rate=0.01)
    if network is not None:
        training = replace(training, network=network)
    partition = replace(digits.partition, layout="iid", nodes=len(LINES))
    return replace(
        digits,
        policy=policy,
        visit_every_rounds=visit_every_rounds,
        partition=partition,
        training=training,
        budget=Budget(rounds=10**9),
        accept=Acceptance(max_loss_ratio=3.0),
    )


class Goals:
    """What was measured against which goals."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.wrong = 0
        """Goals missed that a site must reach on any machine."""
        self.slow = 0
        """Goals missed that a busy machine may miss."""

    def note(self, what: str, figure: str, goal: str, good: bool) -> None:
        """Print a figure, its goal, and whether that is met."""
        self.wrong += not good
        self._print(what, figure, goal, good)

    def note_time(self, what: str, figure: str, goal: str, good: bool) -> None:
        """The same where the figure depends on how busy the machine is."""
        self.slow += not good
        self._print(what, figure, goal, good)

    def _print(self, what: str, figure: str, goal: str, good: bool) -> None:
        self._lines.append(f"{'met   ' if good else 'MISSED'}  {what}: {figure} (goal {goal})")
        print(self._lines[-1], flush=True)

    @property
    def missed(self) -> int:
        """All goals missed."""
        return self.wrong + self.slow

    def sum_up(self) -> None:
        """Print all of it once more."""
        print(f"\n{len(self._lines) - self.missed} of {len(self._lines)} goals met:")
        print("\n".join(self._lines))


class Far(NamedTuple):
    """The federation of the trial."""

    network: FarNetwork
    cluster: EtcdCluster
    sites: LocalFederation
    poison: Path
    """While this file exists, the last site trains nonsense."""

    def operate(self, *words: str) -> str:
        """Give a command in the operator's folder, as an operator does; what it prints."""
        done = subprocess.run([*COMMAND, *words], cwd=self.sites.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"tramfl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def set_lines(self, rate: float) -> None:
        """Give every site this many Mbit/s in both directions."""
        for host in range(len(self.network.lines)):
            self.network.change(host, up=rate, down=rate)


@contextmanager
def far_apart(folder: Path, run: Scenario, settings: Mapping[str, object] | None = None) -> Iterator[Far]:
    """Four sites and three members of etcd; the sites answer, and no run has begun."""
    with ExitStack() as stack:
        network, poison = stack.enter_context(FarNetwork((*LINES, SPARE_LINE))), folder / "poison"
        cluster = stack.enter_context(
            EtcdCluster(
                folder / "etcd",
                tls=True,
                hosts=network.addresses[:3],
                prefixes=[network.prefix(host) for host in range(3)],
            )
        )
        sites = stack.enter_context(
            LocalFederation(
                folder / "federation",
                run,
                len(LINES),
                register=cluster.settings(),
                lease_seconds=LEASE_SECONDS,
                settings=settings,
                addresses=[f"{address}:7400" for address in network.addresses[: len(LINES)]],
                wrap=lambda name: (
                    *network.prefix(ord(name) - ord("a")),
                    *(("env", f"TRAMFL_TRIAL_POISON={poison}") if name == BAD else ()),
                ),
                environment={"PYTHONPATH": os.pathsep.join((str(NETWORKS), os.environ.get("PYTHONPATH", "")))},
            )
        )
        sites.start()
        sites.ready(seconds=PATIENCE)
        yield Far(network, cluster, sites, poison)

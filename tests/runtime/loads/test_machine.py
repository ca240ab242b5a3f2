from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.system_parts import TIED
from tramfl.notation import BadInput
from tramfl.runtime.loads.machine import Machine

CpuTimes = namedtuple("CpuTimes", "user system idle iowait guest guest_nice")
"""As Linux has them: `user` contains `guest`."""


class FakeSystem:
    """psutil for a machine of two cores with this process (1), a child (2), and others."""

    class Error(Exception):
        """psutil.Error."""

    def __init__(self) -> None:
        self.now = 100.0
        self.busy = 0.0
        self.guest = 0.0
        self.used = {1: 0.0, 2: 0.0, 3: 0.0}
        self.children = [2]
        self.bytes = {"eth0": 0, "lo": 0}
        self.scans = 0

    def clock(self) -> float:
        return self.now

    def cpu_times(self) -> CpuTimes:
        return CpuTimes(self.busy, 0.0, 2 * self.now - self.busy - 3.0, 3.0, self.guest, 0.0)

    def Process(self, pid: int = 1) -> Any:
        if pid not in self.used:
            raise self.Error(pid)
        return SimpleNamespace(
            pid=pid, cpu_times=lambda: SimpleNamespace(user=self.used[pid], system=0.0), children=self._scan
        )

    def _scan(self, recursive: bool) -> list[Any]:
        assert recursive
        self.scans += 1
        return [SimpleNamespace(pid=pid) for pid in self.children]

    def net_io_counters(self, pernic: bool) -> dict[str, Any]:
        assert pernic
        return {name: SimpleNamespace(bytes_sent=n, bytes_recv=0) for name, n in self.bytes.items()}

    def run(self, seconds: float, others: float = 0.0, **own: float) -> None:
        """Let time pass; `others` cores are busy with other work, and p1, p2, p3 use the cores in `own`."""
        self.now += seconds
        self.busy += seconds * (others + sum(own.values()))
        for name, cores in own.items():
            self.used[int(name[1:])] += seconds * cores


class Nvml:
    """pynvml for a machine with one GPU."""

    class NVMLError(Exception):
        """pynvml.NVMLError."""

    def __init__(
        self, samples: list[tuple[int, int, int]] | None, running: tuple[int, ...] = (), gpu: int = 0
    ) -> None:
        self._samples, self._running, self._gpu = samples, running, gpu

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetProcessUtilization(self, gpu: str, since: int) -> list[Any]:
        if self._samples is None:
            raise self.NVMLError("not supported")
        return [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in self._samples if t > since]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self._running]

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> Any:
        return SimpleNamespace(gpu=self._gpu)


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem()


def machine(system: FakeSystem, gpus: Any = None, **options: Any) -> Machine:
    found = Machine(clock=system.clock, system=system, gpus=gpus, **options)
    if gpus is None:
        found._gpus = None  # the machine that runs the tests may have one
    return found


def test_what_we_and_our_children_use_is_not_other_work(system: FakeSystem) -> None:
    found = machine(system)
    system.run(1.0, others=0.5, p1=0.5, p2=1.0)
    assert found.busy_share() == pytest.approx(0.25)


def test_a_process_too_young_to_be_found_is_ours_when_named(system: FakeSystem) -> None:
    named, unnamed = machine(system, extra_pids=lambda: [3]), machine(system)
    system.run(1.0, p3=1.0)
    assert named.busy_share() == pytest.approx(0.0)
    assert unnamed.busy_share() == pytest.approx(0.5)


def test_a_child_that_has_ended_or_just_come_does_no_harm(system: FakeSystem) -> None:
    found = machine(system)
    del system.used[2]
    system.children = [3]
    system.used[3] = 500.0
    system.run(20.0, others=1.0)
    assert found.busy_share() == pytest.approx(0.5)
    system.run(20.0, others=1.0, p3=1.0)
    assert found.busy_share() == pytest.approx(0.5)


def test_the_time_of_a_guest_is_not_counted_twice(system: FakeSystem) -> None:
    found = machine(system)
    system.run(1.0, others=1.0)
    system.guest += 1.0
    assert found.busy_share() == pytest.approx(0.5)


def test_asked_again_at_once_it_says_the_same_and_forgets_nothing(system: FakeSystem) -> None:
    found = machine(system)
    system.run(1.0, others=1.0)
    assert found.busy_share() == pytest.approx(0.5)
    system.run(0.125, others=2.0)
    assert found.busy_share() == pytest.approx(0.5)
    system.run(0.125, others=2.0)
    assert found.busy_share() == pytest.approx(1.0)


def test_children_are_looked_for_seldom(system: FakeSystem) -> None:
    found = machine(system)
    for _ in range(100):
        system.run(0.25)
        found.busy_share()
    assert system.scans <= 4


def test_traffic_is_that_of_others_and_not_of_the_loopback(system: FakeSystem) -> None:
    found = machine(system)
    system.run(2.0)
    system.bytes = {"eth0": 2_000_000, "lo": 50_000_000}
    assert found.traffic() == pytest.approx(8e6)
    system.run(2.0)
    assert found.traffic() == 0.0


def test_what_the_site_itself_moves_is_never_taken_for_the_traffic_of_others(system: FakeSystem) -> None:
    found = machine(system)
    system.run(2.0)
    system.bytes = {"eth0": 1_000_000}
    assert found.traffic() == pytest.approx(4e6)
    with found.moving():
        for sent in (90_000_000, 200_000_000):  # a background copy, in the middle of which loads are asked for
            system.run(2.0)
            system.bytes = {"eth0": sent}
            assert found.traffic() == pytest.approx(4e6)
    system.run(2.0)
    system.bytes = {"eth0": 201_000_000}  # the end of the copy is in here
    assert found.traffic() == pytest.approx(4e6)
    system.run(2.0)
    assert found.traffic() == 0.0


def test_what_is_left_in_buffers_after_a_probe_is_not_the_traffic_of_others(system: FakeSystem) -> None:
    found = machine(system)
    with found.moving():
        system.run(1.0)
        system.bytes = {"eth0": 2_000_000}
    assert found.traffic() == 0.0
    system.run(0.5)
    system.bytes = {"eth0": 3_000_000}  # sent by the probe, which has ended
    assert found.traffic() == 0.0


def test_traffic_of_others_that_was_seen_long_ago_counts_no_longer(system: FakeSystem) -> None:
    found = machine(system)
    system.run(2.0)
    system.bytes = {"eth0": 1_000_000}
    assert found.traffic() == pytest.approx(4e6)
    for _ in range(10):  # hop after hop, with no time between in which others could be seen
        with found.moving():
            system.run(2.0)
            system.bytes = {"eth0": system.bytes["eth0"] + 9_000_000}
        seen = found.traffic()
    assert seen == 0.0


def test_a_gpu_that_others_use_is_busy_even_if_the_cores_are_not(system: FakeSystem) -> None:
    samples = [(1, 5, 90), (77, 5, 10), (77, 6, 30)]
    found = machine(system, Nvml(samples))
    system.run(1.0)
    assert found.busy_share() == pytest.approx(0.3)
    system.run(1.0)
    assert found.busy_share() == 0.0


@pytest.mark.parametrize(("running", "share"), [((77,), 0.6), ((1, 77), 0.0)])
def test_a_gpu_that_cannot_say_who_uses_it_counts_only_while_we_do_not(
    system: FakeSystem, running: tuple[int, ...], share: float
) -> None:
    found = machine(system, Nvml(None, running, 60))
    system.run(1.0)
    assert found.busy_share() == pytest.approx(share)


def test_without_psutil_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(BadInput, match=r"pip install 'tramfl\[runtime\]'"):
        Machine()


@pytest.mark.parametrize("count", [0, 1])
def test_pynvml_is_used_where_it_finds_a_gpu(monkeypatch: pytest.MonkeyPatch, system: FakeSystem, count: int) -> None:
    nvml: Any = Nvml([(77, 5, 40)])
    nvml.nvmlInit, nvml.nvmlDeviceGetCount = lambda: None, lambda: count
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Machine(clock=system.clock, system=system)
    system.run(1.0)
    assert found.busy_share() == pytest.approx(0.4 * count)


def test_a_driver_that_fails_is_no_gpu(monkeypatch: pytest.MonkeyPatch, system: FakeSystem) -> None:
    def fail() -> None:
        raise Nvml.NVMLError("no driver")

    nvml: Any = Nvml([])
    nvml.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Machine(clock=system.clock, system=system)
    system.run(1.0)
    assert found.busy_share() == 0.0


@pytest.fixture
def burning() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that keeps a core busy."""
    process = subprocess.Popen([*TIED, sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_on_the_real_machine_a_child_is_distinguished_from_other_work(burning: subprocess.Popen[bytes]) -> None:
    ours = Machine(extra_pids=lambda: [burning.pid])
    theirs = Machine()
    theirs._pids = lambda: {os.getpid()}  # type: ignore[method-assign]
    for reading in (ours, theirs):
        reading._cpu.at -= 1
        reading.busy_share()
    used = psutil.Process(burning.pid).cpu_times
    before = used().user
    while used().user < before + 0.5:
        time.sleep(0.05)
    shares = [reading.busy_share() for reading in (ours, theirs)]
    assert 0 <= shares[0] < shares[1] <= 1


def test_readings_of_the_real_machine_make_sense() -> None:
    seconds = iter(range(10_000))
    found = Machine(clock=lambda: float(next(seconds)))
    for _ in range(100):
        assert 0 <= found.busy_share() <= 1
        assert found.traffic() >= 0

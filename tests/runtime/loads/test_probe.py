from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.notation import BadInput
from tramfl.runtime.loads.probe import (
    FRESH_SECONDS,
    KEPT,
    ComputeMeter,
    History,
    HistoryWarning,
    LinkMeter,
    LinksMemory,
    Machine,
    Memory,
)
from tramfl.scheduling.predictors import predictor_names

NAMES = pytest.mark.parametrize("name", predictor_names())
M = 1e6
"""FLOPs a sample."""


# Compute.


def test_before_the_first_training_the_calibration_counts_and_after_it_no_more() -> None:
    meter = ComputeMeter(M, "last")
    meter.calibrated(5e9)
    assert meter.available(0.0) == pytest.approx(5e9)
    meter.trained(1000, 1.0)
    assert meter.available(0.0) == pytest.approx(1e9)


def test_without_training_and_calibration_there_is_no_answer_to_invent() -> None:
    with pytest.raises(RuntimeError, match="nothing calibrated"):
        ComputeMeter(M, "last").available(0.0)


@NAMES
@given(flops=st.floats(1e6, 1e15), samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_on_an_idle_machine_the_predicted_seconds_are_those_of_the_trainings(
    name: str, flops: float, samples: list[int]
) -> None:
    meter = ComputeMeter(M, name)
    for count in samples:
        meter.trained(count, M * count / flops)
    assert M * 100 / meter.available(0.0) == pytest.approx(M * 100 / flops, rel=1e-6)


@NAMES
@given(busy=st.floats(0, 0.9), more=st.floats(0, 1))
def test_the_busier_the_machine_the_less_is_available_but_never_nothing(name: str, busy: float, more: float) -> None:
    found = []
    for share in (busy, busy + (1 - busy) * more):
        meter = ComputeMeter(M, name)
        meter.trained(1000, 1.0)
        found.append(meter.available(share))
    assert 0 < found[1] <= found[0] <= 1e9 * (1 + 1e-9)


def test_full_speed_is_found_from_a_training_beside_other_work() -> None:
    meter = ComputeMeter(M, "last")
    meter.trained(500, 1.0, busy_share=0.5)
    assert meter.available(0.0) == pytest.approx(1e9)


@pytest.mark.parametrize(("demand", "share"), [(0.5, 0.5), (0.5, 2 / 3), (1.0, 0.5), (1.0, 0.1), (0.3, 0.95)])
def test_how_far_others_give_way_is_learnt(demand: float, share: float) -> None:
    """Others use `demand` while we are idle, and leave us `share` of the cores while we train."""
    meter = ComputeMeter(M, "blend")
    meter.trained(1000, 1.0)
    for _ in range(30):
        predicted = meter.available(demand)
        meter.trained(1000, 1 / share, busy_share=1 - share)
    assert predicted == pytest.approx(1e9 * share, rel=0.02)


@NAMES
def test_rough_readings_of_a_crowded_machine_hardly_show_in_what_is_predicted(name: str) -> None:
    rng = np.random.default_rng(3)
    meter, found = ComputeMeter(M, name), []
    meter.calibrated(1e9)
    for _ in range(60):
        found.append(meter.available(rng.uniform(0.85, 1.0)))
        meter.trained(1000, 2.0, rng.uniform(0.85, 1.0))
    assert np.abs(np.log(np.array(found[10:]) / 0.5e9)).max() < 0.25


def test_others_may_use_the_cores_that_we_do_not_train_on() -> None:
    meter = ComputeMeter(M, "last", cores_share=0.25)
    meter.trained(1000, 1.0, busy_share=0.7)
    assert meter.available(0.75) == pytest.approx(1e9)
    assert meter.available(0.9) < 0.9e9


def test_a_training_of_few_samples_does_not_pass_for_a_slow_machine() -> None:
    meter = ComputeMeter(M, "last")
    for _ in range(5):
        meter.trained(1000, 1.01)
    before = meter.available(0.0)
    meter.trained(2, 0.012)  # a hundredth of a second for beginning and end
    assert meter.available(0.0) == before


def test_trainings_of_few_samples_count_once_they_are_usual() -> None:
    meter = ComputeMeter(M, "last")
    meter.trained(1000, 1.0)
    for _ in range(30):
        meter.trained(10, 0.02)
    assert meter.available(0.0) == pytest.approx(0.5e9, rel=0.01)


@pytest.mark.parametrize(("samples", "seconds"), [(0, 1.0), (10, 0.0), (10, -1.0), (10, math.nan)])
def test_a_training_that_says_nothing_changes_nothing(samples: int, seconds: float) -> None:
    meter = ComputeMeter(M, "last")
    meter.trained(1000, 1.0)
    meter.trained(samples, seconds)
    assert meter.available(0.0) == pytest.approx(1e9)


def test_a_report_does_not_count_as_a_round() -> None:
    meter = ComputeMeter(M, "blend")
    meter.trained(1000, 1.0)
    meter.available(0.4)
    before = meter.memory()
    assert meter.expected() == meter.expected()
    assert meter.memory() == before


# Links.

BITS = st.floats(1e4, 1e10)
LINK = {"overhead": st.floats(0.0, 3.0), "bandwidth": st.floats(1e5, 1e10), "bits": BITS}


@NAMES
@given(**LINK)
def test_predicted_transfer_times_are_those_of_the_runs_models_whatever_the_latency(
    name: str, overhead: float, bandwidth: float, bits: float
) -> None:
    meter = LinkMeter(name)
    meter.probed("b", bandwidth, 0.0)
    assert meter.bandwidth("b", 0.0) == pytest.approx(bandwidth)
    actual = overhead + bits / bandwidth
    for at in range(1, 6):
        meter.moved("b", bits, actual, at)
        found = meter.bandwidth("b", at)
        assert found is not None
        assert bits / found == pytest.approx(actual, rel=1e-6)


@NAMES
@given(**LINK)
def test_a_later_probe_foretells_the_whole_transfer_and_not_only_its_bits(
    name: str, overhead: float, bandwidth: float, bits: float
) -> None:
    meter = LinkMeter(name, model_bits=bits)
    actual = overhead + bits / bandwidth
    meter.probed("b", bandwidth, 0.0)
    meter.moved("b", bits, actual, 1.0)
    meter.probed("c", bandwidth, 1.0)  # nothing was ever sent there
    found = meter.bandwidth("c", 1.0)
    assert found is not None
    assert bits / found == pytest.approx(actual, rel=1e-6)


@given(**LINK, part=st.floats(0.001, 2.0))
def test_a_transfer_of_another_size_is_converted_or_passed_by(
    overhead: float, bandwidth: float, bits: float, part: float
) -> None:
    meter = LinkMeter("last", model_bits=bits)
    actual = overhead + bits / bandwidth
    meter.probed("b", bandwidth, 0.0)
    meter.moved("b", bits, actual, 1.0)
    meter.moved("b", part * bits, overhead + part * bits / bandwidth, 2.0)
    found = meter.bandwidth("b", 2.0)
    assert found is not None
    assert bits / found == pytest.approx(actual, rel=0.11)


@given(**LINK, size=BITS)
def test_after_a_restart_with_another_model_the_overhead_is_still_known(
    overhead: float, bandwidth: float, bits: float, size: float
) -> None:
    before, after = LinkMeter("last"), LinkMeter("last", model_bits=size)
    before.probed("b", bandwidth, 0.0)
    before.moved("b", bits, overhead + bits / bandwidth, 1.0)
    after.recall(before.memory())
    after.probed("b", bandwidth, 0.0)
    found = after.bandwidth("b", 0.0)
    assert found is not None
    assert size / found == pytest.approx(overhead + size / bandwidth, rel=1e-6)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["moved", "probed"]), st.sampled_from("bc"), st.floats(1, 1e12), st.floats(1e-6, 1e5))
)


@NAMES
@given(events=EVENTS, bits=st.none() | BITS, traffic=st.none() | st.floats(0, 1e12))
def test_whatever_was_observed_a_fresh_link_has_a_bandwidth_and_a_memory(
    name: str, events: list[tuple[str, str, float, float]], bits: float | None, traffic: float | None
) -> None:
    meter, seen = LinkMeter(name, model_bits=bits), set()
    for what, peer, amount, seconds in events:
        if what == "probed":
            meter.probed(peer, amount, 0.0)
            seen.add(peer)
        else:
            meter.moved(peer, amount, seconds, 0.0)
        found = meter.bandwidth(peer, 0.0, traffic)
        assert (found is None and peer not in seen) or (found is not None and 0 < found < math.inf)
    again = LinkMeter(name, model_bits=bits)
    again.recall(msgspec.json.decode(msgspec.json.encode(meter.memory()), type=LinksMemory))
    assert again.bandwidth("b", 0.0) is None


def test_an_unknown_or_stale_link_has_no_bandwidth_until_it_is_probed() -> None:
    meter = LinkMeter("last")
    assert meter.bandwidth("b", 0.0) is None
    meter.moved("b", 8e6, 1.0, 10.0)
    assert meter.bandwidth("b", 10.0 + FRESH_SECONDS) == pytest.approx(8e6)
    assert meter.bandwidth("b", 10.1 + FRESH_SECONDS) is None
    assert meter.bandwidth("c", 10.0) is None
    meter.probed("b", 4e6, 100.0)
    assert meter.bandwidth("b", 100.0) == pytest.approx(4e6)


def test_new_traffic_of_others_takes_its_part_but_leaves_half() -> None:
    meter = LinkMeter("last")
    meter.moved("b", 100e6, 1.0, 0.0)
    assert meter.bandwidth("b", 1.0, 30e6) == pytest.approx(70e6)
    assert meter.bandwidth("b", 1.0, 900e6) == pytest.approx(50e6)


def test_traffic_that_was_there_already_is_not_taken_off_twice() -> None:
    meter = LinkMeter("last")
    meter.bandwidth("b", 0.0, 30e6)
    meter.moved("b", 70e6, 1.0, 0.0)
    assert meter.bandwidth("b", 1.0, 30e6) == pytest.approx(70e6)
    assert meter.bandwidth("b", 1.0, 0.0) == pytest.approx(70e6)


@pytest.mark.parametrize(("bits", "seconds"), [(0.0, 1.0), (8.0, 0.0), (8.0, -1.0), (math.nan, 1.0)])
def test_a_transfer_that_says_nothing_changes_nothing(bits: float, seconds: float) -> None:
    meter = LinkMeter("last")
    meter.moved("b", bits, seconds, 0.0)
    meter.probed("b", math.inf, 0.0)
    meter.probed("b", 0.0, 0.0)
    assert meter.bandwidth("b", 0.0) is None


# History.


def meters(name: str = "blend") -> tuple[ComputeMeter, LinkMeter]:
    compute = ComputeMeter(M, name)
    compute.calibrated(7e9)
    return compute, LinkMeter(name)


def used(compute: ComputeMeter, links: LinkMeter, rounds: int = 20) -> None:
    for k in range(rounds):
        compute.available(0.1 * (k % 5))
        compute.trained(100 + k, 0.1 + 0.01 * (k % 3), 0.2)
        links.probed("b", 1e8, k)
        links.moved("b", 1e7, 0.3 + 0.01 * (k % 4), k)


@NAMES
def test_a_restarted_site_predicts_what_it_would_have_without_the_restart(name: str, tmp_path: Path) -> None:
    history = History(tmp_path / "state/history.json")
    before, after = meters(name), meters(name)
    used(*before)
    history.save(*before)
    History(tmp_path / "state/history.json").restore(*after)
    assert after[0].available(0.3) == pytest.approx(before[0].available(0.3))
    for links in (before[1], after[1]):
        links.probed("b", 9e7, 100.0)
    assert after[1].bandwidth("b", 100.0) == pytest.approx(before[1].bandwidth("b", 100.0))


def test_after_a_restart_no_link_counts_as_fresh(tmp_path: Path) -> None:
    before, after = meters(), meters()
    used(*before)
    History(tmp_path / "history.json").save(*before)
    History(tmp_path / "history.json").restore(*after)
    assert after[1].bandwidth("b", 0.0) is None


def test_another_models_speed_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    before = meters()
    used(*before)
    History(tmp_path / "history.json").save(*before)
    compute = ComputeMeter(2 * M, "last")
    compute.calibrated(7e9)
    History(tmp_path / "history.json").restore(compute, LinkMeter("last"))
    assert compute.memory().full == ()
    assert compute.memory().busy == before[0].memory().busy


def test_without_a_file_a_site_begins_anew(tmp_path: Path) -> None:
    compute, links = meters()
    History(tmp_path / "history.json").restore(compute, links)
    assert compute.available(0.0) == pytest.approx(7e9)


def test_the_file_stays_small_however_long_a_site_runs(tmp_path: Path) -> None:
    compute, links = meters("last")
    used(compute, links, rounds=5 * KEPT)
    History(tmp_path / "history.json").save(compute, links)
    memory = msgspec.json.decode((tmp_path / "history.json").read_bytes(), type=Memory)
    assert memory.compute is not None
    assert len(memory.compute.full) == len(memory.compute.busy) == len(memory.links.peers["b"].rates) == KEPT
    assert (tmp_path / "history.json").stat().st_size < 20_000


GOOD = msgspec.json.encode(Memory())


@given(
    st.binary(max_size=100)
    | st.sampled_from(
        [
            b"",
            b"[]",
            b"null",
            b'{"version": 2}',
            b'{"compute": {"flops_per_sample": -1}}',
            b'{"compute": {"flops_per_sample": 1, "full": [1e999]}}',
            b'{"links": {"peers": {"b": {"rates": [0]}}}}',
            b'{"links": {"peers": {"b": {"rates": ["fast"]}}}}',
            b"[" * 100_000,
            GOOD[:-1],
        ]
    )
)
def test_a_damaged_file_is_set_aside_and_told_of_and_stops_nobody(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.json"
        path.write_bytes(content)
        told: list[tuple[str, dict[str, Any]]] = []
        compute, links = meters()
        History(path, lambda event, **fields: told.append((event, fields))).restore(compute, links)
        assert compute.available(0.0) == pytest.approx(7e9)
        assert [event for event, _ in told] == ["damaged"]
        assert not path.exists()
        assert (Path(folder) / "history.json.damaged").read_bytes() == content


def test_without_a_log_a_damaged_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text("{")
    with pytest.warns(HistoryWarning, match=r"history\.json: damaged"):
        History(tmp_path / "history.json").restore(*meters())


def test_a_history_that_cannot_be_read_or_written_is_told_of_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "history.json").mkdir()
    (tmp_path / "file").write_text("")
    told: list[str] = []
    History(tmp_path / "history.json", lambda event, **_: told.append(event)).restore(*meters())
    History(tmp_path / "file/history.json", lambda event, **_: told.append(event)).save(*meters())
    assert told == ["history-unreadable", "history-not-kept"]


def test_keep_writes_at_most_every_half_minute(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    history, (compute, links) = History(path), meters()
    written = []
    for at in (0.0, 10.0, 29.0, 31.0, 40.0):
        path.unlink(missing_ok=True)
        history.keep(compute, links, at)
        written.append(path.exists())
    assert written == [True, False, False, True, False]


# The machine.

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
        """Let time pass; others use so many cores, and p1, p2, p3 so many each."""
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
    system.bytes = {"eth0": 3_000_000, "lo": 50_000_000}
    found.moved(8 * 1_000_000)
    assert found.traffic() == pytest.approx(8e6)
    system.run(2.0)
    assert found.traffic() == 0.0


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
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_on_the_real_machine_a_child_is_told_from_other_work(burning: subprocess.Popen[bytes]) -> None:
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


def test_readings_of_the_real_machine_make_sense(tmp_path: Path) -> None:
    seconds = iter(range(10_000))
    found = Machine(clock=lambda: float(next(seconds)))
    for _ in range(100):
        assert 0 <= found.busy_share() <= 1
        assert found.traffic() >= 0
    assert found.free_memory() > 0
    assert found.free_disk(tmp_path) > 0

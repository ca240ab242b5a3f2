"""What else this machine is doing now: cores, GPU and network, read from the operating system."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tramfl.notation import BadInput


@dataclass
class _Window:
    """The last reading, and its result."""

    at: float
    reading: dict[Any, float] = field(default_factory=dict)
    result: float = 0.0


class Machine:
    """What other processes of this machine use: readings of the operating system, each cheap, none waited for.

    A reading is the mean since the one before, so read every few seconds. `extra_pids` names child processes that are
    too young to be found by the search for children.
    """

    LEAST_SECONDS = 0.2
    """The operating system counts in hundredths of a second: a shorter time measures nothing."""
    SETTLE_SECONDS = 2.0
    """Bytes that this site has written may lie in buffers, and still be sent, for this long."""
    STALE_SECONDS = 15.0
    """An older reading says nothing about now."""
    CHILDREN_SECONDS = 10.0
    """The search for our child processes goes through all processes, so it is done rarely."""

    def __init__(
        self,
        extra_pids: Callable[[], Iterable[int]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        system: Any = None,
        gpus: Any = None,
    ) -> None:
        """`system` and `gpus` stand in for psutil and pynvml."""
        self._system = system if system is not None else _psutil()
        self._gpus = _nvml() if gpus is None else gpus
        self._extra_pids, self._clock = extra_pids, clock
        self._me = self._system.Process()
        self._children: list[int] = []
        self._children_at = -math.inf
        self._own = 0
        self._own_ended = -math.inf
        self._traffic_at = -math.inf
        """When the traffic of others was last seen."""
        self._cpu = _Window(clock(), self._cpu_seconds())
        self._network = _Window(clock(), {"bits": self._network_bits()})
        self._gpu_seen = 0

    def busy_share(self) -> float:
        """The share of the cores, or of the GPU if that is more, that processes other than ours use."""
        window, now = self._cpu, self._clock()
        if now - window.at < self.LEAST_SECONDS:
            return window.result
        reading = self._cpu_seconds()
        # A process that has come or gone meanwhile counts from the next reading on.
        gone = {key: value - window.reading[key] for key, value in reading.items() if key in window.reading}
        total, busy = gone.pop("total"), gone.pop("busy")
        others = (busy - sum(gone.values())) / total if total > 0 else window.result
        self._cpu = _Window(now, reading, min(1.0, max(0.0, others, self._gpu_share())))
        return self._cpu.result

    def traffic(self) -> float:
        """bit/s that others send over this machine's network, loopback apart; what they receive takes another way.

        A time in which this site moved something shows nothing about others: the result stays what it was before, for
        a while, and is then 0.
        """
        window, now = self._network, self._clock()
        if now - window.at < self.LEAST_SECONDS:
            return window.result
        bits = self._network_bits()
        if self._own == 0 and window.at >= self._own_ended + self.SETTLE_SECONDS:
            result = (bits - window.reading["bits"]) / (now - window.at)
            self._traffic_at = now
        else:
            result = window.result if now - self._traffic_at < self.STALE_SECONDS else 0.0
        self._network = _Window(now, {"bits": bits}, max(0.0, result))
        return self._network.result

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """While this site sends or receives a model, or probes a link."""
        self._own += 1
        try:
            yield
        finally:
            self._own -= 1
            self._own_ended = self._clock()

    @property
    def is_moving(self) -> bool:
        """Whether this site is moving something now."""
        return self._own > 0

    def _cpu_seconds(self) -> dict[Any, float]:
        """Seconds of all cores, those they were busy in, and those of each process of ours."""
        times = self._system.cpu_times()
        # Linux counts a guest's time as the user's too.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        found: dict[Any, float] = {"total": total, "busy": total - times.idle - getattr(times, "iowait", 0.0)}
        for pid in self._pids():
            try:
                used = self._system.Process(pid).cpu_times()
            except self._system.Error:
                continue
            found[pid] = used.user + used.system
        return found

    def _pids(self) -> set[int]:
        now = self._clock()
        if now - self._children_at >= self.CHILDREN_SECONDS:
            self._children_at = now
            try:
                self._children = [child.pid for child in self._me.children(recursive=True)]
            except self._system.Error:
                self._children = []
        return {self._me.pid, *self._children, *self._extra_pids()}

    def _network_bits(self) -> float:
        cards = self._system.net_io_counters(pernic=True) or {}
        return 8.0 * float(sum(card.bytes_sent for name, card in cards.items() if not _loopback(name)))

    def _gpu_share(self) -> float:
        """The share of the first GPU that others use; 0 where there is no GPU or it cannot be read."""
        nvml = self._gpus
        if nvml is None:
            return 0.0
        own = self._pids()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            try:
                samples = nvml.nvmlDeviceGetProcessUtilization(gpu, self._gpu_seen)
            except nvml.NVMLError:
                # Not every GPU counts per process. Its total is of no use while our processes are in it.
                if own & {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}:
                    return 0.0
                return float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100
        except nvml.NVMLError:
            return 0.0
        self._gpu_seen = max((sample.timeStamp for sample in samples), default=self._gpu_seen)
        newest = {sample.pid: sample.smUtil for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
        return float(sum(share for pid, share in newest.items() if pid not in own)) / 100


def _loopback(name: str) -> bool:
    return name == "lo" or name.startswith(("lo0", "Loopback"))


def _psutil() -> Any:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        raise BadInput("a site needs psutil: install it with pip install 'tramfl[runtime]'.") from None


def _nvml() -> Any:
    """pynvml, where it is installed and finds a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return nvml if nvml.nvmlDeviceGetCount() > 0 else None
    except nvml.NVMLError:
        return None

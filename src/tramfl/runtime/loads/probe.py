"""What a site can spare, learnt from what it did, and what its machine is doing now.

The meters are pure: what was observed and when arrives as arguments. `Machine` alone reads the machine.
"""

from __future__ import annotations

import importlib
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.scheduling.predictors import Predictor, predictor_named

KEPT = 200
"""Observations of one kind that a site remembers; the predictors have forgotten those before."""
FRESH_SECONDS = 60.0
"""A link that nothing has crossed for so long is tried out before it is relied on."""

Observed = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Sequel:
    """A predictor, and the observations it has learnt from: enough to make it again after a restart."""

    def __init__(self, predictor: str) -> None:
        self._predictor: Predictor = predictor_named(predictor)
        self.values: deque[float] = deque(maxlen=KEPT)

    def add(self, value: float) -> None:
        """A value was observed."""
        self._predictor.update(value)
        self.values.append(value)

    def next(self) -> float | None:
        """What the next one will be."""
        return self._predictor.predict()


class ComputeMemory(Struct, frozen=True, kw_only=True):
    """What a ComputeMeter keeps over a restart."""

    flops_per_sample: Observed
    full: tuple[Observed, ...] = ()
    busy: tuple[Share, ...] = ()
    competitors: Annotated[float, Meta(ge=0, le=1e3)] = 1.0


class ComputeMeter:
    """r_i: the FLOPS that the next training will get.

        r = full / (1 + c d)

    full is the speed with the machine to ourselves: that of each timed training, divided by the share of the cores
    that others left it meanwhile. d is the share that others keep busy while we do not train, predicted from the
    rounds before. A core that is busy is not lost: whoever runs there has to share it with us. c says with how many
    we share it; it is 1 at first, then learnt from how much the others gave way in trainings.
    """

    _LEAST_FREE = 0.25
    """Readings beside a short training are rough, and dividing by a small share would make much of that."""
    _WEIGHT = 0.3
    """Of a new observation of c, and of how much work is usual."""
    _MOST_COMPETITORS = 20.0

    def __init__(self, flops_per_sample: float, predictor: str, cores_share: float = 1.0) -> None:
        """`cores_share`: the part of the machine's cores that we train on; others may have the rest for nothing."""
        self._flops_per_sample = flops_per_sample
        self._cores_share = cores_share
        self._full, self._busy = Sequel(predictor), Sequel(predictor)
        self._competitors = 1.0
        self._busy_before = 0.0
        self._calibrated: float | None = None
        self._usual_work: float | None = None
        self._pool_work = self._pool_seconds = 0.0

    def calibrated(self, flops: float, busy_share: float = 0.0) -> None:
        """What a trial before the first training came to."""
        self._calibrated = flops / self._left_by(busy_share)

    def trained(self, samples: int, seconds: float, busy_share: float = 0.0) -> None:
        """A training took so long while others kept a share of the cores busy."""
        if samples <= 0 or not seconds > 0:
            return
        rate = self._pooled(samples * self._flops_per_sample, seconds)
        if rate is None:
            return
        left = self._left_by(busy_share)
        self._full.add(rate / left)
        if self._busy_before > 0.1:
            seen = min((1 / left - 1) / self._busy_before, self._MOST_COMPETITORS)
            self._competitors += self._WEIGHT * (seen - self._competitors)

    def available(self, busy_share: float) -> float:
        """r_i for the next round, where others keep a share of the cores busy now. Call it once a round."""
        self._busy_before = self._wanted(busy_share)
        self._busy.add(self._busy_before)
        return self.expected()

    def expected(self) -> float:
        """The same without a new look at the machine: for reports."""
        full = self._full.next() or self._calibrated
        if full is None:
            raise RuntimeError("nothing was trained yet, and nothing calibrated")
        return full / (1 + self._competitors * (self._busy.next() or 0.0))

    def memory(self) -> ComputeMemory:
        """What to keep."""
        return ComputeMemory(
            flops_per_sample=self._flops_per_sample,
            full=tuple(self._full.values),
            busy=tuple(self._busy.values),
            competitors=self._competitors,
        )

    def recall(self, memory: ComputeMemory) -> None:
        """Go on from what was kept. Full speed is a matter of the model too: that of another one does not count."""
        for share in memory.busy[-KEPT:]:
            self._busy.add(share)
        self._competitors = memory.competitors
        if math.isclose(memory.flops_per_sample, self._flops_per_sample):
            for flops in memory.full[-KEPT:]:
                self._full.add(flops)

    def _pooled(self, work: float, seconds: float) -> float | None:
        """Work a second, once there is enough of it: a training of few samples tells of its beginning and its end."""
        usual = work if self._usual_work is None else self._usual_work
        self._usual_work = usual + self._WEIGHT * (work - usual)
        self._pool_work += work
        self._pool_seconds += seconds
        if self._pool_work < usual / 4:
            return None
        rate = self._pool_work / self._pool_seconds
        self._pool_work = self._pool_seconds = 0.0
        return rate

    def _wanted(self, busy_share: float) -> float:
        """The part of our cores that others use, who take the cores that we leave alone first."""
        elsewhere = 1 - self._cores_share
        return min(1.0, max(0.0, busy_share - elsewhere) / self._cores_share)

    def _left_by(self, busy_share: float) -> float:
        return max(self._LEAST_FREE, 1 - self._wanted(busy_share))


class LinkMemory(Struct, frozen=True, kw_only=True):
    """What a LinkMeter keeps of one peer over a restart."""

    rates: tuple[Observed, ...] = ()
    overhead: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class LinksMemory(Struct, frozen=True, kw_only=True):
    """What a LinkMeter keeps over a restart."""

    model_bits: Observed | None = None
    """The size of model that the rates are for."""
    peers: dict[str, LinkMemory] = field(default_factory=dict)


@dataclass
class _Link:
    rates: Sequel
    """Effective bit/s of a transfer of the usual size."""
    at: float = -math.inf
    traffic: float = 0.0
    """Of others, when last observed."""
    probed: float | None = None
    """bit/s of a probe that no transfer has followed yet."""
    overhead: float | None = None


class LinkMeter:
    """b_ij: bit/s such that D_M / b_ij is how long the model's next transfer will take.

    A transfer takes overhead + bits / bandwidth: connecting, the way there and back, checking and writing to disk
    take their time whatever the size. All models of a run have one size, so that what a transfer of it came to,
    bits / seconds, overhead and all, is just the b_ij that is wanted. Only what has another size, above all a probe,
    is first converted to it; the overhead for that is learnt from transfers that followed a probe of the same link.
    Before the first of them a probe is all there is, and tells of the bits alone: it counts until the first transfer.
    """

    _WEIGHT = 0.3
    """Of a new observation of the overhead."""

    def __init__(self, predictor: str, fresh_seconds: float = FRESH_SECONDS, model_bits: float | None = None) -> None:
        """`model_bits`: the size that counts; without it, that of the last transfer."""
        self._predictor, self._fresh = predictor, fresh_seconds
        self._fixed_bits, self._bits = model_bits is not None, model_bits
        self._links: dict[str, _Link] = {}
        self._traffic = 0.0

    def moved(self, peer: str, bits: float, seconds: float, at: float) -> None:
        """A model went to, or came from, a peer."""
        if not (bits > 0 and seconds > 0):
            return
        link = self._link(peer)
        if link.probed is not None:
            seen = max(0.0, seconds - bits / link.probed)
            known = seen if link.overhead is None else link.overhead
            link.overhead = known + self._WEIGHT * (seen - known)
        if not self._fixed_bits:
            self._bits = bits
        self._moved(link, bits, seconds, at)

    def _moved(self, link: _Link, bits: float, seconds: float, at: float) -> None:
        # An overhead that leaves nothing for the bits themselves was not there this time.
        overhead = min(self._overhead(link), 0.9 * seconds)
        if overhead > seconds / 2 and self._bits is not None and bits < self._bits / 2:
            return  # too few bits to tell what many take
        link.rates.add(self._effective(bits / (seconds - overhead), overhead))
        link.at, link.traffic, link.probed = at, self._traffic, None

    def probed(self, peer: str, bandwidth: float, at: float) -> None:
        """A probe, which has taken its own latency off, found so many bit/s."""
        if not (bandwidth > 0 and math.isfinite(bandwidth)):
            return
        link = self._link(peer)
        link.probed = bandwidth
        link.at, link.traffic = at, self._traffic
        if link.overhead is not None:
            link.rates.add(self._effective(bandwidth, link.overhead))

    def bandwidth(self, peer: str, at: float, other_traffic: float | None = None) -> float | None:
        """b_ij, or None where it is not known or too old: then probe.

        `other_traffic`: bit/s that others move over this machine's network now. What is more than when the link was
        last observed may be missing now; but others share a link, and leave us half of it. Where it is less, nothing
        is added: it may have passed elsewhere.
        """
        if other_traffic is not None:
            self._traffic = other_traffic
        link = self._links.get(peer)
        if link is None or at - link.at > self._fresh:
            return None
        rate = link.rates.next() if link.probed is None or link.overhead is not None else None
        if rate is None:
            assert link.probed is not None
            rate = self._effective(link.probed, self._overhead(link))
        if other_traffic is None:
            return rate
        return max(rate - max(0.0, other_traffic - link.traffic), rate / 2)

    def memory(self) -> LinksMemory:
        """What to keep."""
        peers = {
            peer: LinkMemory(rates=tuple(x.rates.values), overhead=x.overhead) for peer, x in self._links.items()
        }
        return LinksMemory(model_bits=self._bits, peers=peers)

    def recall(self, memory: LinksMemory) -> None:
        """Go on from what was kept; nothing of it is fresh."""
        if self._bits is None:
            self._bits = memory.model_bits
        bits = memory.model_bits or self._bits or 1.0
        for peer, kept in memory.peers.items():
            link = self._link(peer)
            link.overhead = kept.overhead
            for rate in kept.rates[-KEPT:]:
                self._moved(link, bits, bits / rate, -math.inf)

    def _link(self, peer: str) -> _Link:
        return self._links.setdefault(peer, _Link(Sequel(self._predictor)))

    def _overhead(self, link: _Link) -> float:
        """This link's, or that of the others: most of it is writing to disk."""
        if link.overhead is not None:
            return link.overhead
        known = [other.overhead for other in self._links.values() if other.overhead is not None]
        return sum(known) / len(known) if known else 0.0

    def _effective(self, bandwidth: float, overhead: float) -> float:
        """bit/s of a whole transfer of the size that counts."""
        return bandwidth if self._bits is None else self._bits / (overhead + self._bits / bandwidth)


class Memory(Struct, frozen=True, kw_only=True):
    """`history.json`."""

    version: Literal[1] = 1
    compute: ComputeMemory | None = None
    links: LinksMemory = field(default_factory=LinksMemory)


class History:
    """What was observed, on disk, so that a restarted site predicts from its own past. Nothing fails for its sake."""

    SECONDS = 30.0
    """Between two savings of `keep`."""

    def __init__(self, path: Path, log: Callable[..., None] | None = None) -> None:
        self._path, self._log = path, log
        self._saved_at = -math.inf

    def restore(self, compute: ComputeMeter, links: LinkMeter) -> None:
        """Have the meters go on from the file, where there is one; a damaged one is set aside."""
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=Memory)
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn("history-unreadable", error.strerror or str(error))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._set_aside(str(error))
            return
        if memory.compute is not None:
            compute.recall(memory.compute)
        links.recall(memory.links)

    def save(self, compute: ComputeMeter, links: LinkMeter) -> None:
        """Write what the meters know."""
        memory = Memory(compute=compute.memory(), links=links.memory())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, msgspec.json.encode(memory))
        except OSError as error:
            self._warn("history-not-kept", error.strerror or str(error))

    def keep(self, compute: ComputeMeter, links: LinkMeter, at: float) -> None:
        """The same, unless that was only a moment ago: what a crash may cost is little."""
        if at - self._saved_at >= self.SECONDS:
            self._saved_at = at
            self.save(compute, links)

    def _set_aside(self, reason: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            os.replace(self._path, aside)
        except OSError as error:
            reason = f"{reason}; it cannot be set aside: {error.strerror}"
        self._warn("damaged", reason)

    def _warn(self, event: str, reason: str) -> None:
        if self._log is not None:
            self._log(event, file=self._path.name, reason=reason)
        else:
            warnings.warn(f"{self._path}: {event}: {reason}", HistoryWarning, stacklevel=3)


class HistoryWarning(UserWarning):
    """A site begins without its past."""


@dataclass
class _Window:
    """What was read last, and what came of it."""

    at: float
    reading: dict[Any, float] = attribute(default_factory=dict)
    result: float = 0.0


class Machine:
    """What else this machine is doing now: readings of the operating system, each cheap, none waited for.

    A reading is the mean since the one before, so read every few seconds. `extra_pids` names processes of ours that
    are too young to be found by themselves.
    """

    LEAST_SECONDS = 0.2
    """The operating system counts in hundredths of a second: a shorter time tells nothing."""
    CHILDREN_SECONDS = 10.0
    """Looking for our child processes goes through all there are."""

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
        self._own_bits = 0.0
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
        """bit/s that others move over this machine's network, loopback apart."""
        window, now = self._network, self._clock()
        if now - window.at < self.LEAST_SECONDS:
            return window.result
        bits = self._network_bits()
        others = bits - window.reading["bits"] - self._own_bits
        self._own_bits = 0.0
        self._network = _Window(now, {"bits": bits}, max(0.0, others) / (now - window.at))
        return self._network.result

    def moved(self, bits: float) -> None:
        """So much of the traffic was ours."""
        self._own_bits += bits

    def free_memory(self) -> int:
        """Bytes that can be had without swapping."""
        return int(self._system.virtual_memory().available)

    def free_disk(self, folder: Path) -> int:
        """Bytes that can be written to the file system of `folder`."""
        return int(self._system.disk_usage(str(folder)).free)

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
        moved = sum(card.bytes_sent + card.bytes_recv for name, card in cards.items() if not _loopback(name))
        return 8.0 * float(moved)

    def _gpu_share(self) -> float:
        """Of the first GPU, what others use; 0 where there is none or nobody can tell."""
        nvml = self._gpus
        if nvml is None:
            return 0.0
        own = self._pids()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            try:
                samples = nvml.nvmlDeviceGetProcessUtilization(gpu, self._gpu_seen)
            except nvml.NVMLError:
                # Not every GPU knows who used it. What it did as a whole is no use while we are among those who did.
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

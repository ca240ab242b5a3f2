"""The process in which a site trains: PyTorch and the site's own code live there, and only there.

Apart from the site's process, so that training never holds up a transfer or a lease, and so that code which hangs or
crashes can be ended without ending the site. The two talk in msgpack, each message after its length in four bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from tramfl.config import Scenario
from tramfl.notation import BadInput, Digest, ModelCost, NodeId
from tramfl.record import Scores
from tramfl.runtime.journal import Log
from tramfl.runtime.settings import SiteSettings

LENGTH = struct.Struct("<I")
"""The length before every message."""
REOPEN_PAUSES = (1.0, 5.0, 30.0)
"""Seconds between two tries to start a process that dies while it loads."""
STUCK_SECONDS = 3.0
"""A caller that gives up its turn after this long had a deadline, so the process is taken to hang."""


def references_in(state: Path) -> Path:
    """Where a site keeps the references that coded weights name, in the folder of its state."""
    return state / "references"


class Build(Struct, frozen=True, tag=True):
    """Load model and data."""

    scenario: Scenario
    node: NodeId
    name: str
    app: str | None
    share: int | None
    data_dir: str | None
    threads: int | None
    app_folder: str | None = None
    references: str | None = None
    """The folder with the references that coded weights name."""

    @classmethod
    def of(cls, site: SiteSettings) -> Build:
        """What a site's files say."""
        file, federation = site.file, site.federation
        return cls(
            federation.file.run,
            site.number,
            file.site,
            file.app,
            file.share,
            str(site.beside(file.data_dir)) if file.data_dir else None,
            site.threads,
            str(site.app_folder) if site.app_folder else None,
            str(references_in(site.beside(file.state))),
        )


class MakeInitial(Struct, frozen=True, tag=True):
    """Write w_0."""

    to: str


class TrainOn(Struct, frozen=True, tag=True):
    """Train the weights in a file and write the new ones to another."""

    parent: str
    samples: tuple[int, ...]
    round: int
    to: str
    readout: str | None = None
    """Where the site keeps the mean that the run tests, if it tests one."""


class Score(Struct, frozen=True, tag=True):
    """Test the weights in a file."""

    weights: str
    targets: tuple[float, ...]
    readout: str | None = None
    """The mean that is tested in their place, if the run tests one."""


class FindLoss(Struct, frozen=True, tag=True):
    """Find the loss of the weights in a file on the samples that the site keeps aside, and their distance."""

    weights: str


Job = Build | MakeInitial | TrainOn | Score | FindLoss


class Built(Struct, frozen=True, tag=True):
    """Model and data are loaded."""

    labels: tuple[str, ...]
    held: tuple[int, ...]
    cost: ModelCost
    flops: float
    """FLOPS of this machine in a short trial."""
    base: Digest | None = None
    """SHA-256 of the weights that stay at the site; None where all of them travel."""


class NewWeights(Struct, frozen=True, tag=True):
    """New weights are in the requested file."""

    digest: Digest
    size: int
    seconds: float
    diverged: bool = False
    """Whether they come from a training without a finite loss."""
    losses: tuple[float, float] | None = None
    """Of the weights before and of these, on the samples that the site keeps aside; None where not wanted."""
    reference: Digest | None = None
    """What they are coded against; None where they are plain."""
    change: float | None = None
    """The L2 norm of the difference to the weights before; None where not wanted."""


class FoundLoss(Struct, frozen=True, tag=True):
    """What there is to find about weights (`learning.training.site.Checked`)."""

    loss: float | None
    """None where the site keeps no samples aside."""
    change: float | None = None
    """The L2 norm of the difference to the weights that the site trained from last; None where not wanted."""
    since: int = 0
    """The round of those weights."""


class Scored(Struct, frozen=True, tag=True):
    """The scores of the weights."""

    scores: Scores


class Failed(Struct, frozen=True, tag=True):
    """The request failed."""

    reason: str
    expected: bool
    """Whether the reason is a sentence for the operator (bad input), or a fault of the site's code."""


JobResult = Built | NewWeights | Scored | FoundLoss | Failed
R = TypeVar("R", Built, NewWeights, Scored, FoundLoss)


class WorkFailed(Exception):
    """The training process failed a request, or died."""


class Workshop:
    """The site's side; `bench.py` is the other."""

    def __init__(self, build: Build, log: Log | None = None) -> None:
        self._build, self._log = build, log
        self._process: asyncio.subprocess.Process | None = None
        self._loaded = False
        self._turn = asyncio.Lock()
        self._reopening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: set[asyncio.subprocess.Process] = set()
        """Processes that this site has killed, until it has seen them end."""
        self._closed = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(JobResult).decode

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def ready(self) -> bool:
        """Whether a training could begin now: model and data are loaded."""
        return self._loaded and self._process is not None and self._process.returncode is None

    async def open(self) -> Built:
        """Start the process and let it load model and data."""
        async with self._turn:
            return await self._start()

    async def make_initial(self, to: Path) -> NewWeights:
        """w_0, in a file."""
        return await self._ask(MakeInitial(str(to)), NewWeights)

    async def train(
        self, parent: Path, samples: Sequence[int], round_: int, to: Path, readout: Path | None = None
    ) -> NewWeights:
        """Train: Step 4 of a round. `readout` is where the mean is kept that the run tests, if it tests one."""
        kept = None if readout is None else str(readout)
        return await self._ask(TrainOn(str(parent), tuple(samples), round_, str(to), kept), NewWeights)

    async def score(self, weights: Path, targets: Sequence[float], readout: Path | None = None) -> Scores:
        """Test weights, or the mean in their place."""
        kept = None if readout is None else str(readout)
        return (await self._ask(Score(str(weights), tuple(targets), kept), Scored)).scores

    async def loss(self, weights: Path) -> FoundLoss:
        """The loss of weights on the samples that this site keeps aside, and their distance from earlier ones."""
        return await self._ask(FindLoss(str(weights)), FoundLoss)

    async def close(self) -> None:
        """End the process for good, and wait until it is gone: after the event loop nobody could."""
        self._closed = True
        reopening = self._reopening
        await self._end()
        if reopening is not None:
            await asyncio.gather(reopening, return_exceptions=True)
        for process in list(self._ending):
            await process.wait()

    async def _end(self) -> None:
        """End the process."""
        for task in (self._reopening, self._watching):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        process, self._process, self._loaded = self._process, None, False
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            self._ending.add(process)  # should this wait be cancelled, `close` waits
            await process.wait()
            self._ending.discard(process)

    async def _ask(self, request: Job, kind: type[R]) -> R:
        """Send one request and return its result. A cancelled call ends the process, which cannot be interrupted."""
        async with self._turn_for():
            try:
                if self._process is None or self._process.returncode is not None:
                    await self._start()
                return await self._exchange(request, kind)
            except (asyncio.CancelledError, EOFError, OSError, msgspec.DecodeError) as error:
                await self._end()
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise WorkFailed("the process that trains has died; it is started again") from None
            finally:
                if self._process is None and not self._closed:
                    # Start it again at once: loading takes a while, and the next training should not wait for it.
                    self._reopening = asyncio.create_task(self._reopen())

    @contextlib.asynccontextmanager
    async def _turn_for(self) -> AsyncIterator[None]:
        """A turn at the process. A caller that gives up after a long wait ends the process, which hangs."""
        asked = time.monotonic()
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            # A process that is still loading does not hang; ending it would only start the loading again.
            if self._loaded and time.monotonic() - asked >= STUCK_SECONDS:
                await self._end()
            raise
        try:
            yield
        finally:
            self._turn.release()

    async def _reopen(self) -> None:
        """Try until there is a process again: a site that cannot train gets no request that would start one."""
        for pause in itertools.chain((0.0,), REOPEN_PAUSES, itertools.repeat(REOPEN_PAUSES[-1])):
            await asyncio.sleep(pause)
            async with self._turn:
                if self._process is not None and self._process.returncode is None:
                    return
                with contextlib.suppress(WorkFailed, BadInput):
                    await self._start()
                    return

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Restart a process that ends between requests, for example because memory ran out."""
        code = await process.wait()
        if self._process is process and not self._turn.locked() and not self._closed:
            if self._log is not None:
                self._log("workshop-lost", reason=f"the process that trains ended with {code}; it is started anew")
            self._reopening = asyncio.create_task(self._reopen())

    async def _start(self) -> Built:
        await self._end()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no module comes from the folder that the site was started in
            "-c",
            "from tramfl.runtime.training.bench import main; main()",
            *([self._build.app_folder] if self._build.app_folder is not None else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            built = await self._exchange(self._build, Built)
        except (EOFError, OSError) as error:
            await self._end()
            raise WorkFailed(f"the process that trains died while it loaded model and data ({error})") from None
        except BaseException:
            # Otherwise its late answer would be taken for the answer to the next request.
            await self._end()
            raise
        self._loaded = True
        self._watching = asyncio.create_task(self._watch(self._process))
        return built

    async def _exchange(self, request: Job, kind: type[R]) -> R:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        message = self._encode(request)
        process.stdin.write(LENGTH.pack(len(message)) + message)
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        result = self._decode(await process.stdout.readexactly(length))
        if isinstance(result, Failed):
            if result.expected:
                raise BadInput(result.reason)
            raise WorkFailed(result.reason)
        assert isinstance(result, kind)
        return result

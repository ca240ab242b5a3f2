"""One life of a site's process: alone in its folder, counted, and ended by the first task that fails."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.runtime.journal import Log
from tramfl.version import __version__

MOST_INCARNATIONS = 1 << 31
"""The upper half of a ticket holds the incarnation, so its count is limited."""
FORMAT = 1
"""The format of a site's state folder that this version writes, and the newest that it reads.

The number grows when an older version would misread the folder. A folder without a number is of format 1.
"""


@contextlib.contextmanager
def alone_in(folder: Path, site: str) -> Iterator[None]:
    """Lock the site's folder: two processes of one site would contradict each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Weights say something about the data they were trained on: no other user of the machine may read them.
        folder.chmod(0o700)
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{folder}: another process of site {site!r} is at work there.") from None
        if check_format(folder) is None:
            write_atomically(_format_file(folder), f"{FORMAT}\n".encode())
        yield


def check_format(folder: Path) -> int | None:
    """The format of a state folder, None where it has no number; BadInput where this version cannot read it."""
    path = _format_file(folder)
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        text = "unreadable"
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise BadInput(
            f"{path} has {text[:20]!r}; it must have a whole number from 1, as this site's tramfl wrote it."
        )
    if int(text) > FORMAT:
        raise BadInput(
            f"{folder} is of format {text[:20]}, and tramfl {__version__} reads formats up to {FORMAT};"
            " use the version of tramfl that this site had, or a newer one."
        )
    return int(text)


def _format_file(folder: Path) -> Path:
    return folder / "format"


class Incarnation:
    """How often this site has started or joined a run, counted in a file: tickets begin anew with each."""

    def __init__(self, folder: Path) -> None:
        """Count this start."""
        self._path = folder / "incarnation"
        self.number = 0
        self.next()

    def next(self) -> int:
        """Count one more, and return the count."""
        before = self._read()
        if before is None:
            # The count is lost. The clock is far above any count, so no ticket is used twice.
            before = int(time.time()) % MOST_INCARNATIONS
        self.number = before + 1
        write_atomically(self._path, str(self.number).encode())
        return self.number

    def _read(self) -> int | None:
        """The count in the file; None where it cannot be used."""
        try:
            count = int(self._path.read_text()) if self._path.exists() else 0
        except (OSError, ValueError):
            return None
        return count if 0 <= count < MOST_INCARNATIONS else None


def steady_clock() -> Callable[[], float]:
    """Wall-clock time that never runs backwards within a life."""
    wall = time.time() - time.monotonic()
    return lambda: wall + time.monotonic()


class Tasks:
    """The site's background tasks; the first that fails ends the site, and another site takes over."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(error)

    def broken(self, error: BaseException) -> None:
        """Something failed that no event covers, or a person must change something: log it, and end the site."""
        if isinstance(error, BadInput):
            self._log("must-end", reason=str(error))
        else:
            trace = "".join(traceback.format_exception(error))
            self._log("broken", reason=f"{type(error).__name__}: {error}", trace=trace)
        if not self._failure.done():
            self._failure.set_exception(error)

    async def wait_until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise the first failure if that comes first."""
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((stopping, self._failure), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._failure.done():
            self._failure.result()

    async def end(self) -> None:
        """Cancel all tasks, and wait until each has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

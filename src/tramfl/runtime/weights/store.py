"""Weights on a site's disk: every file is complete, and survives a power cut once it is stored.

    <folder>/<epoch>-<round>-<sha256>.safetensors    weights, each named by what it holds
    <folder>/<...>.safetensors.damaged               a file that was not what its name says; nobody reads it again
    <folder>/readout.safetensors                     the mean that is tested, where the run tests one
    <folder>/incoming/<sha256>-<sender>.part         a transfer that broke off and may be resumed
    <folder>/incoming/<number>.new                   weights that this site is writing itself

Synchronous, and safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tramfl.circulation.phases import Copy
from tramfl.notation import Digest

DIGEST = re.compile(r"[0-9a-f]{64}")
WEIGHTS = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})-([0-9a-f]{64})\.safetensors")
PART = re.compile(r"[0-9a-f]{64}-[a-z0-9-]{1,63}\.part")
READOUT_FILE = "readout.safetensors"
ABANDONED_PARTS = 4
"""Interrupted transfers that are kept for their sender to resume; beyond this number the oldest are deleted."""
ABANDONED_BYTES = 4 << 30
SPARE_BYTES = 32 << 20
"""Bytes that must stay free beyond the weights: the history and the register need room too."""
BLOCK_BYTES = 1 << 20


class StoreFull(OSError):
    """There is no room for these weights."""


class KeptCopy(NamedTuple):
    """One file of weights."""

    copy: Copy
    path: Path


class WeightStore:
    """One run's weights in one folder, which belongs to one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.incoming = folder / "incoming"
        self.damaged: tuple[str, ...] = ()
        """Files that were set aside when the store was opened, because their content did not match their digest."""
        self._lock = threading.RLock()
        self._entries: dict[Digest, KeptCopy] = {}
        self._open: dict[Path, int] = {}
        self._numbers = itertools.count()
        self.incoming.mkdir(parents=True, exist_ok=True)
        self._tidy()
        self._read()

    @property
    def readout(self) -> Path:
        """Where the mean that is tested in place of the newest weights is kept."""
        return self.folder / READOUT_FILE

    def copies(self) -> tuple[Copy, ...]:
        """The weights that are here, newest first."""
        with self._lock:
            found = [entry.copy for entry in self._entries.values()]
        return tuple(sorted(found, key=lambda copy: (copy.epoch, copy.round, copy.digest), reverse=True))

    def path(self, digest: Digest) -> Path | None:
        """Where these weights are, or None."""
        with self._lock:
            entry = self._entries.get(digest)
        return entry.path if entry else None

    def put(self, staged: Path, copy: Copy) -> None:
        """Take a file of `incoming`, whose content has been checked, into the store; durable on return.

        Weights that are here already are kept once, under the newer of both rounds; they may be `staged` themselves.
        """
        if not DIGEST.fullmatch(copy.digest) or copy.epoch < 0 or copy.round < 0:
            raise ValueError(f"{copy} names no weights")
        target = self.folder / f"{copy.epoch}-{copy.round}-{copy.digest}.safetensors"
        with self._lock, naming_full_disk(self.folder):
            sync(staged)
            present = self._entries.get(copy.digest)
            if present is None:
                os.rename(staged, target)
                self._entries[copy.digest] = KeptCopy(copy, target)
            elif _age(copy) > _age(present.copy):
                os.rename(present.path, target)
                self._entries[copy.digest] = KeptCopy(copy, target)
            sync(self.folder)
            if staged != self._entries[copy.digest].path:
                staged.unlink(missing_ok=True)

    def discard(self, digests: Iterable[Digest]) -> None:
        """Delete weights; digests that are not here are ignored."""
        with self._lock:
            for digest in digests:
                if entry := self._entries.pop(digest, None):
                    entry.path.unlink(missing_ok=True)
            sync(self.folder)

    def set_aside(self, digest: Digest) -> None:
        """Set these weights aside: their content does not match their digest."""
        with self._lock:
            if entry := self._entries.pop(digest, None):
                self._damage(entry.path)

    def scratch(self) -> Path:
        """A fresh path for weights that this site writes itself, from where `put` takes them."""
        with self._lock:
            return self.incoming / f"{next(self._numbers)}.new"

    def part(self, sender: str, digest: Digest, size: int) -> Part:
        """Make room for a transfer, and open its part, which may hold bytes of an earlier try."""
        name = f"{digest}-{sender}.part"
        if not PART.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a part")
        path = self.incoming / name
        with self._lock, naming_full_disk(self.folder):
            if path in self._open:
                raise ValueError(f"{name} is being received already")
            linked = self._link(digest, size, path)
            self._forget_parts(besides=path)
            there = path.stat().st_size if path.exists() else 0
            if there > size:
                path.unlink()
                there = 0
            self._make_sure_of(size - there)
            part = Part(self, path, size, linked)
            self._open[path] = size - there
            return part

    def release(self, part: Part, drop: bool) -> None:
        """A transfer is over; without `drop`, its sender may resume it."""
        with self._lock:
            self._open.pop(part.path, None)
            if drop:
                part.path.unlink(missing_ok=True)

    def _link(self, digest: Digest, size: int, path: Path) -> bool:
        """Use stored weights as the part, so that they need not travel; False where there are none."""
        entry = self._entries.get(digest)
        if entry is None or entry.path.stat().st_size != size:
            return False
        path.unlink(missing_ok=True)
        try:
            os.link(entry.path, path)
        except OSError:
            return False  # a file system without links: receive them again
        return True

    def _make_sure_of(self, size: int) -> None:
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize - sum(self._open.values())
        if free < size + SPARE_BYTES:
            raise StoreFull(
                errno.ENOSPC,
                f"{size} bytes need {SPARE_BYTES} to spare, and {max(free, 0)} are free",
                str(self.folder),
            )

    def _forget_parts(self, besides: Path) -> None:
        """Keep only a few abandoned parts, so that dead senders cannot fill the disk."""
        parts = [p for p in self.incoming.glob("*.part") if p.is_file() and p not in self._open and p != besides]
        total = 0
        for count, part in enumerate(sorted(parts, key=lambda p: p.stat().st_mtime, reverse=True), 1):
            total += part.stat().st_size
            if count > ABANDONED_PARTS or total > ABANDONED_BYTES:
                part.unlink()

    def _tidy(self) -> None:
        for path in self.incoming.iterdir():
            # A part may be a link to stored weights; their content is hashed again when it is sent again.
            if path.is_symlink() or (path.is_file() and (not PART.fullmatch(path.name) or path.stat().st_nlink > 1)):
                path.unlink()
        self._forget_parts(besides=self.incoming)

    def _read(self) -> None:
        damaged = []
        for path in sorted(self.folder.iterdir()):
            name = WEIGHTS.fullmatch(path.name)
            if name is None or path.is_symlink() or not path.is_file():
                continue
            copy = Copy(name[3], int(name[2]), int(name[1]))
            if file_digest(path) != copy.digest:
                damaged.append(self._damage(path))
            else:
                self._admit(KeptCopy(copy, path))
        self.damaged = tuple(damaged)
        sync(self.folder)

    def _admit(self, entry: KeptCopy) -> None:
        present = self._entries.get(entry.copy.digest)
        if present is not None:
            older, entry = sorted((present, entry), key=lambda e: _age(e.copy))
            older.path.unlink()
        self._entries[entry.copy.digest] = entry

    def _damage(self, path: Path) -> str:
        os.replace(path, path.with_name(path.name + ".damaged"))
        return path.name


class Part:
    """The bytes of a transfer that have arrived, appended as they come."""

    def __init__(self, store: WeightStore, path: Path, size: int, linked: bool) -> None:
        self.path = path
        self.size = size
        self.linked = linked
        """Whether these are the store's own weights, which nothing may change."""
        self._store = store
        self._thread = ThreadPoolExecutor(1, "settling")
        self._settling: Future[None] | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.offset = os.lseek(self._file, 0, os.SEEK_END)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes that arrived before."""
        return os.pread(self._file, length, offset)

    def append(self, data: memoryview) -> None:
        """Write what comes next. Raises StoreFull."""
        if self.linked or self.offset + len(data) > self.size:
            raise ValueError(f"{len(data)} bytes from {self.offset} on do not belong to a file of {self.size}")
        with naming_full_disk(self.path):
            while data:
                written = os.write(self._file, data)
                self.offset += written
                data = data[written:]

    def settle_meanwhile(self) -> None:
        """Start to write to the disk what is in memory, so that the end has less to wait for."""
        if self._settling is not None:
            if not self._settling.done():
                return
            self._settling.result()
        self._settling = self._thread.submit(_settle, os.dup(self._file))

    def settle(self) -> None:
        """Make everything that was written durable."""
        if self._settling is not None:
            self._settling.result()  # fsync reports an error only once, so it must be raised here
        os.fdatasync(self._file)

    def close(self, drop: bool) -> None:
        """End the transfer; without `drop`, its sender may resume it. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._thread.shutdown(wait=False)
            self._store.release(self, drop)


def _settle(handle: int) -> None:
    """fdatasync through a descriptor of its own, which no other code closes meanwhile."""
    try:
        os.fdatasync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def naming_full_disk(place: Path) -> Iterator[None]:
    """Turns a full disk or an exhausted quota into StoreFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT} or isinstance(error, StoreFull):
            raise
        raise StoreFull(error.errno, "the disk is full", str(place)) from error


def file_digest(path: Path) -> Digest:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _age(copy: Copy) -> tuple[int, int]:
    return copy.epoch, copy.round


def sync(path: Path) -> None:
    """Make a file's content, or a folder's names, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

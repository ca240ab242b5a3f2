"""Fetch one file: resumed where it was cut, checked, and put in place whole. Standard library only.

The bytes grow in `NAME.part`; only a file whose checksum is right is renamed to `NAME`, so a reader
of `NAME` sees all of it. A part that stays behind is the beginning of the next attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; there two processes must not share a download
    fcntl = None  # type: ignore[assignment]

Report = Callable[[str, int, int | None], None]
"""Called as `report(file, done, total)` in bytes; `total` is None where the server does not say."""

_CHUNK = 1 << 18
_SILENCE_SECONDS = 30.0
_ATTEMPTS = 3


class DownloadFailed(Exception):
    """No address gave the file; the message is why, without a full stop."""


def download(urls: Sequence[str], target: Path, *, sha256: str, report: Report | None = None) -> None:
    """Put the file that `urls` offer at `target`; each address is tried in turn and resumed if cut."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    reasons = []
    with _only_one(part) as file:
        if target.exists():  # Another process finished it while we waited for our turn.
            part.unlink()
            return
        for url in urls:
            try:
                _fetch_checked(url, file, target.name, sha256, report)
            except DownloadFailed as failure:
                reasons.append(f"{url}: {failure}")
                continue
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, target)
            return
        if not file.tell():
            part.unlink(missing_ok=True)
    raise DownloadFailed("; ".join(reasons))


@contextlib.contextmanager
def _only_one(part: Path) -> Iterator[BinaryIO]:
    """The part opened at its end, by one process at a time."""
    while True:
        with part.open("a+b") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            # While this process waited, the one that had it may have renamed or removed the file held here.
            if _still(part, file):
                file.seek(0, os.SEEK_END)
                yield file
                return


def _still(part: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(part.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _fetch_checked(url: str, file: BinaryIO, name: str, sha256: str, report: Report | None) -> None:
    """Complete `file` from `url`; bytes that fail the checksum are thrown away."""
    began_before = file.tell() > 0
    _fetch_resuming(url, file, name, report)
    if _right(file, sha256):
        return
    _empty(file)
    if began_before:
        # The old beginning may have come from another version of the file: once more, from the start.
        _fetch_resuming(url, file, name, report)
        if _right(file, sha256):
            return
        _empty(file)
    raise DownloadFailed("what it sends has the wrong checksum")


def _fetch_resuming(url: str, file: BinaryIO, name: str, report: Report | None) -> None:
    """Append what is missing; a cut connection is taken up again as long as that brings more bytes."""
    failures = 0
    while True:
        before = file.tell()
        try:
            _append(url, file, name, report)
        except (OSError, http.client.HTTPException) as error:
            failures = 1 if file.tell() > before else failures + 1
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or failures >= _ATTEMPTS:
                raise DownloadFailed(_reason(error)) from error
        else:
            return


def _append(url: str, file: BinaryIO, name: str, report: Report | None) -> None:
    """One request for the bytes after those in `file`; raises OSError if fewer come than announced."""
    done = file.tell()
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=_SILENCE_SECONDS)
    except urllib.error.HTTPError as error:
        if done and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # Nothing after our last byte: complete, or wrong; the checksum decides.
        raise
    with response:
        if done and _range_start(response) != done:
            _empty(file)  # The server does not resume and sends the file from its first byte.
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            if report is not None:
                report(name, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _range_start(response: http.client.HTTPResponse) -> int:
    """Where in the file the answer begins."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if match is None:
        raise ConnectionError("the server resumes without saying where")
    return int(match[1])


def _right(file: BinaryIO, sha256: str) -> bool:
    """Whether the file has this checksum; leaves its position at the end."""
    file.flush()
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest() == sha256


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__

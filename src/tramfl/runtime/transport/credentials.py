"""Who a site is and whom it trusts, as its files have it now: renewed files count without a restart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from tramfl.notation import BadInput
from tramfl.runtime.transport.certificates import key_fits

REREAD_SECONDS = 1.0
"""How soon renewed files count, for calls over open connections too."""


class Papers(NamedTuple):
    """What the files have at one moment, all PEM."""

    authorities: bytes
    certificate: bytes
    key: bytes


class Credentials:
    """One object for all that a site does with its certificate: to serve, to call, to sign and to check."""

    def __init__(
        self, authorities: bytes, certificate: bytes, key: bytes, files: tuple[Path, Path, Path] | None = None
    ) -> None:
        """`files` is where the three were read from; without it they stay as they are."""
        self._papers = Papers(authorities, certificate, key)
        self.files = files
        self._read_again = time.monotonic() + REREAD_SECONDS

    @classmethod
    def from_files(cls, authorities: Path, certificate: Path, key: Path) -> Credentials:
        """Read them; a file that cannot be read is named."""
        files = (authorities, certificate, key)
        return cls(*_read(files), files)

    @property
    def now(self) -> Papers:
        """What counts now. May be called in any thread."""
        if self.files is not None and time.monotonic() >= self._read_again:
            self._read_again = time.monotonic() + REREAD_SECONDS
            self._papers = _renewed(self._papers, self.files)
        return self._papers

    def look_again(self) -> None:
        """Read the files at the next use: what failed may be remedied there."""
        self._read_again = 0.0


def _read(files: tuple[Path, Path, Path]) -> Papers:
    try:
        return Papers(*(file.read_bytes() for file in files))
    except OSError as error:
        raise BadInput(f"{error.filename} cannot be read: {error.strerror}.") from None


def _renewed(before: Papers, files: tuple[Path, Path, Path]) -> Papers:
    """The files, as they were where they cannot be read; a new certificate and its key count once both are there."""
    try:
        found = _read(files)
        if found[1:] == before[1:] or key_fits(found.certificate, found.key):
            return found
        return before._replace(authorities=found.authorities)
    except BadInput:
        return before

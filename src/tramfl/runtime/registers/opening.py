"""The register that a federation names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from tramfl.hosts import is_loopback
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import Register
from tramfl.runtime.registers.etcd import EtcdRegister
from tramfl.runtime.registers.etcd_gateway import Password
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.settings import Federation


def open_register(federation: Federation, name: str, place: str = "") -> Register:
    """The federation's register, as the site of this name sees it; nothing is asked of it yet.

    `place` says where the site's process runs: two processes of one site at two places are a mistake.
    """
    settings, lease = federation.file.register, federation.file.lease_seconds
    if settings.kind == "sqlite":
        path = federation.beside(settings.path)
        if not path.parent.is_dir():
            raise BadInput(f"{federation.path}: register.path is in {path.parent}, which is not a folder.")
        return SqliteRegister(path, name, lease, settings.timeout_seconds, place=place)
    for endpoint in settings.endpoints:
        _check_secret(endpoint, federation.path)
    files = {
        key: str(federation.beside(file))
        for key in ("authorities", "certificate", "key")
        if (file := getattr(settings, key)) is not None
    }
    try:
        settings, password = replace(settings, **files), _password(federation)
        return EtcdRegister(settings, federation.file.name, name, lease, password, place=place)
    except BadInput as error:
        raise BadInput(f"{federation.path}: {error}") from None


def _check_secret(endpoint: str, source: Path) -> None:
    """Passwords and the record go in clear only where nobody else can listen."""
    url = urlsplit(endpoint)
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise BadInput(f"{source}: register.endpoints has {endpoint!r}; without https etcd may only be on loopback.")


def _password(federation: Federation) -> Password | None:
    settings = federation.file.register
    if settings.user is None:
        return None
    if settings.password_file is None:
        raise BadInput(f"{federation.path}: register.user is given, so register.password_file must be, too.")
    read = partial(_word_in, federation.beside(settings.password_file), federation.path)
    read()  # a file that is not there is named before etcd is asked
    return read


def _word_in(path: Path, source: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadInput(f"{source}: register.password_file {path} cannot be read: {reason}.") from None

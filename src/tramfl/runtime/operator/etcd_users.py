"""One etcd user for each site, with the narrowest role that lets the site work.

A site reads its federation's keys. It writes its own lease, the record, rows and notes of rounds, and the list of
revoked certificates; no other site's lease, no other federation's keys, no users. The operator acts as etcd's root.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from tramfl.notation import BadInput
from tramfl.runtime.operator import founding
from tramfl.runtime.registers.contract import Silent
from tramfl.runtime.registers.etcd import keys_of
from tramfl.runtime.registers.etcd_gateway import Gateway, Json, text
from tramfl.runtime.settings import Federation
from tramfl.runtime.transport.certificates import write_private

ROOT = "root"
PASSWORD_FILE = "etcd.password"
_PASSWORD_BYTES = 24


def user_of(federation: str, site: str) -> str:
    """The etcd user of a site, which is also the name of its role."""
    return f"tramfl-{quote(federation, safe='')}-{site}"


def permissions(federation: str, site: str) -> tuple[Json, ...]:
    """What a site may do in etcd."""
    keys = keys_of(federation)
    whole = {"key": text(keys.prefix), "range_end": text(_end(keys.prefix)), "permType": "READ"}
    rounds = {"key": text(keys.rounds), "range_end": text(_end(keys.rounds)), "permType": "WRITE"}
    single = (keys.alive(site), keys.record, keys.revoked)
    return (whole, rounds, *({"key": text(key), "permType": "WRITE"} for key in single))


async def make_users(folder: Path, federation: Federation, names: Sequence[str], root: Path) -> list[Path]:
    """Make users, roles and passwords for sites whose folders are in `folder`; the files to copy to the sites.

    A site that has a password in its folder keeps it. `root` is the file with the password of etcd's root.
    """
    places = {name: founding.site_folder(folder, name) for name in names}
    for name, place in places.items():
        if not (place / founding.SITE_FILE).exists():
            raise BadInput(f"{place} has no {founding.SITE_FILE}; make it with tramfl cert issue {folder} {name}.")
    etcd = _as_root(federation, root)
    try:
        users = (await _ask(etcd, "auth/user/list", {})).get("users", [])
        roles = (await _ask(etcd, "auth/role/list", {})).get("roles", [])
        for name, place in places.items():
            user = user_of(federation.file.name, name)
            await _make_role(etcd, user, federation.file.name, name, exists=user in roles)
            await _make_user(etcd, user, place / PASSWORD_FILE, exists=user in users)
            _name_user_in(place / founding.SITE_FILE, user)
    finally:
        await etcd.close()
    return [place / file for place in places.values() for file in (founding.SITE_FILE, PASSWORD_FILE)]


async def remove_user(federation: Federation, name: str, root: Path) -> None:
    """Delete a site's user and role: what was signed in with them is refused at once."""
    etcd, user = _as_root(federation, root), user_of(federation.file.name, name)
    try:
        if user not in (await _ask(etcd, "auth/user/list", {})).get("users", []):
            raise BadInput(f"etcd has no user {user!r}; tramfl etcd users makes one for each site.")
        await _ask(etcd, "auth/user/delete", {"name": user})
        await _ask(etcd, "auth/role/delete", {"role": user})
    finally:
        await etcd.close()


async def _make_role(etcd: Gateway, role: str, federation: str, site: str, *, exists: bool) -> None:
    if not exists:
        await _ask(etcd, "auth/role/add", {"name": role})
    for permission in permissions(federation, site):
        await _ask(etcd, "auth/role/grant", {"name": role, "perm": permission})


async def _make_user(etcd: Gateway, user: str, file: Path, *, exists: bool) -> None:
    if file.exists() and exists:
        return
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    # The file first: a password that only etcd knows would be lost.
    write_private(file, f"{password}\n".encode())
    if exists:
        await _ask(etcd, "auth/user/changepw", {"name": user, "password": password})
    else:
        await _ask(etcd, "auth/user/add", {"name": user, "password": password})
    await _ask(etcd, "auth/user/grant", {"user": user, "role": user})


def _name_user_in(file: Path, user: str) -> None:
    """Write user and password file into a site.toml, in place of the lines that are there."""
    content = file.read_text(encoding="utf-8")
    for key, value in (("etcd_user", user), ("etcd_password_file", PASSWORD_FILE)):
        line, pattern = f'{key} = "{value}"', re.compile(rf"^(# )?{key} = .*$", re.MULTILINE)
        content = pattern.sub(line, content) if pattern.search(content) else f"{content.rstrip()}\n{line}\n"
    file.write_text(content, encoding="utf-8")


def _as_root(federation: Federation, root: Path) -> Gateway:
    settings = federation.file.register
    if settings.kind != "etcd":
        raise BadInput(f"{federation.path}: register.kind is {settings.kind!r}; users are etcd's.")
    try:
        password = root.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{root} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}.") from None
    files = {
        key: str(federation.beside(file))
        for key in ("authorities", "certificate", "key")
        if (file := getattr(settings, key)) is not None
    }
    return Gateway(replace(settings, user=ROOT, **files), lambda: password)


async def _ask(etcd: Gateway, path: str, body: Json) -> Json:
    try:
        return await etcd.ask(path, body, repeatable=False)
    except Silent as error:
        raise BadInput(f"etcd does not answer ({error}); what was done stays, so give the command again.") from None


def _end(prefix: str) -> str:
    """The end of the range of all keys with a prefix, as etcd writes it."""
    return f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"

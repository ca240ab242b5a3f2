"""The certificates in a federation's folder: one more site, longer validity, and whether they can be used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from tramfl.config import read_toml
from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.operating import PAST_AUTHORITIES, Operator
from tramfl.runtime.settings import OPERATOR, Federation, check_name, host_and_port, read_federation
from tramfl.runtime.transport import certificates
from tramfl.runtime.transport.certificates import Authority, CertificateInfo
from tramfl.runtime.transport.revocations import (
    RevocationList,
    keep_list,
    list_in,
    moment_in_words,
    newest_list,
    signed_list,
)


class IssuedSite(Struct, frozen=True, kw_only=True):
    """The folder of one more site, and what is left to do."""

    name: str
    folder: str
    address: str | None
    add: str
    """Lines for federation.toml; empty where the site is listed already."""
    missing: list[str]
    """Files that `[register]` names and the federation's folder does not have."""


def issue_site(folder: Path, name: str, address: str | None, days: float) -> IssuedSite:
    """Make the folder of one more site, which is in its own federation.toml; other files stay as they are."""
    check_name(name, "tramfl cert issue")
    federation = read_federation(folder / founding.FEDERATION_FILE)
    listed = name in federation.names
    if listed:
        address = address or federation.file.site[federation.number_of(name)].address
    place = founding.site_folder(folder, name)
    if place.exists():
        raise BadInput(f"{place} is there already; tramfl cert renew {folder} {name} makes it last longer.")
    enclosed, missing = founding.enclosed_with(federation)
    founding.add_site(Authority.load(folder), folder, name, address, days, _moment_after(folder, name))
    founding.enclose(place, enclosed)
    add = "" if listed else f'[[site]]\nname = "{name}"\naddress = "{address or "host:port"}"\n'
    content = federation.path.read_text(encoding="utf-8")
    (place / founding.FEDERATION_FILE).write_text(f"{content}\n{add}" if add else content, encoding="utf-8")
    return IssuedSite(name=name, folder=str(place), address=address, add=add, missing=missing)


def known_names(folder: Path) -> tuple[str, ...]:
    """Names with a certificate in the federation's folder: the operator, and the sites."""
    found = folder.glob(f"{founding.SITES}/*/{founding.SITE_CERTIFICATE}")
    return (OPERATOR, *sorted(path.parent.name for path in found))


def renew(folder: Path, names: Sequence[str], days: float, *, new_key: bool) -> list[Path]:
    """Make certificates last longer; the files that must be copied to their sites."""
    federation = read_federation(folder / founding.FEDERATION_FILE)
    known = known_names(folder)
    for name in names:
        if name not in known:
            raise BadInput(f"{folder} has no certificate of {name!r}; it has those of {', '.join(known)}.")
    authority = Authority.load(folder)
    for name in names if not new_key else ():
        certificate = _place(folder, name).with_suffix(".crt")
        if _revoked(certificate, certificates.describe(_content(certificate), source=str(certificate))):
            raise BadInput(f"the certificate of {name} was revoked, and its key with it; add --new-key.")
    return [path for name in names for path in _renew(authority, folder, federation, name, days, new_key)]


def _place(folder: Path, name: str) -> Path:
    """Where the certificate and the key of a name lie, without `.crt` and `.key`."""
    return folder / OPERATOR if name == OPERATOR else founding.site_folder(folder, name) / "site"


def _renew(
    authority: Authority, folder: Path, federation: Federation, name: str, days: float, new_key: bool
) -> Iterator[Path]:
    """Renew one certificate; the files that its site needs."""
    certificate, key = (_place(folder, name).with_suffix(suffix) for suffix in (".crt", ".key"))
    listed = [site.address for site in federation.file.site if site.name == name]
    hosts = [host_and_port(address, name)[0] for address in listed]
    if new_key:
        authority.issue(name, hosts, days, _moment_after(folder, name)).save(certificate, key)
    else:
        former = _former(folder)
        write_atomically(certificate, authority.renew(_content(certificate), hosts or None, days, former=former))
    if name != OPERATOR:
        yield from (certificate, key) if new_key else (certificate,)


FORMER = "former-ca"
"""The authority that is about to be dropped, at the operator's: `.crt` and `.key`."""


def begin_rotation(folder: Path) -> list[Path]:
    """Make a new authority, and have both trusted; the files that must be copied to their sites.

    Certificates that are issued or renewed from now on are the new authority's.
    """
    if former := _former(folder):  # begun before: only the files are written again
        return _write_authorities(folder, Authority.load(folder).certificate_pem + former)
    old = Authority.load(folder)
    new, revoked = Authority.create(old.name), newest_list([list_in(folder)], old.certificate_pem)
    old.save(folder, FORMER)
    new.save(folder)
    if revoked.moments:
        # The next list must be newer than the one that sites have, whose signature will count no more.
        keep_list(folder, signed_list(new, RevocationList(revoked.number + 1, revoked.moments)))
    return _write_authorities(folder, new.certificate_pem + old.certificate_pem)


def finish_rotation(folder: Path) -> list[Path]:
    """Trust the new authority alone, and delete the old one; the files that must be copied to their sites."""
    if not _former(folder):
        raise BadInput(f"{folder} has no {FORMER}.crt: no rotation is under way; begin one with tramfl cert rotate.")
    new = Authority.load(folder)
    certificates_of = {name: _content(_place(folder, name).with_suffix(".crt")) for name in known_names(folder)}
    old = [name for name, pem in certificates_of.items() if not certificates.issued_by(pem, new.certificate_pem)]
    if old:
        raise BadInput(
            f"the old authority's certificates would be refused: renew {', '.join(old)} first, with tramfl cert renew"
            f" {folder} {' '.join(old)}, and copy them to their sites."
        )
    past = folder / PAST_AUTHORITIES
    write_atomically(past, (_content(past) if past.exists() else b"") + _former(folder))
    copy = _write_authorities(folder, new.certificate_pem)
    for suffix in (".key", ".crt"):
        (folder / f"{FORMER}{suffix}").unlink(missing_ok=True)
    return copy


def _former(folder: Path) -> bytes:
    """The certificate of the authority that is about to be dropped; empty where none is."""
    path = folder / f"{FORMER}.crt"
    return _content(path) if path.exists() else b""


def _write_authorities(folder: Path, pem: bytes) -> list[Path]:
    places = sorted(folder.glob(f"{founding.SITES}/*/ca.crt"))
    for path in (folder / "ca.crt", *places):
        write_atomically(path, pem)
    return places


async def revoke(hand: Operator, folder: Path, name: str) -> str:
    """Have every site refuse the certificates that were issued to `name` until now; one sentence about the result."""
    authority = Authority.load(folder)
    status = await hand.status()
    known = dict.fromkeys((*known_names(folder), *(site.site for site in status.sites)))
    if name not in known:
        raise BadInput(f"no certificate was issued to {name!r} here; {folder} knows {', '.join(known)}.")
    before = newest_list([list_in(folder)], authority.certificate_pem)
    newest = max(before, status.revoked, key=lambda revoked: revoked.number)
    content = signed_list(authority, newest.with_name(name))
    keep_list(folder, content)
    refusing, others = await hand.revoke(content, name)
    if not refusing:
        raise BadInput(
            f"no site answers, so no site knows yet that {name!r} is revoked; give the command again when one does."
        )
    late = f"; {', '.join(others)} will as soon as it reads the register" if others else ""
    remedy = f"tramfl cert renew {folder} {name} --new-key makes a new certificate for it."
    return f"The certificates of {name} are revoked: {', '.join(refusing)} refuse them{late}. {remedy}"


def _moment_after(folder: Path, name: str) -> datetime | None:
    """When a certificate for `name` must be issued so that it is not among the revoked; None where now will do."""
    moment = newest_list([list_in(folder)], _content(folder / "ca.crt")).moments.get(name)
    now = datetime.now(UTC)
    # Certificates count whole seconds.
    after = now if moment is None else datetime.fromtimestamp(math.floor(moment) + 1, UTC)
    return after if after > now else None


class CertificateFile(Struct, frozen=True, kw_only=True):
    """One certificate file, and whether it can be used."""

    path: str
    name: str
    names: tuple[str, ...]
    issuer: str
    authority: bool
    serial: str
    not_before: str
    not_after: str
    days_left: float
    fingerprint: str
    key_fits: bool | None
    """None where there is no key beside it."""
    issued_by_authority: bool | None
    """None where there is no ca.crt beside it."""
    problems: tuple[str, ...]


def inspect(place: Path) -> list[CertificateFile]:
    """A certificate file, or all that are in a folder."""
    files = sorted(place.rglob("*.crt")) if place.is_dir() else [place]
    if not files:
        raise BadInput(f"{place} has no certificates (*.crt).")
    return [_inspect(file) for file in files]


def _inspect(file: Path) -> CertificateFile:
    pem = _content(file)
    info = certificates.describe(pem, source=str(file))
    key, above = file.with_suffix(".key"), file.with_name("ca.crt")
    key_fits = certificates.key_fits(pem, _content(key), str(key)) if key.exists() else None
    # Another authority beside ours, such as etcd's, issued itself.
    other = info.authority and info.issuer == info.name and file != above
    issued = certificates.issued_by(pem, _content(above), str(above)) if above.exists() and not other else None
    return CertificateFile(
        path=str(file),
        name=info.name,
        names=info.names,
        issuer=info.issuer,
        authority=info.authority,
        serial=info.serial,
        not_before=info.not_before.isoformat(),
        not_after=info.not_after.isoformat(),
        days_left=round(info.days_left, 2),
        fingerprint=info.fingerprint,
        key_fits=key_fits,
        issued_by_authority=issued,
        problems=tuple(_problems(file, info, key_fits, issued)),
    )


def _revoked(file: Path, info: CertificateInfo) -> str | None:
    """A sentence where a list of revoked certificates near the file has this one."""
    above = file.with_name("ca.crt")
    if info.authority or not above.exists():
        return None
    # At a site the list is in its state folder, at the operator's in the folder above all sites.
    near = [list_in(folder) for folder in (file.parent, file.parent / "state", *file.absolute().parents[2:3])]
    revoked = newest_list(near, _content(above))
    if not revoked.refuses(info.name, info.issued):
        return None
    return f"It was revoked on {moment_in_words(revoked.moments[info.name])}."


def _problems(file: Path, info: CertificateInfo, key_fits: bool | None, issued: bool | None) -> Iterator[str]:
    if (revoked := _revoked(file, info)) is not None:
        yield revoked
    if (out_of_date := certificates.out_of_date(info)) is not None:
        yield out_of_date
    if key_fits is False:
        yield f"{file.with_suffix('.key').name} is not its key."
    if issued is False:
        yield f"{file.with_name('ca.crt')} did not issue it."
    site = file.with_name(founding.SITE_FILE)
    if site.exists() and not info.authority and file.name == founding.SITE_CERTIFICATE:
        name = read_toml(site).get("site")
        if name != info.name:
            yield f"It is for {info.name!r}, and the site beside it is {name!r}."


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None

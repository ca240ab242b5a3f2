"""The certificates in a federation's folder: one more site, longer validity, and whether what is there will do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from tramfl.config import read_toml
from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.runtime.operator import founding
from tramfl.runtime.settings import OPERATOR, Federation, check_name, host_and_port, read_federation
from tramfl.runtime.transport import certificates
from tramfl.runtime.transport.certificates import Authority, CertificateInfo


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
    """Make the folder of one more site. federation.toml is left alone: it has to change at every site."""
    check_name(name, "tramfl cert issue")
    federation = read_federation(folder / founding.FEDERATION_FILE)
    listed = name in federation.names
    if listed:
        address = address or federation.file.site[federation.number_of(name)].address
    place = founding.site_folder(folder, name)
    if place.exists():
        raise BadInput(f"{place} is there already; tramfl cert renew {folder} {name} makes it last longer.")
    enclosed, missing = founding.enclosed_with(federation)
    founding.add_site(Authority.load(folder), folder, name, address, days)
    founding.enclose(place, enclosed)
    (place / founding.FEDERATION_FILE).write_bytes(federation.path.read_bytes())
    add = "" if listed else f'[[site]]\nname = "{name}"\naddress = "{address or "host:port"}"\n'
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
    return [path for name in names for path in _renew(authority, folder, federation, name, days, new_key)]


def _renew(
    authority: Authority, folder: Path, federation: Federation, name: str, days: float, new_key: bool
) -> Iterator[Path]:
    """Renew one certificate; the files that its site needs."""
    place, stem = (folder, OPERATOR) if name == OPERATOR else (founding.site_folder(folder, name), "site")
    certificate, key = place / f"{stem}.crt", place / f"{stem}.key"
    listed = [site.address for site in federation.file.site if site.name == name]
    hosts = [host_and_port(address, name)[0] for address in listed]
    if new_key:
        authority.issue(name, hosts, days).save(certificate, key)
    else:
        write_atomically(certificate, authority.renew(_content(certificate), hosts or None, days))
    if name != OPERATOR:
        yield from (certificate, key) if new_key else (certificate,)


class CertificateFile(Struct, frozen=True, kw_only=True):
    """One certificate file, and whether it will do."""

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
    issued = certificates.issued_by(pem, _content(above), str(above)) if above.exists() else None
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


def _problems(file: Path, info: CertificateInfo, key_fits: bool | None, issued: bool | None) -> Iterator[str]:
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

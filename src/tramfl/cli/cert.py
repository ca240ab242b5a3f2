"""`tramfl cert`: issue, renew and show the certificates of a federation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct

from tramfl.cli.options import Format, FormatOption
from tramfl.config import read_toml
from tramfl.notation import BadInput
from tramfl.record import write_atomically
from tramfl.runtime.settings import OPERATOR, Federation, check_name, host_and_port, read_federation

if TYPE_CHECKING:
    from tramfl.runtime.transport.certificates import CertificateInfo

app = typer.Typer(help="Issue, renew and show the certificates of a federation.", no_args_is_help=True)

SOON_DAYS = 30
"""Time to renew."""

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's folder, as tramfl init wrote it, with ca.key in it.")
]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate lasts.")]


@app.command()
def issue(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new site's name.")],
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the others reach it; its certificate names the host."),
    ] = None,
    days: DaysOption = 365,
    format_: FormatOption = Format.text,
) -> None:
    """Make the folder of one more site, and say what to add to federation.toml.

    The file itself is left alone: it has to change at every site, and a run under way has counted its sites.
    """
    from tramfl.runtime.operator import founding
    from tramfl.runtime.transport import certificates

    check_name(name, "tramfl cert issue")
    federation = read_federation(folder / founding.FEDERATION_FILE)
    listed = name in federation.names
    if listed:
        address = address or federation.file.site[federation.number_of(name)].address
    place = founding.site_folder(folder, name)
    if place.exists():
        raise BadInput(f"{place} is there already; tramfl cert renew {folder} {name} makes it last longer.")
    enclosed, missing = founding.enclosed_with(federation)
    founding.add_site(certificates.Authority.load(folder), folder, name, address, days)
    founding.enclose(place, enclosed)
    (place / founding.FEDERATION_FILE).write_bytes(federation.path.read_bytes())
    add = "" if listed else f'[[site]]\nname = "{name}"\naddress = "{address or "host:port"}"\n'
    if format_ is Format.json:
        told = {"name": name, "folder": str(place), "address": address, "add": add, "missing": missing}
        print(json.dumps(told, indent=2))
        return
    print(f"Copy {place}/ to site {name}.")
    if missing:
        print(f"Put there too what [register] in federation.toml names and {folder} does not have:", *missing)
    if add:
        print(
            "Before the next run, add these lines to federation.toml, here and at every site "
            f"(and count the new one in [run.partition], unless sites bring data of their own):\n\n{add}"
        )


@app.command()
def renew(
    folder: FolderArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help=f"Sites, or {OPERATOR!r} for your own certificate.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every site, and the operator.")] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make a new key too, which then must be copied.")
    ] = False,
    days: DaysOption = 365,
    format_: FormatOption = Format.text,
) -> None:
    """Make certificates last longer. The key stays the same, so that no secret has to be copied again."""
    from tramfl.runtime.transport.certificates import Authority

    federation = read_federation(folder / "federation.toml")
    known = (OPERATOR, *sorted(path.parent.name for path in folder.glob("sites/*/site.crt")))
    wanted = known if all_ else tuple(dict.fromkeys(names or ()))
    if not wanted:
        raise BadInput("name the sites whose certificates to renew, or add --all.")
    for name in wanted:
        if name not in known:
            raise BadInput(f"{folder} has no certificate of {name!r}; it has those of {', '.join(known)}.")
    authority = Authority.load(folder)
    copy = [str(path) for name in wanted for path in _renew(authority, folder, federation, name, days, new_key)]
    if format_ is Format.json:
        print(json.dumps({"renewed": wanted, "copy": copy}, indent=2))
        return
    print(f"Renewed for {days} days: {', '.join(wanted)}.")
    if copy:
        print("Copy to its site, in place of the old; it counts from the next connection on:", *copy, sep="\n  ")


def _renew(
    authority: Any, folder: Path, federation: Federation, name: str, days: int, new_key: bool
) -> Iterator[Path]:
    """Renew one certificate; gives the files that its site needs."""
    place, stem = (folder, OPERATOR) if name == OPERATOR else (folder / "sites" / name, "site")
    certificate, key = place / f"{stem}.crt", place / f"{stem}.key"
    listed = [site.address for site in federation.file.site if site.name == name]
    hosts = [host_and_port(address, name)[0] for address in listed]
    if new_key:
        authority.issue(name, hosts, days).save(certificate, key)
    else:
        write_atomically(certificate, authority.renew(_content(certificate), hosts or None, days))
    if name != OPERATOR:
        yield from (certificate, key) if new_key else (certificate,)


class Shown(Struct, frozen=True, kw_only=True):
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


@app.command()
def show(
    place: Annotated[Path, typer.Argument(metavar="FILE_OR_DIR", help="A certificate, or a folder of them.")],
    format_: FormatOption = Format.text,
) -> None:
    """Show certificates, until when they are valid, and whether keys and authority fit; exit code 1 if not."""
    files = sorted(place.rglob("*.crt")) if place.is_dir() else [place]
    if not files:
        raise BadInput(f"{place} has no certificates (*.crt).")
    shown = [_shown(file) for file in files]
    if format_ is Format.json:
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
    else:
        _print(shown)
    if any(each.problems for each in shown):
        raise typer.Exit(1)


def _shown(file: Path) -> Shown:
    from tramfl.runtime.transport import certificates

    pem = _content(file)
    info = certificates.describe(pem, source=str(file))
    key, above = file.with_suffix(".key"), file.with_name("ca.crt")
    key_fits = certificates.key_fits(pem, _content(key), str(key)) if key.exists() else None
    issued = certificates.issued_by(pem, _content(above), str(above)) if above.exists() else None
    return Shown(
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
        problems=tuple(_problems(file, info, certificates.out_of_date(info), key_fits, issued)),
    )


def _problems(
    file: Path, info: CertificateInfo, out_of_date: str | None, key_fits: bool | None, issued: bool | None
) -> Iterator[str]:
    if out_of_date is not None:
        yield out_of_date
    if key_fits is False:
        yield f"{file.with_suffix('.key').name} is not its key."
    if issued is False:
        yield f"{file.with_name('ca.crt')} did not issue it."
    site = file.with_name("site.toml")
    if site.exists() and not info.authority and file.name == "site.crt":
        name = read_toml(site).get("site")
        if name != info.name:
            yield f"It is for {info.name!r}, and the site beside it is {name!r}."


def _print(shown: list[Shown]) -> None:
    rows = [("certificate", "for", "valid until", "days left", "key", "SHA-256")]
    for each in _distinct(shown):
        days = f"{each.days_left:.0f}" + (" (renew)" if 0 <= each.days_left < SOON_DAYS else "")
        key = {True: "fits", False: "wrong", None: "not here"}[each.key_fits]
        name = f"{each.name} (authority)" if each.authority else each.name
        rows.append((each.path, name, each.not_after[:10], days, key, _grouped(each.fingerprint)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        # A table that wraps would cut paths; these are to be copied.
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    for each in shown:
        for problem in each.problems:
            print(f"{each.path}: {problem}")


def _distinct(shown: list[Shown]) -> Iterator[Shown]:
    """Every site's folder has the authority's certificate; once is enough to look at."""
    seen: set[str] = set()
    for each in shown:
        if not (each.authority and each.fingerprint in seen):
            yield each
        seen.add(each.fingerprint)


def _grouped(fingerprint: str) -> str:
    """Sixteen digits will do to tell two apart by eye; all of them are in --format json."""
    return " ".join(fingerprint[at : at + 4] for at in range(0, 16, 4)) + " ..."


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None

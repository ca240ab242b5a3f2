"""`tramfl init`: write a new federation, and say what goes where."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from tramfl.cli.options import Format, FormatOption
from tramfl.hosts import is_loopback
from tramfl.notation import BadInput
from tramfl.runtime.settings import RegisterSettings, SiteEntry, host_and_port
from tramfl.simulation.scenarios import scenario_for_sites

if TYPE_CHECKING:
    from tramfl.runtime.operator.founding import NewFederation

ETCD_CA, ETCD_PASSWORD = "etcd-ca.crt", "etcd.password"
"""What etcd's files are called at a site."""


class RegisterKind(StrEnum):
    """The registers there are."""

    sqlite = "sqlite"
    etcd = "etcd"


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write the federation to.")],
    sites: Annotated[str, typer.Option(metavar="A,B,C", help="The sites' names.")],
    addresses: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...", help="Where the others reach each site (default: 127.0.0.1:7401, ...)."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="SCENARIO", help="What to train: a scenario's name, or a .toml file (default: digits)."),
    ] = None,
    register: Annotated[
        RegisterKind, typer.Option(help="Where the record lives: sqlite on one machine, etcd on several.")
    ] = RegisterKind.sqlite,
    endpoints: Annotated[
        str | None, typer.Option(metavar="URL,...", help="etcd's members, as https://host:2379.")
    ] = None,
    etcd_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority of etcd's certificates; every site gets it.")
    ] = None,
    etcd_user: Annotated[str | None, typer.Option(metavar="NAME", help="etcd's user, if it has passwords.")] = None,
    etcd_password: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with that user's password; every site gets it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The federation's name (default: the folder's).")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates last.")] = 365,
    format_: FormatOption = Format.text,
) -> None:
    """Write a federation: its settings, a private authority, and a folder with a certificate for each site."""
    from tramfl.runtime.operator import founding

    if register is RegisterKind.sqlite and (etcd_ca or etcd_user or etcd_password):
        raise BadInput("--etcd-ca, --etcd-user and --etcd-password are etcd's: add --register etcd.")
    if (etcd_user is None) != (etcd_password is None):
        raise BadInput("--etcd-user and --etcd-password belong together: give both or neither.")
    names = _parts(sites)
    plan = founding.NewFederation(
        name=name if name is not None else folder.resolve().name,
        site=_sites(names, addresses) if addresses is not None else founding.loopback_sites(names),
        register=replace(
            _register(register, endpoints),
            authorities=ETCD_CA if etcd_ca else None,
            user=etcd_user,
            password_file=ETCD_PASSWORD if etcd_password else None,
        ),
        run=founding.run_for(scenario_for_sites(scenario, len(names)), len(names)),
        days=days,
        enclosed={n: path for n, path in ((ETCD_CA, etcd_ca), (ETCD_PASSWORD, etcd_password)) if path is not None},
    )
    founding.found(plan, folder)
    result = _result(plan, folder)
    print(json.dumps(result, indent=2) if format_ is Format.json else _as_text(result))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _sites(names: list[str], addresses: str) -> tuple[SiteEntry, ...]:
    places = _parts(addresses)
    if len(places) != len(names):
        raise BadInput(f"--addresses has {len(places)} addresses for {len(names)} sites; give one host:port each.")
    return tuple(SiteEntry(name=name, address=place) for name, place in zip(names, places, strict=True))


def _register(kind: RegisterKind, endpoints: str | None) -> RegisterSettings:
    members = _parts(endpoints or "")
    if kind is RegisterKind.sqlite:
        if endpoints is not None:
            raise BadInput("--endpoints are etcd's: add --register etcd.")
        return RegisterSettings()
    if not members:
        raise BadInput("--register etcd needs --endpoints, for example --endpoints https://etcd-1.example.org:2379.")
    for member in members:
        if urlsplit(member).scheme not in ("http", "https") or not urlsplit(member).netloc:
            raise BadInput(f"--endpoints {member}: write https://host:2379.")
    return RegisterSettings(kind="etcd", endpoints=tuple(members))


def _result(plan: NewFederation, folder: Path) -> dict[str, Any]:
    """What the user has to do next."""
    sites = [
        {
            "name": site.name,
            "address": site.address,
            "port": host_and_port(site.address, site.name)[1],
            "folder": str(folder / "sites" / site.name),
            "preflight": f"tramfl preflight {_quoted(folder / 'sites' / site.name / 'site.toml')}",
            "node": f"tramfl node {_quoted(folder / 'sites' / site.name / 'site.toml')}",
        }
        for site in plan.site
    ]
    return {
        "name": plan.name,
        "federation": str(folder / "federation.toml"),
        "scenario": plan.run.name,
        "register": plan.register.kind,
        "sites": sites,
        "keep": [str(folder / name) for name in ("ca.key", "operator.crt", "operator.key")],
        "certificate_days": plan.days,
        "here": all(is_loopback(host) for host in _hosts(plan)),
        "notes": _notes(plan),
        "start": f"tramfl start {_quoted(folder / 'federation.toml')}",
    }


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _hosts(plan: NewFederation) -> list[str]:
    return [host_and_port(site.address, site.name)[0] for site in plan.site]


def _notes(plan: NewFederation) -> list[str]:
    notes: list[str] = []
    if plan.register.kind == "sqlite" and not all(map(is_loopback, _hosts(plan))):
        notes.append(
            "The register is a SQLite file, which works only while all sites run on this machine; "
            "sites on several machines need --register etcd."
        )
    if plan.register.kind == "etcd":
        if plan.register.authorities is None or plan.register.user is None:
            notes.append("etcd's TLS and password: --etcd-ca, --etcd-user, or [register] in every federation.toml.")
        if any(endpoint.startswith("http://") for endpoint in plan.register.endpoints):
            notes.append("http:// to etcd can be read and forged on the way; use it on loopback only.")
    return notes


def _as_text(result: dict[str, Any]) -> str:
    sites, first = result["sites"], result["sites"][0]
    width = max(len(site["folder"]) for site in sites) + 1
    many = "1 site" if len(sites) == 1 else f"{len(sites)} sites"
    lines = [
        f"{result['federation']}: the federation {result['name']!r} of {many}, to train {result['scenario']}.",
        "",
        "All sites are on this machine; each runs from its folder and listens on its port:"
        if result["here"]
        else "Copy each folder to its site, and let the other sites reach its port:",
        *(f"  {site['folder'] + '/':<{width}}  TCP {site['address']}" for site in sites),
        "",
        f"Keep {result['keep'][0]} here and secret: with it anybody can make sites. No site needs it.",
        f"{result['keep'][1]} and {Path(result['keep'][2]).name} are the operator's, to act on runs; not for sites.",
        f"The certificates last {result['certificate_days']} days; tramfl cert renew makes them last longer.",
        *result["notes"],
        "",
        f"Next, for each site (here {first['name']}), where it runs:",
        f"  {first['preflight']}",
        f"  {first['node']}",
        "then once, here:",
        f"  {result['start']}",
    ]
    return "\n".join(lines)

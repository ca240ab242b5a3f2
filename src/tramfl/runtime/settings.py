"""What a federation is (`federation.toml`, the same at every site) and what a site is (`site.toml`).

Paths in a file are relative to that file.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from tramfl.circulation.phases import Limits
from tramfl.circulation.soundness import SITE_NAME
from tramfl.config import Positive, Scenario, Whole, read_toml, settings_from
from tramfl.notation import BadInput, NodeId
from tramfl.scheduling.predictors import predictor_names

_HOURS = re.compile(r"((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d|24:00)")
OPERATOR = "operator"
"""The name of the operator, who is no site but may act on a run."""


class SiteEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One site, as all others know it."""

    name: str
    """Small letters, digits and hyphens; the common name of the site's certificate."""
    address: str
    """host:port, as the others reach it."""


class RegisterSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the record lives."""

    kind: Literal["sqlite", "etcd"] = "sqlite"
    """Where the record of who holds the model lives: sqlite (all sites on one machine) or etcd."""
    path: str = "register.sqlite"
    """sqlite: the one file that all sites share; absolute, because every site has a copy of this line."""
    endpoints: tuple[str, ...] = ()
    """etcd: every member, as https://host:2379; http:// for loopback only."""
    authorities: str | None = None
    """etcd: the certificates to trust; without it the system's."""
    certificate: str | None = None
    """etcd: what to show it, if it asks for a certificate; this file and its key lie at every site."""
    key: str | None = None
    """etcd: the key of that certificate."""
    user: str | None = None
    """etcd: the user, if it has authentication on."""
    password_file: str | None = None
    """etcd: a file with that user's password (chmod 600); the password itself never stands here."""
    timeout_seconds: Positive = 2.0
    """How long an answer of the register may take."""


class FederationFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`federation.toml`."""

    name: str
    """Names the federation; in etcd, its keys begin with tramfl/NAME/."""
    site: tuple[SiteEntry, ...]
    lease_seconds: Annotated[float, Meta(ge=0.5, le=3600)] = 5.0
    """A site that the register has not heard of for this many seconds counts as gone."""
    unsafe_rounds: Whole = 3
    """The most trained rounds that may lie at one site alone: a holder ships a copy after half of them, beside its
    work, and trains no further with all of them while another site answers."""
    unsafe_seconds: Positive = 600.0
    """A holder that keeps training in place also ships a copy after this many seconds of work."""
    kept_versions: Annotated[int, Meta(ge=0, le=100)] = 3
    """How many safe versions of the model are kept to go back to (`tramfl rollback`), besides the present one. Each
    takes the disk space of one model at the sites that have it, two as a rule."""
    kept_every: Whole = 10
    """A version is kept if it is at least this many rounds after the last one that is kept."""
    load_reply_seconds: Positive = 2.0
    """A site that takes longer to say what it can spare is left out of the round."""
    register: RegisterSettings = field(default_factory=RegisterSettings)
    run: Scenario = field(default_factory=Scenario)
    """What is trained: a scenario; its `loads` play no part."""


class Federation(Struct, frozen=True):
    """A federation file, and where it was read from."""

    file: FederationFile
    path: Path

    @property
    def names(self) -> tuple[str, ...]:
        """The sites' names; a node's number is its place here."""
        return tuple(site.name for site in self.file.site)

    def number_of(self, name: str) -> NodeId:
        """The number of a site."""
        try:
            return self.names.index(name)
        except ValueError:
            raise BadInput(f"{self.path} lists no site {name!r}; it has {', '.join(self.names)}.") from None

    @property
    def limits(self) -> Limits:
        """The time limits of the round machine."""
        file = self.file
        return Limits(
            load_reply=file.load_reply_seconds,
            takeover_grace=min(1.0, file.lease_seconds / 5),
            unsafe_rounds=file.unsafe_rounds,
            unsafe_seconds=file.unsafe_seconds,
        )

    def beside(self, name: str) -> Path:
        """A path that the file names."""
        return self.path.parent / Path(name).expanduser()


class SiteFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`site.toml`."""

    site: str
    """This site's name in federation.toml."""
    federation: str = "federation.toml"
    """The federation's file."""
    listen: str | None = None
    """host:port to listen on, where that is not the address the others use (behind NAT or a proxy)."""
    state: str = "state"
    """The folder for weights and history; it needs room for a few copies of the model."""
    certificate: str = "site.crt"
    """This site's certificate."""
    key: str = "site.key"
    """The key of that certificate."""
    authorities: str = "ca.crt"
    """The certificate of the federation's authority."""
    etcd_user: str | None = None
    """This site's own user of etcd, in place of register.user in federation.toml; tramfl etcd users makes it."""
    etcd_password_file: str | None = None
    """A file with that user's password (chmod 600)."""
    app: str | None = None
    """package.module:app, this site's own model and data; without it, a share of the scenario's data set."""
    app_folder: str | None = None
    """The folder with this site's own modules; without it, modules come from installed packages alone."""
    share: Annotated[int, Meta(ge=0)] | None = None
    """Which share of the scenario's data set this site has; its number in the federation if not given."""
    data_dir: str | None = None
    """The folder for data sets; $TRAMFL_DATA or a cache if not given."""
    predictor: str = "blend"
    """How the next round's load is predicted from the past: last, ewma, ar1; or blend, within 2 % of the best of them
    on each kind of load that benchmarks/predictors.py tries."""
    threads: Whole | None = None
    """Cores to train on; all that are free if not given."""
    compute_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The share of this machine's cores that training may use, at least one core; `threads` comes before it."""
    available: str | None = None
    """The hours in which this site takes part, such as "22:00-06:00" by the machine's clock; always if not given."""
    samples_per_day: Whole | None = None
    """The site takes part in no further round of a day in which it has trained this many samples."""


class SiteSettings(Struct, frozen=True):
    """A site file, the federation it belongs to, and where it was read from."""

    file: SiteFile
    path: Path
    federation: Federation

    @property
    def number(self) -> NodeId:
        """This site's place in the federation."""
        return self.federation.number_of(self.file.site)

    @property
    def address(self) -> str:
        """Where the others reach this site."""
        return self.federation.file.site[self.number].address

    @property
    def threads(self) -> int | None:
        """Cores to train on; None for all that are free."""
        share = self.file.compute_share
        if self.file.threads is not None or share is None:
            return self.file.threads
        return max(1, int(share * (os.cpu_count() or 1)))

    @property
    def hours(self) -> Hours | None:
        """The hours in which this site takes part; None where that is always."""
        text = self.file.available
        return None if text is None else hours_from(text, f"{self.path}: key `available`")

    @property
    def place(self) -> str:
        """The machine and the folder of the site's process: another process elsewhere is a second one."""
        return f"{socket.gethostname()}:{self.beside(self.file.state)}"

    @property
    def listen(self) -> str:
        """Where this site listens."""
        return self.file.listen or self.address

    def beside(self, name: str) -> Path:
        """A path that the file names."""
        return self.path.parent / Path(name).expanduser()

    @property
    def app_folder(self) -> Path | None:
        """Where this site's own modules are, beside installed packages."""
        return self.beside(self.file.app_folder) if self.file.app_folder is not None else None


def read_federation(path: Path) -> Federation:
    """The federation in a file; what is wrong is named."""
    file = settings_from(read_toml(path), FederationFile, str(path))
    check_sites(file.site, str(path))
    if file.register.kind == "etcd" and not file.register.endpoints:
        raise BadInput(f'{path}: key `register.endpoints` is missing; etcd needs it, as ["https://host:2379"].')
    return Federation(file, path.absolute())


def read_site(path: Path) -> SiteSettings:
    """The site in a file, with its federation."""
    file = settings_from(read_toml(path), SiteFile, str(path))
    absolute = path.absolute()
    federation = _as_own_user(read_federation(absolute.parent / Path(file.federation).expanduser()), file, absolute)
    site = SiteSettings(file, absolute, federation)
    federation.number_of(file.site)
    if file.listen is not None:
        host_and_port(file.listen, f"{path}: key `listen`")
    if site.app_folder is not None and not site.app_folder.is_dir():
        raise BadInput(f"{path}: key `app_folder` is {file.app_folder!r}; {site.app_folder} is not a folder.")
    if file.predictor not in predictor_names():
        raise BadInput(
            f"{path}: key `predictor` is {file.predictor!r}; choose one of {', '.join(predictor_names())}."
        )
    return site


def _as_own_user(federation: Federation, file: SiteFile, path: Path) -> Federation:
    """The federation as a site with an etcd user of its own sees it."""
    if (file.etcd_user is None) != (file.etcd_password_file is None):
        raise BadInput(f"{path}: keys `etcd_user` and `etcd_password_file` belong together; give both or neither.")
    if file.etcd_user is None or file.etcd_password_file is None:
        return federation
    register = federation.file.register
    if register.kind != "etcd":
        raise BadInput(
            f"{path}: key `etcd_user` is given, and {federation.path} has register.kind {register.kind!r}."
        )
    password = path.parent / Path(file.etcd_password_file).expanduser()
    own = replace(register, user=file.etcd_user, password_file=str(password))
    return Federation(replace(federation.file, register=own), federation.path)


class Hours(Struct, frozen=True):
    """A part of every day, by the machine's own clock; where it ends before it begins, it ends on the next day."""

    begin: datetime.time
    end: datetime.time

    def has(self, moment: datetime.time) -> bool:
        """Whether a time of day lies in these hours."""
        if self.begin < self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end


def hours_from(text: str, source: str) -> Hours:
    """`22:00-06:00`; BadInput names the key."""
    found = _HOURS.fullmatch(text)
    times = [datetime.time.fromisoformat(one.replace("24:00", "00:00")) for one in found.groups()] if found else []
    if not times or times[0] == times[1]:
        raise BadInput(f'{source} is {text!r}; write two times of day, for example "22:00-06:00".')
    return Hours(*times)


def check_sites(sites: Sequence[SiteEntry], source: str) -> None:
    """At least one site, each with a name and an address of its own."""
    if not sites:
        raise BadInput(f"{source}: a federation needs at least one site, with name and address.")
    for site in sites:
        check_name(site.name, source)
        where = f"{source}: the address of site {site.name!r}"
        host, _ = host_and_port(site.address, where)
        if not host.isascii():
            raise BadInput(f"{where}: write {host!r} in its ASCII form.")
    names, addresses = [site.name for site in sites], [site.address for site in sites]
    places = [_place(*host_and_port(address, source)) for address in addresses]
    for what, values, keys in (("name", names, names), ("address", addresses, places)):
        if twice := [value for n, value in enumerate(values) if keys[n] in keys[:n]]:
            raise BadInput(f"{source}: the {what} {twice[0]!r} is given to two sites; every site needs its own.")


def check_name(name: str, source: str) -> None:
    """A name fit for certificates."""
    if not SITE_NAME.fullmatch(name) or name == OPERATOR:
        raise BadInput(
            f"{source}: {name!r} is no name for a site; use small letters, digits and hyphens, and not {OPERATOR!r}."
        )


def host_and_port(address: str, source: str) -> tuple[str, int]:
    """`host:port` taken apart; an IPv6 host stands in brackets."""
    written, colon, port = address.rpartition(":")
    host = written.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise BadInput(f"{source} is {address!r}; write host:port, for example 192.0.2.7:7400.")
    if written != (f"[{host}]" if ":" in host else host):
        raise BadInput(
            f"{source} is {address!r}; write host:port, with an IPv6 host, and no other, in brackets, for example"
            " [2001:db8::7]:7400."
        )
    return host, int(port)


def _place(host: str, port: int) -> tuple[str, int]:
    """The same for every spelling of an address; names are not looked up."""
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host.lower(), port

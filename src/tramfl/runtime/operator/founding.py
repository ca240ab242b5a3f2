"""A new federation on disk: `federation.toml`, the authority, and one folder a site.

The files are written as text, not dumped: their comments are what an operator reads first.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w
from msgspec import Struct, field
from msgspec.structs import replace

from tramfl.config import Cost, LoadModel, Scenario, as_table
from tramfl.explanations import explained_keys
from tramfl.learning.data.partition import PAPER_LAYOUTS, node_count
from tramfl.notation import BadInput
from tramfl.runtime.settings import (
    OPERATOR,
    Federation,
    FederationFile,
    RegisterSettings,
    SiteEntry,
    SiteFile,
    check_sites,
    host_and_port,
)
from tramfl.runtime.transport.certificates import SITE_DAYS, Authority, write_private

FEDERATION_FILE, SITE_FILE = "federation.toml", "site.toml"
SITE_CERTIFICATE, SITE_KEY = "site.crt", "site.key"
OPERATOR_CERTIFICATE, OPERATOR_KEY = f"{OPERATOR}.crt", f"{OPERATOR}.key"
SITES = "sites"
FIRST_PORT = 7401
_LONGEST_NAME = 64
"""Of an authority: X.509 allows no more."""


class NewFederation(Struct, frozen=True, kw_only=True):
    """What a new federation is to be."""

    name: str
    site: tuple[SiteEntry, ...]
    register: RegisterSettings
    run: Scenario
    days: float = SITE_DAYS
    """How long the sites' certificates last."""
    enclosed: dict[str, Path] = field(default_factory=dict)
    """Files that every site gets beside its federation.toml, by the name they have there."""


def check_plan(plan: NewFederation) -> None:
    """BadInput where no federation can be made of it."""
    if not 0 < len(plan.name) <= _LONGEST_NAME or not plan.name.isprintable():
        raise BadInput(f"{plan.name!r} is no name for a federation; use 1 to {_LONGEST_NAME} printable characters.")
    check_sites(plan.site, "sites")


def loopback_sites(names: Sequence[str], first_port: int = FIRST_PORT) -> tuple[SiteEntry, ...]:
    """Sites on this machine, a port each."""
    if first_port + len(names) > 65536:
        raise BadInput(f"there are no {len(names)} ports from {first_port} on; use a lower one.")
    return tuple(SiteEntry(name=name, address=f"127.0.0.1:{first_port + n}") for n, name in enumerate(names))


def run_for(scenario: Scenario, sites: int) -> Scenario:
    """The scenario as that many sites train it; BadInput where its layout is for another number.

    Its cost and loads stay behind: both are figures for a virtual clock, where real sites have real ones.
    """
    partition = scenario.partition
    if partition.layout not in PAPER_LAYOUTS and partition.nodes is None:
        partition = replace(partition, nodes=sites)
    nodes = node_count(partition)
    if nodes != sites:
        raise BadInput(
            f"scenario {scenario.name!r} divides its data among {nodes} nodes, and there are {sites} sites; "
            "name as many sites, or a scenario file with layout iid, dirichlet, shard or pathological."
        )
    return replace(scenario, partition=partition, cost=Cost(), loads=LoadModel())


def found(plan: NewFederation, folder: Path, now: datetime | None = None) -> None:
    """Write a whole federation to `folder`; BadInput where anything of the kind is there already."""
    check_plan(plan)
    enclosed = {name: _read(path) for name, path in plan.enclosed.items()}
    for name in (FEDERATION_FILE, "ca.crt", "ca.key", OPERATOR_CERTIFICATE, OPERATOR_KEY, SITES):
        if (folder / name).exists():
            raise BadInput(f"{folder / name} is there already; nothing was written.")
    authority = Authority.create(plan.name, now=now)
    authority.save(folder)
    operator = authority.issue(OPERATOR, days=plan.days, now=now)
    operator.save(folder / OPERATOR_CERTIFICATE, folder / OPERATOR_KEY)
    for site in plan.site:
        add_site(authority, folder, site.name, site.address, plan.days, now)
    text = federation_toml(_with_one_register(plan, folder))
    for place in (*(site_folder(folder, site.name) for site in plan.site), folder):
        enclose(place, enclosed)
        (place / FEDERATION_FILE).write_text(text, encoding="utf-8")


def enclose(place: Path, files: Mapping[str, bytes]) -> None:
    """Put files beside a federation.toml, by the names that it has for them; a password may be among them."""
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        write_private(place / name, content)


def enclosed_with(federation: Federation) -> tuple[dict[str, bytes], list[str]]:
    """What the register's settings name beside federation.toml, and the names of what is not there.

    Files in other folders are for each site to provide.
    """
    register = federation.file.register
    named = (register.authorities, register.certificate, register.key, register.password_file)
    beside = [n for n in dict.fromkeys(named) if n is not None and _lies_beside(Path(n).expanduser())]
    there = [name for name in beside if federation.beside(name).exists()]
    return {name: _read(federation.beside(name)) for name in there}, [n for n in beside if n not in there]


def _lies_beside(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def add_site(
    authority: Authority, folder: Path, name: str, address: str | None, days: float, now: datetime | None = None
) -> Path:
    """The folder of one site, but for its federation.toml."""
    hosts = () if address is None else (host_and_port(address, f"the address of site {name!r}")[0],)
    issued = authority.issue(name, hosts, days, now)
    place = site_folder(folder, name)
    place.mkdir(parents=True)
    issued.save(place / SITE_CERTIFICATE, place / SITE_KEY)
    (place / "ca.crt").write_bytes(authority.certificate_pem)
    (place / SITE_FILE).write_text(site_toml(name), encoding="utf-8")
    return place


def site_folder(folder: Path, name: str) -> Path:
    """Where what belongs to a site lies, at the operator's."""
    return folder / SITES / name


def _with_one_register(plan: NewFederation, folder: Path) -> NewFederation:
    # Every site has the same federation.toml in a folder of its own. A relative path would lead each to a register of
    # its own: runs that nothing keeps from forking.
    if plan.register.kind != "sqlite":
        return plan
    path = Path(plan.register.path).expanduser()
    return replace(plan, register=replace(plan.register, path=str((folder.absolute() / path).resolve())))


def federation_toml(plan: NewFederation) -> str:
    """`federation.toml` with comments; it reads back as what `plan` says."""
    file = FederationFile(name=plan.name, site=plan.site, register=plan.register, run=plan.run)
    table = as_table(file)
    parts = [_FEDERATION, *_lines(table, "", skip=("site", "register", "run")), ""]
    for site in plan.site:
        parts += ["[[site]]", f"name = {_value(site.name)}", f"address = {_value(site.address)}", ""]
    parts += ["[register]", *_register_lines(plan.register), ""]
    parts += [*_run_lines(table["run"])]
    return "\n".join(parts) + "\n"


def _register_lines(register: RegisterSettings) -> Iterator[str]:
    table = as_table(register)
    if register.kind == "sqlite":
        yield from _lines({key: table[key] for key in ("kind", "path", "timeout_seconds")}, "register.")
        return
    yield from _lines({key: table[key] for key in ("kind", "endpoints", "timeout_seconds")}, "register.")
    for key, example in _ETCD_EXAMPLES.items():
        yield from _lines({key: table[key]}, "register.") if key in table else _left_out(f"register.{key}", example)


def _run_lines(table: dict[str, Any], prefix: str = "run") -> Iterator[str]:
    """`[run]` and the tables in it, keys that are not set included as comments."""
    if prefix in ("run.loads", "run.cost"):
        if prefix == "run.cost":
            yield from (_NEITHER_COST_NOR_LOADS, "")
        return
    yield f"[{prefix}]"
    if prefix == "run.balance":  # its keys are labels, and labels may be any text
        yield from (*tomli_w.dumps(table).splitlines(), "")
        return
    yield from _lines({k: v for k, v in table.items() if not isinstance(v, dict)}, f"{prefix}.")
    for key, example in _RUN_EXAMPLES.items():
        parent, _, name = key.rpartition(".")
        if parent == prefix and name not in table:
            yield from _left_out(key, example)
    yield ""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _run_lines(value, f"{prefix}.{key}")


def _lines(table: dict[str, Any], prefix: str, skip: Sequence[str] = ()) -> Iterator[str]:
    for key, value in table.items():
        if key not in skip:
            yield from _comment(_federation_keys()[f"{prefix}{key}"])
            yield f"{key} = {_value(value)}"


def _left_out(key: str, example: Any) -> Iterator[str]:
    yield from _comment(_federation_keys()[key])
    yield f"# {key.rpartition('.')[2]} = {_value(example)}"


@functools.cache
def _federation_keys() -> dict[str, str]:
    return explained_keys(FederationFile)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + "}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def site_toml(name: str) -> str:
    """`site.toml` with comments."""
    table = as_table(SiteFile(site=name))
    lines = ["# One site. Paths are relative to this file's folder."]
    for key, text in explained_keys(SiteFile).items():
        lines += _comment(text)
        lines.append(f"{key} = {_value(table[key])}" if key in table else f"# {key} = {_value(_SITE_EXAMPLES[key])}")
    return "\n".join(lines) + "\n"


_FEDERATION = """\
# A federation: this file is the same at every site. Change it between runs, copy it to all sites, then restart them.
# The sites listed here are the members of the first run; from then on tramfl members changes who is one.
# Paths are relative to the file's own folder."""

_NEITHER_COST_NOR_LOADS = (
    "# No [run.cost] and no [run.loads]: real sites compute the one from the model and measure the other."
)

_ETCD_EXAMPLES = {
    "authorities": "etcd-ca.crt",
    "certificate": "etcd.crt",
    "key": "etcd.key",
    "user": "tramfl",
    "password_file": "etcd.password",
}
_RUN_EXAMPLES: dict[str, Any] = {
    "run.app": "package.module:app",
    "run.method": "load-aware",
    "run.max_samples_per_round": 500,
    "run.max_round_in_hops": 4.0,
    "run.balance": "population",
    "run.visit_every_rounds": 20,
    "run.accept": {"max_loss_ratio": 3.0, "arrivals": True},
    "run.partition.nodes": 4,
    "run.partition.held": "counts.csv",
    "run.partition.node_of_sample": "nodes.npy",
    "run.partition.shard_size": 100,
    "run.training.schedule_samples": 100000,
    "run.training.clip_norm": 1.0,
    "run.training.calibration": 0.1,
    "run.budget.held_for": 3,
    "run.budget.direction": "lower",
    "run.training.weights": "start.safetensors",
    "run.training.image_size": 48,
    "run.evaluation.test_samples": 2000,
    "run.budget.rounds": 1000,
    "run.budget.seconds": 3600.0,
    "run.budget.samples": 100000,
}
_SITE_EXAMPLES: dict[str, Any] = {
    "listen": "0.0.0.0:7401",
    "compute_share": 0.5,
    "available": "22:00-06:00",
    "samples_per_day": 20_000,
    "etcd_user": "tramfl-NAME-SITE",
    "etcd_password_file": "etcd.password",
    "app": "package.module:app",
    "app_folder": ".",
    "share": 0,
    "data_dir": "data",
    "threads": 2,
}

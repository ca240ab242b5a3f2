"""A new federation on disk: `federation.toml`, the authority, and one folder a site.

The files are written as text, not dumped: their comments are what an operator reads first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w
from msgspec import Struct, field
from msgspec.structs import replace

from tramfl.config import Cost, LoadModel, Scenario, as_table
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

    A path that leads elsewhere is each site's own affair.
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
            yield from (f"# {_COMMENTS['run.cost']}", "")
        return
    yield f"[{prefix}]"
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
            if comment := _COMMENTS.get(f"{prefix}{key}"):
                yield f"# {comment}"
            yield f"{key} = {_value(value)}"


def _left_out(key: str, example: Any) -> Iterator[str]:
    yield f"# {_COMMENTS[key]}"
    yield f"# {key.rpartition('.')[2]} = {_value(example)}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def site_toml(name: str) -> str:
    """`site.toml` with comments."""
    return _SITE.format(name=_value(name), **{k: _value(v) for k, v in as_table(SiteFile(site=name)).items()})


_FEDERATION = """\
# A federation: this file is the same at every site. Change it freely, copy it to all of them, then restart them.
# Paths are relative to the file's own folder."""

_COMMENTS = {
    "lease_seconds": "A site that the register has not heard of for this many seconds counts as gone.",
    "unsafe_rounds": "A holder that trains in place ships a copy after this many rounds that no other site has ...",
    "unsafe_seconds": "... or after this many seconds of such rounds.",
    "load_reply_seconds": "A site that takes longer to say what it can spare is left out of the round.",
    "register.kind": "Where the record of who holds the model lives: sqlite (all sites on one machine) or etcd.",
    "register.path": "The one file that all sites share; absolute, because every site has a copy of this line.",
    "register.endpoints": "Every member of the etcd cluster; use https:// for anything but loopback.",
    "register.timeout_seconds": "How long an answer of the register may take.",
    "register.authorities": "The certificates by which to know etcd; without this, the system's.",
    "register.certificate": "What to show etcd, if it asks for a certificate; put these two files at every site.",
    "register.key": "The certificate's key.",
    "register.user": "etcd's user, if it has authentication on.",
    "register.password_file": "A file with that user's password (chmod 600); the password itself never stands here.",
    "run.dataset": "digits, mnist, fashion-mnist, cifar10, npz:PATH, package.module:object; or each site's `app`.",
    "run.policy": "Who trains next: load-aware, random, time-first, variance-first or tram.",
    "run.seed": "The same seed gives the same first model and the same division of the data.",
    "run.variance_limit": "V: how uneven over labels the samples used so far may be.",
    "run.wait_seconds": "H: how long a round in which nobody trains lasts.",
    "run.partition.layout": "How the data set is divided; plays no part where sites bring data of their own.",
    "run.partition.nodes": "As many as there are sites; the layouts 3, 5, 10 and 5-uneven know it themselves.",
    "run.app": "package.module:app, a tramfl.App for all sites; `app` in a site.toml is a site's own.",
    "run.partition.held": "A CSV file with the samples per node and label: for simulated runs without training.",
    "run.partition.node_of_sample": "own: a file with the number of the node that has each training sample.",
    "run.partition.shard_size": "shard: samples in a shard; without it, as many as shards_per_node leaves.",
    "run.training.schedule_samples": "cosine: samples until the rate is 0; step: samples between two steps.",
    "run.training.clip_norm": "Scale gradients down to this norm where theirs is larger.",
    "run.budget.held_for": "A target is held while the mean of this many tests is at it; the run ends once all are.",
    "run.budget.direction": "Which values of the metric are better: higher or lower.",
    "run.partition.alpha": "dirichlet: small means uneven.",
    "run.partition.shards_per_node": "shard: shards of each site.",
    "run.partition.classes_per_node": "pathological: labels of each site.",
    "run.partition.validation_share": "Part of each label's samples that a site keeps to measure its local loss.",
    "run.cost": "No [run.cost] and no [run.loads]: real sites compute the one from the model and measure the other.",
    "run.training.network": "auto (by data set), digits-mlp, mnist-cnn, resnet18, or package.module:factory.",
    "run.training.weights": "A .safetensors or .pth file to start from.",
    "run.training.image_size": "Scale images to this many pixels per side.",
    "run.training.carry_momentum": "Send the optimiser's state along with the model; the hop grows accordingly.",
    "run.training.device": "auto (CUDA, MPS, CPU) or a PyTorch device.",
    "run.evaluation.every": "Test after every n-th trained round.",
    "run.evaluation.subset": "Test samples looked at first; the full set confirms a target.",
    "run.evaluation.test_samples": "Use at most this many test samples.",
    "run.budget.targets": "Test accuracies; the run ends at the last of them, or at the first limit.",
    "run.budget.rounds": "Limit: rounds.",
    "run.budget.seconds": "Limit: seconds that the rounds took.",
    "run.budget.samples": "Limit: samples trained.",
}

_ETCD_EXAMPLES = {
    "authorities": "etcd-ca.crt",
    "certificate": "etcd.crt",
    "key": "etcd.key",
    "user": "tramfl",
    "password_file": "etcd.password",
}
_RUN_EXAMPLES: dict[str, Any] = {
    "run.app": "package.module:app",
    "run.partition.nodes": 4,
    "run.partition.held": "counts.csv",
    "run.partition.node_of_sample": "nodes.npy",
    "run.partition.shard_size": 100,
    "run.training.schedule_samples": 100000,
    "run.training.clip_norm": 1.0,
    "run.budget.held_for": 3,
    "run.budget.direction": "lower",
    "run.training.weights": "start.safetensors",
    "run.training.image_size": 48,
    "run.evaluation.test_samples": 2000,
    "run.budget.rounds": 1000,
    "run.budget.seconds": 3600.0,
    "run.budget.samples": 100000,
}

_SITE = """\
# One site. Paths are relative to this file's folder.
site = {name}
federation = {federation}
# host:port to listen on, where that is not the address the others use (behind NAT or a proxy).
# listen = "0.0.0.0:7401"

# The folder for weights and history; it needs room for a few copies of the model.
state = {state}
certificate = {certificate}
key = {key}
authorities = {authorities}

# This site's own model and data, a Python object installed here. Without it, the site trains on its share of the
# data set in federation.toml: its number there, unless `share` says otherwise.
# app = "package.module:app"
# share = 0
# Where data sets lie (default: $TRAMFL_DATA, or a cache).
# data_dir = "data"

# How the next round's load is predicted from the past: blend, last, ewma, ar1.
predictor = {predictor}
# Cores to train on; all that are free if not given.
# threads = 2
"""

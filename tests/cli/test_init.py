from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields, replace

from tests.conftest import Cli
from tramfl.config import Cost, LoadModel, Partition, Scenario
from tramfl.runtime.operator.founding import NewFederation, federation_toml, found, loopback_sites, run_for
from tramfl.runtime.settings import (
    FederationFile,
    RegisterSettings,
    SiteEntry,
    SiteFile,
    read_federation,
    read_site,
)
from tramfl.runtime.transport.certificates import describe, unfit
from tramfl.simulation.scenarios import scenario_named, scenario_names

NAMES = ("a", "b", "c")


def test_what_init_writes_reads_back_at_the_operator_and_at_every_site(cli: Cli, tmp_path: Path) -> None:
    assert cli("init", "fed", "--sites", "a,b,c").code == 0
    federation = read_federation(tmp_path / "fed/federation.toml")
    assert federation.names == NAMES
    assert [site.address for site in federation.file.site] == [f"127.0.0.1:{port}" for port in (7401, 7402, 7403)]
    for number, name in enumerate(NAMES):
        site = read_site(tmp_path / f"fed/sites/{name}/site.toml")
        assert (site.number, site.file.site, site.listen) == (number, name, f"127.0.0.1:{7401 + number}")
        assert site.federation.file == federation.file


def test_every_site_has_a_certificate_that_will_do_and_a_key_of_its_own(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a,b", "--addresses", "192.0.2.7:7400,b.example.org:7400")
    keys = set()
    for name, host in (("a", "192.0.2.7"), ("b", "b.example.org")):
        site = read_site(tmp_path / f"fed/sites/{name}/site.toml")
        pems = [site.beside(f).read_bytes() for f in (site.file.certificate, site.file.key, site.file.authorities)]
        assert unfit(pems[0], pems[1], pems[2], name, [host]) == []
        keys.add(pems[1])
    assert len(keys) == 2
    operator = [(tmp_path / "fed" / f).read_bytes() for f in ("operator.crt", "operator.key", "ca.crt")]
    assert unfit(operator[0], operator[1], operator[2], "operator") == []


def test_the_authoritys_key_goes_to_no_site_and_no_key_is_open_to_others(cli: Cli, tmp_path: Path) -> None:
    usual = os.umask(0)
    cli("init", "fed", "--sites", "a,b,c")
    os.umask(usual)
    secret = (tmp_path / "fed/ca.key").read_bytes()
    files = [path for path in (tmp_path / "fed/sites").rglob("*") if path.is_file()]
    assert len(files) == 3 * 5
    assert all(path.read_bytes() != secret for path in files)
    for path in (tmp_path / "fed").rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_all_sites_share_one_sqlite_file_wherever_they_are_started(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a,b,c")
    federations = [read_federation(tmp_path / "fed/federation.toml")]
    federations += [read_site(tmp_path / f"fed/sites/{name}/site.toml").federation for name in NAMES]
    paths = {federation.beside(federation.file.register.path) for federation in federations}
    assert paths == {tmp_path / "fed/register.sqlite"}


def test_the_etcd_register_has_its_endpoints_and_examples_of_the_rest(cli: Cli, tmp_path: Path) -> None:
    members = "https://e1.example.org:2379,https://e2.example.org:2379"
    done = cli("init", "fed", "--sites", "a,b,c", "--register", "etcd", "--endpoints", members)
    assert "[register]" in done.out
    register = read_federation(tmp_path / "fed/federation.toml").file.register
    assert register == RegisterSettings(kind="etcd", endpoints=tuple(members.split(",")))
    text = (tmp_path / "fed/federation.toml").read_text()
    for key in ("authorities", "certificate", "key", "user", "password_file"):
        assert f"\n# {key} = " in text


def test_the_examples_of_etcds_settings_are_right_when_uncommented(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a", "--register", "etcd", "--endpoints", "https://e1:2379")
    path = tmp_path / "fed/federation.toml"
    lines = path.read_text().split("\n")
    path.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in lines))
    register = read_federation(path).file.register
    assert (register.user, register.password_file) == ("tramfl", "etcd.password")


@pytest.mark.parametrize(
    ("sites", "scenario", "layout"),
    [(3, "digits-3", "3"), (5, "digits-5-uneven", "5-uneven"), (10, "digits-10", "10"), (4, "digits-4", "dirichlet")],
)
def test_without_a_scenario_any_number_of_sites_gets_one_that_fits(
    cli: Cli, tmp_path: Path, sites: int, scenario: str, layout: str
) -> None:
    names = ",".join(f"s{n}" for n in range(sites))
    assert cli("init", "fed", "--sites", names, "--format", "json").data["scenario"] == scenario
    run = read_federation(tmp_path / "fed/federation.toml").file.run
    assert run.partition == Partition(layout=layout, nodes=sites if layout == "dirichlet" else None)


def test_a_scenario_for_another_number_of_sites_is_refused_and_nothing_is_written(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a,b,c", "--scenario", "mnist-5").refused("'mnist-5'", "5 nodes", "3 sites")
    assert not (tmp_path / "fed").exists()


def test_a_scenario_file_that_leaves_the_number_open_takes_that_of_the_sites(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('seed = 9\npartition = {layout = "iid"}\nbudget = {rounds = 5}\n')
    assert cli("init", "fed", "--sites", "a,b", "--scenario", "mine.toml").code == 0
    run = read_federation(tmp_path / "fed/federation.toml").file.run
    assert (run.name, run.seed, run.budget.rounds, run.partition.nodes) == ("mine", 9, 5, 2)


@pytest.mark.parametrize("name", scenario_names())
def test_a_written_run_is_the_scenario_but_for_the_virtual_clocks_figures(name: str, tmp_path: Path) -> None:
    scenario = scenario_named(name)
    names = [f"s{n}" for n in range(int(scenario.partition.layout.partition("-")[0]))]
    plan = NewFederation(
        name="fed", site=loopback_sites(names), register=RegisterSettings(), run=run_for(scenario, len(names))
    )
    (tmp_path / "federation.toml").write_text(federation_toml(plan))
    read = read_federation(tmp_path / "federation.toml").file
    assert read.run == replace(scenario, cost=Cost(), loads=LoadModel())


@given(
    name=st.text(min_size=1).filter(lambda text: text.isprintable()),
    seed=st.integers(0, 2**31),
    rate=st.floats(1e-9, 1e9),
    targets=st.lists(st.floats(0, 1)).map(tuple),
)
def test_any_names_and_numbers_survive_the_template(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, rate: float, targets: tuple[float, ...]
) -> None:
    run = Scenario(name=name, seed=seed)
    run = replace(
        run, training=replace(run.training, learning_rate=rate), budget=replace(run.budget, targets=targets)
    )
    plan = NewFederation(name=name, site=loopback_sites(["a"]), register=RegisterSettings(path=f"/{name}"), run=run)
    path = tmp_path_factory.mktemp("any") / "federation.toml"
    path.write_text(federation_toml(plan), encoding="utf-8")
    assert read_federation(path).file == FederationFile(name=name, site=plan.site, register=plan.register, run=run)


def test_every_setting_there_is_appears_in_the_files_set_or_as_an_example(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a,b,c", "--register", "etcd", "--endpoints", "https://e:2379")
    federation, site = ((tmp_path / "fed" / file).read_text() for file in ("federation.toml", "sites/a/site.toml"))
    leaves = {f.name for f in (*fields(FederationFile), *fields(RegisterSettings), *fields(SiteEntry))}
    parts = {f.name for f in fields(Scenario) if isinstance(getattr(Scenario(), f.name), Struct)}
    for part in parts - {"loads", "cost"}:
        leaves |= {f.name for f in fields(type(getattr(Scenario(), part)))}
    leaves |= {f.name for f in fields(Scenario)} - parts
    # Real sites have one model that travels: what nodes with a model each exchange is no setting of theirs.
    for key in leaves - {"site", "register", "run", "path", "exchange"}:
        assert f"\n{key} = " in federation or f"\n# {key} = " in federation, key
    for key in {f.name for f in fields(SiteFile)}:
        assert f"\n{key} = " in site or f"\n# {key} = " in site, key


def test_init_never_overwrites(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a,b,c")
    before = {path: path.read_bytes() for path in (tmp_path / "fed").rglob("*") if path.is_file()}
    cli("init", "fed", "--sites", "d,e,f").refused("federation.toml is there already", "nothing was written")
    assert {path: path.read_bytes() for path in (tmp_path / "fed").rglob("*") if path.is_file()} == before


def test_init_says_what_to_copy_what_to_keep_and_what_to_run_next(cli: Cli) -> None:
    out = cli("init", "my fed", "--sites", "a,b", "--addresses", "h1.example.org:7400,h2.example.org:7500").out
    for words in (
        "my fed/sites/a/",
        "TCP h2.example.org:7500",
        "Keep my fed/ca.key",
        "tramfl preflight 'my fed/sites/a/site.toml'",
        "tramfl node 'my fed/sites/a/site.toml'",
        "tramfl start 'my fed/federation.toml'",
        "sites on several machines need --register etcd",
    ):
        assert words in out, words


def test_init_prints_the_same_as_json_for_other_programs(cli: Cli) -> None:
    printed = cli("init", "fed", "--sites", "a,b", "--format", "json", "--days", 30).data
    assert [site["node"] for site in printed["sites"]] == [f"tramfl node fed/sites/{n}/site.toml" for n in "ab"]
    assert (printed["register"], printed["certificate_days"], printed["here"]) == ("sqlite", 30, True)


def test_the_days_asked_for_are_the_days_given(cli: Cli, tmp_path: Path) -> None:
    cli("init", "fed", "--sites", "a", "--days", 30)
    assert describe((tmp_path / "fed/sites/a/site.crt").read_bytes()).days_left == pytest.approx(30, abs=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sites", "a,B"), ("'B'", "small letters")),
        (("--sites", "a,operator"), ("'operator'",)),
        (("--sites", "a,b,a"), ("'a'", "two sites")),
        (("--sites", ","), ("at least one site",)),
        (("--sites", "a,b", "--addresses", "h:1"), ("1 addresses for 2 sites",)),
        (("--sites", "a", "--addresses", "h"), ("host:port",)),
        (("--sites", "a", "--addresses", "hôte:7400"), ("ASCII",)),
        (("--sites", "a,b", "--addresses", "h:1,h:1"), ("'h:1'", "two sites")),
        (("--sites", "a,b", "--addresses", "h:1,H:01"), ("'H:01'", "two sites")),
        (("--sites", "a,b", "--addresses", "127.0.0.1:7401,127.0.0.1:07401"), ("'127.0.0.1:07401'", "two sites")),
        (("--sites", "a,b", "--addresses", "[::1]:7401,[0::1]:7401"), ("'[0::1]:7401'", "two sites")),
        (("--sites", "a", "--addresses", "::1:18461"), ("'::1:18461'", "in brackets", "[2001:db8::7]:7400")),
        (("--sites", "a", "--addresses", "[::1:7401"), ("'[::1:7401'", "in brackets")),
        (("--sites", "a", "--addresses", "[h]:7401"), ("'[h]:7401'", "in brackets")),
        (("--sites", "a", "--addresses", "h:٧٤"), ("host:port",)),
        (("--sites", "a", "--register", "etcd"), ("--endpoints",)),
        (("--sites", "a", "--register", "paper"), ("sqlite",)),
        (("--sites", "a", "--endpoints", "https://e:2379"), ("--register etcd",)),
        (("--sites", "a", "--register", "etcd", "--endpoints", "e:2379"), ("https://host:2379",)),
        (("--sites", "a", "--scenario", "nothing-5"), ("nothing-5",)),
        (("--sites", "a", "--name", "n" * 65), ("name for a federation",)),
        ((), ("--sites",)),
    ],
)
def test_what_cannot_be_a_federation_is_refused_before_anything_is_written(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    cli("init", "fed", *options).refused(*words)
    assert not (tmp_path / "fed").exists()


def test_init_without_the_extra_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for module in ("transport.certificates", "operator.founding"):
        monkeypatch.delitem(sys.modules, f"tramfl.runtime.{module}", raising=False)
        monkeypatch.delattr(f"tramfl.runtime.{module}", raising=False)
    cli("init", "fed", "--sites", "a").refused("pip install 'tramfl[runtime]'")
    cli("scenarios", "show", "digits-5")


def test_a_federation_founded_by_a_program_is_the_same_as_one_by_the_command(cli: Cli, tmp_path: Path) -> None:
    cli("init", "one", "--sites", "a,b,c", "--name", "fed")
    run = run_for(scenario_named("digits-3"), 3)
    found(
        NewFederation(name="fed", site=loopback_sites(NAMES), register=RegisterSettings(), run=run), tmp_path / "two"
    )
    one, two = ((tmp_path / place / "federation.toml").read_text() for place in ("one", "two"))
    assert one.replace("/one/", "/two/") == two


def test_what_etcd_asks_for_lies_beside_every_federation_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("an authority")
    (tmp_path / "word").write_text("secret")
    etcd = ("--register", "etcd", "--endpoints", "https://192.0.2.1:2379", "--etcd-ca", tmp_path / "ca.pem")
    user = ("--etcd-user", "u", "--etcd-password", "word")
    assert cli("init", tmp_path / "f", "--sites", "a,b,c", *etcd, *user).code == 0
    for place in (tmp_path / "f", *(tmp_path / "f" / "sites" / name for name in "abc")):
        register = read_federation(place / "federation.toml").file.register
        assert (register.authorities, register.user, register.password_file) == ("etcd-ca.crt", "u", "etcd.password")
        assert (place / "etcd-ca.crt").read_text() == "an authority"
        assert (place / "etcd.password").read_text() == "secret"
        assert (place / "etcd.password").stat().st_mode & 0o077 == 0


def test_etcds_options_are_refused_where_they_make_no_sense(cli: Cli, tmp_path: Path) -> None:
    etcd = ("--register", "etcd", "--endpoints", "https://192.0.2.1:2379")
    cli("init", tmp_path / "f", "--sites", "a", "--etcd-user", "u").refused("add --register etcd")
    cli("init", tmp_path / "f", "--sites", "a", *etcd, "--etcd-user", "u").refused("both or neither")
    cli("init", tmp_path / "f", "--sites", "a", *etcd, "--etcd-ca", "missing.crt").refused("missing.crt")
    assert not (tmp_path / "f").exists()

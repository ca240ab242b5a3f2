from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import Cli
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.settings import read_federation, read_site
from tramfl.runtime.transport.certificates import Authority, describe, key_fits, unfit


@pytest.fixture
def fed(cli: Cli, tmp_path: Path) -> Path:
    """A federation of two sites."""
    assert cli("init", "fed", "--sites", "a,b", "--addresses", "192.0.2.7:7400,192.0.2.8:7400").code == 0
    return tmp_path / "fed"


def fits(folder: Path, name: str, *hosts: str) -> bool:
    pems = [(folder / "sites" / name / file).read_bytes() for file in ("site.crt", "site.key", "ca.crt")]
    return unfit(pems[0], pems[1], pems[2], name, hosts) == []


def test_a_new_site_gets_a_folder_that_works_where_its_address_is_given(cli: Cli, fed: Path) -> None:
    before = (fed / "federation.toml").read_bytes()
    assert cli("cert", "issue", "fed", "c", "--address", "192.0.2.9:7400").code == 0
    assert (fed / "federation.toml").read_bytes() == before
    assert fits(fed, "c", "192.0.2.9")
    assert read_site(fed / "sites/c/site.toml").address == "192.0.2.9:7400"


def test_issue_says_which_folder_to_copy_and_which_lines_to_add(cli: Cli, fed: Path) -> None:
    out = cli("cert", "issue", "fed", "c").out
    assert "Copy fed/sites/c/ to site c." in out
    assert '[[site]]\nname = "c"\naddress = "host:port"\n' in out


def test_a_site_that_is_listed_gets_a_certificate_for_its_address(cli: Cli, fed: Path) -> None:
    with (fed / "federation.toml").open("a") as file:
        file.write('[[site]]\nname = "c"\naddress = "c.example.org:7400"\n')
    assert cli("cert", "issue", "fed", "c").out == "Copy fed/sites/c/ to site c.\n"
    assert fits(fed, "c", "c.example.org")
    assert read_federation(fed / "sites/c/federation.toml").names == ("a", "b", "c")


def test_a_new_site_gets_what_the_register_asks_for(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("an authority")
    (tmp_path / "word").write_text("secret")
    etcd = ("--register", "etcd", "--endpoints", "https://192.0.2.1:2379", "--etcd-ca", "ca.pem")
    assert cli("init", "fed", "--sites", "a", *etcd, "--etcd-user", "u", "--etcd-password", "word").code == 0
    fed = tmp_path / "fed"
    text = (fed / "federation.toml").read_text().replace("etcd-ca.crt", "etcd/ca.crt")
    more = 'certificate = "/etc/etcd/site.crt"\nkey = "etcd.key"\n'
    (fed / "federation.toml").write_text(text.replace("[register]\n", f"[register]\n{more}"))
    (fed / "etcd").mkdir()
    (fed / "etcd-ca.crt").rename(fed / "etcd/ca.crt")
    done = cli("cert", "issue", "fed", "b", "--address", "192.0.2.9:7400")
    assert "names and fed does not have: etcd.key\n" in done.out
    assert (fed / "sites/b/etcd/ca.crt").read_text() == "an authority"
    assert (fed / "sites/b/etcd.password").read_text() == "secret"
    assert (fed / "sites/b/etcd.password").stat().st_mode & 0o077 == 0
    assert {path.name for path in (fed / "sites/b").iterdir()} == {
        *(path.name for path in (fed / "sites/a").iterdir() if path.name != "etcd-ca.crt"),
        "etcd",
    }
    (fed / "etcd.key").write_text("a key")
    assert cli("cert", "issue", "fed", "c", "--format", "json").data["missing"] == []
    assert (fed / "sites/c/etcd.key").read_text() == "a key"


def test_issue_never_replaces_what_a_site_has(cli: Cli, fed: Path) -> None:
    cli("cert", "issue", "fed", "a").refused("is there already", "tramfl cert renew fed a")
    cli("cert", "issue", "fed", "operator").refused("'operator'")
    cli("cert", "issue", "nowhere", "c").refused("nowhere/federation.toml", "no such file")


def test_a_wrong_address_leaves_no_folder_behind(cli: Cli, fed: Path) -> None:
    cli("cert", "issue", "fed", "c", "--address", "c.example.org").refused("host:port")
    cli("cert", "issue", "fed", "c", "--address", "hôte:7400").refused("ASCII")
    assert not (fed / "sites/c").exists()


def test_without_the_authoritys_key_nothing_is_issued(cli: Cli, fed: Path) -> None:
    (fed / "ca.key").unlink()
    cli("cert", "issue", "fed", "c").refused("ca.key", "No such file")
    cli("cert", "renew", "fed", "a").refused("ca.key", "No such file")
    assert not (fed / "sites/c").exists()


def test_a_renewed_certificate_lasts_longer_with_the_key_the_site_has(cli: Cli, fed: Path) -> None:
    before = (fed / "sites/a/site.crt").read_bytes()
    out = cli("cert", "renew", "fed", "a", "--days", 500).out
    after = (fed / "sites/a/site.crt").read_bytes()
    assert describe(after).days_left > describe(before).days_left + 130
    assert key_fits(before, (fed / "sites/a/site.key").read_bytes())
    assert fits(fed, "a", "192.0.2.7")
    assert "fed/sites/a/site.crt" in out
    assert "site.key" not in out


def test_a_site_can_be_renewed_though_its_key_is_no_longer_here(cli: Cli, fed: Path) -> None:
    key = (fed / "sites/a/site.key").read_bytes()
    (fed / "sites/a/site.key").unlink()
    assert cli("cert", "renew", "fed", "a").code == 0
    assert key_fits((fed / "sites/a/site.crt").read_bytes(), key)


def test_a_site_that_moved_is_renewed_for_where_it_is_now(cli: Cli, fed: Path) -> None:
    path = fed / "federation.toml"
    path.write_text(path.read_text().replace("192.0.2.7", "192.0.2.77"))
    cli("cert", "renew", "fed", "a")
    assert describe((fed / "sites/a/site.crt").read_bytes()).names == ("a", "192.0.2.77")


def test_a_new_key_is_made_only_when_asked_for(cli: Cli, fed: Path) -> None:
    before = (fed / "sites/a/site.key").read_bytes()
    printed = cli("cert", "renew", "fed", "a", "--new-key", "--format", "json").data
    assert printed["copy"] == ["fed/sites/a/site.crt", "fed/sites/a/site.key"]
    assert (fed / "sites/a/site.key").read_bytes() != before
    assert fits(fed, "a", "192.0.2.7")


def test_all_are_renewed_at_once_the_operator_included(cli: Cli, fed: Path) -> None:
    printed = cli("cert", "renew", "fed", "--all", "--days", 500, "--format", "json").data
    assert printed["renewed"] == ["operator", "a", "b"]
    for file in ("operator.crt", "sites/a/site.crt", "sites/b/site.crt"):
        assert describe((fed / file).read_bytes()).days_left > 499


def test_renew_refuses_whom_it_does_not_know(cli: Cli, fed: Path) -> None:
    cli("cert", "renew", "fed", "z").refused("'z'", "operator, a, b")
    cli("cert", "renew", "fed").refused("--all")


def test_renew_refuses_a_certificate_of_another_authority(cli: Cli, fed: Path) -> None:
    (fed / "sites/a/site.crt").write_bytes(Authority.create("other").issue("a").certificate_pem)
    cli("cert", "renew", "fed", "a").refused("not of this authority")


def test_show_lists_every_certificate_with_its_end_and_its_key(cli: Cli, fed: Path) -> None:
    done = cli("cert", "show", "fed")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "fed/ca.crt",
        "fed/operator.crt",
        "fed/sites/a/site.crt",
        "fed/sites/b/site.crt",
    ]
    assert all(" fits " in line for line in lines[1:])
    assert f"{datetime.now(UTC) + timedelta(days=365):%Y-%m-%d}" in lines[2]


def test_show_prints_the_same_as_json_for_other_programs(cli: Cli, fed: Path) -> None:
    shown = cli("cert", "show", "fed/sites/a/site.crt", "--format", "json").data
    assert len(shown) == 1
    info = describe((fed / "sites/a/site.crt").read_bytes())
    assert (shown[0]["name"], shown[0]["fingerprint"]) == ("a", info.fingerprint)
    assert (shown[0]["key_fits"], shown[0]["issued_by_authority"], shown[0]["problems"]) == (True, True, [])


def test_a_certificate_alone_is_shown_without_being_called_wrong(cli: Cli, fed: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.crt").write_bytes((fed / "sites/a/site.crt").read_bytes())
    done = cli("cert", "show", "alone.crt")
    assert done.code == 0
    assert "not here" in done.out


def _expire(fed: Path) -> None:
    then = datetime.now(UTC) - timedelta(days=400)
    Authority.load(fed).issue("a", now=then).save(fed / "sites/a/site.crt", fed / "sites/a/site.key")


def _swap_keys(fed: Path) -> None:
    (fed / "sites/a/site.key").write_bytes((fed / "sites/b/site.key").read_bytes())


def _other_authority(fed: Path) -> None:
    Authority.create("other").issue("a").save(fed / "sites/a/site.crt", fed / "sites/a/site.key")


def _other_site(fed: Path) -> None:
    for file in ("site.crt", "site.key"):
        (fed / "sites/a" / file).write_bytes((fed / "sites/b" / file).read_bytes())


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (_expire, "expired on"),
        (_swap_keys, "site.key is not its key"),
        (_other_authority, "did not issue it"),
        (_other_site, "for 'b', and the site beside it is 'a'"),
    ],
)
def test_show_ends_with_1_and_says_why_when_a_certificate_will_not_do(
    cli: Cli, fed: Path, break_it: object, words: str
) -> None:
    assert callable(break_it)
    break_it(fed)
    done = cli("cert", "show", "fed")
    assert done.code == 1
    assert words in done.out
    assert cli("cert", "show", "fed", "--format", "json").code == 1
    assert cli("cert", "show", "fed/sites/b/site.crt").code == 0


def test_show_says_when_it_is_time_to_renew(cli: Cli, fed: Path) -> None:
    cli("cert", "renew", "fed", "a", "--days", 20)
    assert cli("cert", "show", "fed").out.count("(renew)") == 1


def test_show_refuses_what_is_no_certificate(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "site.crt").write_text("hello")
    cli("cert", "show", "empty").refused("no certificates")
    cli("cert", "show", "site.crt").refused("site.crt is no certificate")
    cli("cert", "show", "missing.crt").refused("missing.crt", "No such file")


def test_the_authority_of_etcd_beside_ours_is_no_problem(cli: Cli, tmp_path: Path) -> None:
    cli("init", "other", "--sites", "x")
    (tmp_path / "etcd.password").write_text("secret")
    words = ("--endpoints", "https://e:2379", "--etcd-ca", "other/ca.crt", "--etcd-user", "t")
    cli("init", "fed", "--sites", "a,b", "--register", "etcd", *words, "--etcd-password", "etcd.password")
    shown = cli("cert", "show", "fed")
    assert (shown.code, "did not issue" in shown.out) == (0, False), shown


@pytest.fixture
def near(cli: Cli, tmp_path: Path) -> Path:
    """A federation of two sites on this machine, none of which runs."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    assert cli("init", "near", "--sites", "a,b", "--addresses", addresses).code == 0
    return tmp_path / "near"


def test_a_certificate_that_is_revoked_while_no_site_answers_is_shown_as_revoked(cli: Cli, near: Path) -> None:
    unknown = cli("cert", "revoke", "nobody", "--federation", "near/federation.toml")
    assert (unknown.code, "no certificate was issued to 'nobody' here" in unknown.err) == (2, True)
    done = cli("cert", "revoke", "b", "--federation", "near/federation.toml")
    assert (done.code, "no site answers, so no site knows yet that 'b' is revoked" in done.err) == (2, True)
    shown = cli("cert", "show", "near")
    assert (shown.code, "near/sites/b/site.crt: It was revoked on" in shown.out) == (1, True)
    assert "near/sites/a/site.crt: It was revoked" not in shown.out
    assert "add --new-key" in cli("cert", "renew", "near", "b").err
    assert cli("cert", "renew", "near", "b", "--new-key").code == 0
    assert cli("cert", "show", "near").code == 0
    (near / "ca.key").unlink()
    assert "ca.key cannot be read" in cli("cert", "revoke", "b", "--federation", "near/federation.toml").err


def test_a_rotation_names_the_files_to_copy_and_ends_once_all_are_renewed(cli: Cli, near: Path) -> None:
    begun = cli("cert", "rotate", "near")
    assert "near/sites/a/ca.crt" in begun.out
    assert "tramfl cert rotate near --finish" in begun.out
    assert cli("cert", "show", "near").code == 0
    early = cli("cert", "rotate", "near", "--finish")
    assert (early.code, "renew operator, a, b first" in early.err) == (2, True)
    assert cli("cert", "renew", "near", "--all").code == 0
    done = cli("cert", "rotate", "near", "--finish", "--format", "json").data
    assert done == {"finished": True, "copy": ["near/sites/a/ca.crt", "near/sites/b/ca.crt"]}
    assert (near / "past-authorities.crt").exists()
    assert cli("cert", "show", "near").code == 0
    assert "no rotation is under way" in cli("cert", "rotate", "near", "--finish").err

"""An etcd user for each site, on a real etcd with authentication: what the site can do, and what a thief can."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import Cli
from tests.runtime.etcd import EtcdCluster
from tests.runtime.federations import LONG_LEASE, patient_register
from tests.runtime.registers.stories import begun, next_round
from tests.runtime.sites import Log, played
from tramfl.circulation.custody import first_record
from tramfl.notation import BadInput
from tramfl.runtime.operator.etcd_users import user_of
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.registers import ABSENT, CheckedRegister, Silent
from tramfl.runtime.registers.contract import Register
from tramfl.runtime.registers.etcd import keys_of
from tramfl.runtime.registers.etcd_gateway import text
from tramfl.runtime.registers.records import stored
from tramfl.runtime.settings import read_site
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import PROTOCOL

KEYS = keys_of("fed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Authentication is on; there is no user but root, and another federation's key."""
    with EtcdCluster(tmp_path_factory.mktemp("users"), members=1, tls=True) as found:
        for path, body in (
            ("kv/put", {"key": text("tramfl/federation/record"), "value": text("another's")}),
            ("auth/user/add", {"name": "root", "password": "of all"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/enable", {}),
        ):
            assert found.ask(path, body).status_code == 200
        yield found


@pytest.fixture
def fed(cluster: EtcdCluster, cli: Cli, tmp_path: Path) -> Path:
    """A federation whose sites have a user each, as an operator makes them, and no record."""
    assert cluster.ask("kv/deleterange", {"key": text(KEYS.record)}, token=_root(cluster)).status_code == 200
    (tmp_path / "root.password").write_text("of all\n")
    options = ("--register", "etcd", "--endpoints", cluster.endpoints[0], "--etcd-ca", cluster.authority)
    assert cli("init", "fed", "--sites", "0,1", *options).code == 0
    for file in (tmp_path / "fed").rglob("federation.toml"):
        # No test waits until a lease has run out, and a busy machine takes long to run a command meanwhile.
        file.write_text(file.read_text().replace("lease_seconds = 5.0\n", f"lease_seconds = {LONG_LEASE}\n"))
    done = cli("etcd", "users", "fed", "--root-password", "root.password")
    assert done.code == 0, done
    return tmp_path / "fed"


def register_of(fed: Path, name: str) -> Register:
    return patient_register(read_site(fed / "sites" / name / "site.toml").federation, name)


class Thief:
    """Has the etcd password of site 0, and asks etcd itself."""

    def __init__(self, cluster: EtcdCluster, fed: Path) -> None:
        password = (fed / "sites/0/etcd.password").read_text().strip()
        self._cluster = cluster
        self.signed_in = cluster.ask("auth/authenticate", {"name": user_of("fed", "0"), "password": password})
        self._token = self.signed_in.json().get("token")

    def may(self, path: str, body: dict[str, Any]) -> bool:
        answer = self._cluster.ask(path, body, token=self._token)
        assert answer.status_code == 200 or "permission denied" in answer.text or "invalid auth" in answer.text
        return answer.status_code == 200

    def may_write(self, key: str) -> bool:
        return self.may("kv/put", {"key": text(key), "value": text("x")})


@played
async def test_a_site_with_a_user_of_its_own_can_do_all_that_a_site_does(fed: Path) -> None:
    site, other = register_of(fed, "0"), register_of(fed, "1")
    try:
        await site.join()
        await other.join()
        await site.renew()
        before = await other.look()
        assert before.alive == {"0", "1"}
        news = asyncio.create_task(other.changed(before, 60.0))
        swapped = await site.swap(before.versioned.revision if before.versioned else ABSENT, begun(), b"row")
        assert swapped is not None
        assert (await news).versioned == swapped
        assert await other.swap(swapped.revision, next_round(swapped.record), b"next") is not None
        await other.note("run", 1, b"note")
        assert await site.rows("run", 0, 1) == [b"row", b"next"]
        assert await site.notes("run", 0, 1) == {1: b"note"}
        await site.announce_revoked(b"list")
        assert (await other.look()).revoked == b"list"
        await site.leave()
        assert (await other.look()).alive == {"1"}
    finally:
        await site.close()
        await other.close()


@played
async def test_a_stolen_password_reaches_record_and_rounds_and_no_more(fed: Path, cluster: EtcdCluster) -> None:
    other = register_of(fed, "1")
    await other.join()
    thief, span = Thief(cluster, fed), {"key": text(KEYS.prefix), "range_end": text("tramfl/fed0")}
    kv = cluster.ask("kv/range", {"key": text(KEYS.alive("1"))}, token=_root(cluster)).json()["kvs"][0]
    may = {
        "read": thief.may("kv/range", span),
        "record": thief.may_write(KEYS.record),
        "row": thief.may_write(KEYS.round("row", "run", 1)),
        "list": thief.may_write(KEYS.revoked),
        "own lease": thief.may_write(KEYS.alive("0")),
        "other's lease": thief.may_write(KEYS.alive("1")),
        "delete other's lease": thief.may("kv/deleterange", {"key": text(KEYS.alive("1"))}),
        "end other's lease": thief.may("lease/revoke", {"ID": kv["lease"]}),
        "other key": thief.may_write(f"{KEYS.prefix}z"),
        "read another federation": thief.may("kv/range", {"key": text("tramfl/federation/record")}),
        "write another federation": thief.may_write("tramfl/federation/record"),
        "users": thief.may("auth/user/list", {}),
    }
    allowed = {"read", "record", "row", "list", "own lease"}
    assert {what for what, can in may.items() if can} == allowed
    await other.renew()
    await other.close()


def _root(cluster: EtcdCluster) -> str:
    return str(cluster.ask("auth/authenticate", {"name": "root", "password": "of all"}).json()["token"])


@played
async def test_what_a_thief_of_the_password_writes_in_place_of_the_record_is_ignored(
    fed: Path, cluster: EtcdCluster, tmp_path: Path
) -> None:
    log, site = Log(), read_site(fed / "sites/1/site.toml")
    credentials = site_credentials(site, False)
    assert credentials is not None
    register = CheckedRegister(register_of(fed, "1"), tmp_path / "record", log, SiteSeal("1", credentials))
    await register.join()
    first = replace(first_record("signed", 1, "a" * 64, (0, 1), 2), protocol=PROTOCOL)
    good = await register.swap(ABSENT, first, b"row")
    assert good is not None
    assert (await register.look()).versioned == good
    forged = stored(replace(first, status="stopped"))
    assert Thief(cluster, fed).may("kv/put", {"key": text(KEYS.record), "value": text(forged)})
    with pytest.raises(Silent, match="the record there is not signed; the last good record stands"):
        await register.look()
    repaired = await register.repair()
    assert repaired is not None
    assert (repaired.record, repaired.by) == (first, "1")
    assert await register.rows("signed", 0, 9) == [b"row"]
    await register.close()


@played
async def test_a_removed_user_is_refused_where_it_is_signed_in(fed: Path, cluster: EtcdCluster, cli: Cli) -> None:
    site, thief = register_of(fed, "0"), Thief(cluster, fed)
    await site.join()
    done = await asyncio.to_thread(cli, "etcd", "remove", "fed", "0", "--root-password", "root.password")
    assert done.code == 0, done
    assert not thief.may("kv/range", {"key": text(KEYS.record)})
    with pytest.raises(Silent):
        await site.look()
    await site.close()
    again = await asyncio.to_thread(cli, "etcd", "remove", "fed", "0", "--root-password", "root.password")
    assert (again.code, "etcd has no user" in again.err) == (2, True)


@played
async def test_a_site_signs_in_with_a_new_password_while_it_runs(fed: Path, cluster: EtcdCluster, cli: Cli) -> None:
    site, thief, file = register_of(fed, "0"), Thief(cluster, fed), fed / "sites/0/etcd.password"
    await site.join()
    old = file.read_text()
    file.unlink()
    done = await asyncio.to_thread(cli, "etcd", "users", "fed", "0", "--root-password", "root.password")
    assert done.code == 0, done
    new = file.read_text()
    assert not thief.may("kv/range", {"key": text(KEYS.record)})
    file.write_text(old)  # the new one is not copied to the site yet
    with pytest.raises(Silent, match="invalid user ID or password"):
        await site.look()
    file.unlink()
    with pytest.raises(Silent, match=r"etcd\.password cannot be read"):
        await site.look()
    file.write_text(new)
    assert "0" in (await site.look()).alive  # another test's site may still have its lease in this cluster
    await site.close()


def test_passwords_are_private_stay_the_same_and_are_named_in_the_site_file(fed: Path, cli: Cli) -> None:
    site = fed / "sites/0"
    password = (site / "etcd.password").read_bytes()
    assert stat.S_IMODE((site / "etcd.password").stat().st_mode) == 0o600
    assert password != (fed / "sites/1/etcd.password").read_bytes()
    done = cli("etcd", "users", "fed", "--root-password", "root.password")
    assert "fed/sites/0/etcd.password" in done.out
    assert (site / "etcd.password").read_bytes() == password
    settings = read_site(site / "site.toml")
    assert settings.federation.file.register.user == "tramfl-fed-0"
    text_ = (site / "site.toml").read_text()
    assert text_.count("etcd_user =") == 1
    (site / "site.toml").write_text(text_.replace("etcd_password_file", "# etcd_password_file"))
    with pytest.raises(BadInput, match="`etcd_user` and `etcd_password_file` belong together"):
        read_site(site / "site.toml")


def test_users_are_made_for_sites_of_an_etcd_with_the_password_of_root(fed: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("wrong")
    for options, reason in (
        (("fed", "--root-password", "wrong"), "invalid user ID or password"),
        (("fed", "--root-password", "missing"), "missing cannot be read"),
        (("fed", "nobody", "--root-password", "root.password"), "make it with tramfl cert issue fed nobody"),
    ):
        done = cli("etcd", "users", *options)
        assert (done.code, reason in done.err) == (2, True), done
    assert cli("init", "plain", "--sites", "a").code == 0
    assert "register.kind is 'sqlite'" in cli("etcd", "users", "plain", "--root-password", "root.password").err

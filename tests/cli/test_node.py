"""Files that do not show who a site, or the operator, is: one sentence that names them, before anything is tried."""

from __future__ import annotations

import resource
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.conftest import Cli
from tramfl.cli.node import _raise_file_limit
from tramfl.runtime.transport.certificates import Authority


@pytest.fixture
def fed(cli: Cli, tmp_path: Path) -> Path:
    """A federation of two sites that never start."""
    assert cli("init", "fed", "--sites", "a,b").code == 0
    return tmp_path / "fed"


def copy(to: Path, *names: str) -> None:
    for name in names:
        (to.parent / "a" / name).write_bytes((to / name).read_bytes())


def another_sites_key(fed: Path) -> None:
    copy(fed / "sites/b", "site.key")


def another_sites_files(fed: Path) -> None:
    copy(fed / "sites/b", "site.key", "site.crt")


def another_authoritys(fed: Path) -> None:
    Authority.create("fed").issue("a").save(fed / "sites/a/site.crt", fed / "sites/a/site.key")


def empty_certificate(fed: Path) -> None:
    (fed / "sites/a/site.crt").write_bytes(b"")


def junk_authority(fed: Path) -> None:
    (fed / "sites/a/ca.crt").write_text("-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n")


def encrypted_key(fed: Path) -> None:
    path = fed / "sites/a/site.key"
    secret = serialization.BestAvailableEncryption(b"a word")
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))


def expired(fed: Path) -> None:
    then = datetime.now(UTC) - timedelta(days=400)
    Authority.load(fed).issue("a", now=then).save(fed / "sites/a/site.crt", fed / "sites/a/site.key")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (another_sites_key, ("sites/a/site.crt", "sites/a/site.key", "key does not belong", "tramfl cert")),
        (another_sites_files, ("sites/a/site.crt", "is for 'b', not for 'a'", "tramfl cert")),
        (another_authoritys, ("sites/a/site.crt", "sites/a/ca.crt", "None of the authorities issued")),
        (empty_certificate, ("sites/a/site.crt is no certificate",)),
        (junk_authority, ("sites/a/ca.crt: the authorities are no certificates",)),
        (encrypted_key, ("sites/a/site.key is a key with a password; use one without",)),
        (expired, ("sites/a/site.crt", "expired on", "tramfl cert")),
    ],
)
def test_a_site_does_not_start_with_files_that_do_not_show_who_it_is(
    cli: Cli, fed: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    spoil(fed)
    cli("node", fed / "sites/a/site.toml").refused(*words)
    cli("status", fed / "sites/a/site.toml").refused(*words)
    assert not (fed / "sites/a/state").exists()


def test_an_operator_with_a_sites_certificate_is_refused_in_words(cli: Cli, fed: Path) -> None:
    (fed / "operator.crt").write_bytes((fed / "sites/a/site.crt").read_bytes())
    (fed / "operator.key").write_bytes((fed / "sites/a/site.key").read_bytes())
    cli("status", fed / "federation.toml").refused("fed/operator.crt", "is for 'a', not for 'operator'")


def test_an_operators_key_that_is_another_is_named(cli: Cli, fed: Path) -> None:
    (fed / "operator.key").write_bytes((fed / "sites/a/site.key").read_bytes())
    cli("start", fed / "federation.toml").refused("fed/operator.key", "key does not belong")


def test_a_site_may_open_as_many_files_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
    try:
        _raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

from __future__ import annotations

import contextlib
import importlib
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tramfl.circulation.soundness import SITE_NAME
from tramfl.notation import BadInput
from tramfl.runtime.transport.certificates import (
    SKEW,
    Authority,
    Issued,
    describe,
    issued_by,
    key_fits,
    out_of_date,
    unfit,
)

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)
AUTHORITY = Authority.create("trial", now=NOW)
SITE = AUTHORITY.issue("a", ("192.0.2.7", "a.example.org"), now=NOW)


def shake_hands(folder: Path, authority: Authority, server: Issued, client: Issued, name: str) -> str:
    """Both ends of a TLS connection, in memory; gives the common name that the server sees."""
    contexts = []
    for side, issued in ((ssl.PROTOCOL_TLS_SERVER, server), (ssl.PROTOCOL_TLS_CLIENT, client)):
        issued.save(folder / "site.crt", folder / "site.key")
        context = ssl.SSLContext(side)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.certificate_pem.decode())
        context.load_cert_chain(folder / "site.crt", folder / "site.key")
        contexts.append(context)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        contexts[0].wrap_bio(there, back, server_side=True),
        contexts[1].wrap_bio(back, there, server_hostname=name),
    )
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    seen = ends[0].getpeercert()
    assert seen is not None
    return dict(pair for part in seen["subject"] for pair in part)["commonName"]  # type: ignore[misc]


@pytest.mark.parametrize("called", ["a", "a.example.org", "192.0.2.7"])
def test_two_sites_know_each_other_by_name_and_by_every_host(tmp_path: Path, called: str) -> None:
    authority = Authority.create("trial")
    server, client = authority.issue("a", ("192.0.2.7", "a.example.org")), authority.issue("b")
    assert shake_hands(tmp_path, authority, server, client, called) == "b"


def test_a_site_with_the_authoritys_own_name_is_still_distinguished_from_it(tmp_path: Path) -> None:
    authority = Authority.create("a")
    assert shake_hands(tmp_path, authority, authority.issue("a"), authority.issue("b"), "a") == "b"


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize("wrong", ["other authority", "expired", "not yet valid"])
def test_a_handshake_fails_with_a_certificate_that_will_not_do(tmp_path: Path, side: str, wrong: str) -> None:
    authority = Authority.create("trial")
    now = datetime.now(UTC)
    bad = {
        "other authority": Authority.create("trial").issue("a"),
        "expired": authority.issue("a", days=1, now=now - timedelta(days=2)),
        "not yet valid": authority.issue("a", now=now + timedelta(days=2)),
    }[wrong]
    good = authority.issue("a")
    ends = (bad, good) if side == "server" else (good, bad)
    with pytest.raises(ssl.SSLError):
        shake_hands(tmp_path, authority, *ends, "a")


def test_a_handshake_fails_when_the_peer_is_another_site(tmp_path: Path) -> None:
    authority = Authority.create("trial")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, authority, authority.issue("b"), authority.issue("c"), "a")


def test_a_certificate_says_who_it_is_for_and_until_when() -> None:
    info = describe(SITE.certificate_pem, NOW)
    assert (info.name, info.issuer, info.authority) == ("a", "trial", False)
    assert info.names == ("a", "a.example.org", "192.0.2.7")
    assert info.not_before == NOW - SKEW
    assert info.days_left == 365
    assert len(info.fingerprint) == 64


def test_an_authority_lasts_ten_years_and_no_certificate_outlasts_it() -> None:
    info = describe(AUTHORITY.certificate_pem, NOW)
    assert (info.authority, info.days_left) == (True, 3650)
    late = NOW + timedelta(days=3600)
    assert describe(AUTHORITY.issue("b", now=late).certificate_pem).not_after == info.not_after
    with pytest.raises(BadInput, match="the authority expired on 2040"):
        AUTHORITY.issue("b", now=NOW + timedelta(days=3651))


def test_an_authority_read_back_issues_what_the_first_one_would(tmp_path: Path) -> None:
    AUTHORITY.save(tmp_path / "new")
    again = Authority.load(tmp_path / "new")
    assert again.certificate_pem == AUTHORITY.certificate_pem
    assert issued_by(again.issue("b", now=NOW).certificate_pem, AUTHORITY.certificate_pem)


def test_nobody_else_may_read_a_key(tmp_path: Path) -> None:
    (tmp_path / "site.key").write_text("an earlier key, open to all")
    (tmp_path / "site.key.part").write_text("what a crash left")
    SITE.save(tmp_path / "site.crt", tmp_path / "site.key")
    AUTHORITY.save(tmp_path)
    for name in ("site.key", "ca.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert key_fits((tmp_path / "site.crt").read_bytes(), (tmp_path / "site.key").read_bytes())


def test_a_renewed_certificate_has_the_same_key_and_names_and_lasts_longer() -> None:
    later = NOW + timedelta(days=300)
    renewed = AUTHORITY.renew(SITE.certificate_pem, now=later)
    before, after = describe(SITE.certificate_pem), describe(renewed)
    assert key_fits(renewed, SITE.key_pem)
    assert (after.name, after.names) == (before.name, before.names)
    assert after.not_after == before.not_after + timedelta(days=300)
    assert after.serial != before.serial


def test_a_certificate_of_another_authority_is_not_renewed() -> None:
    with pytest.raises(BadInput, match="not of this authority"):
        Authority.create("trial").renew(SITE.certificate_pem)


def test_a_sound_certificate_is_not_called_unfit() -> None:
    assert unfit(SITE.certificate_pem, SITE.key_pem, AUTHORITY.certificate_pem, "a", ["192.0.2.7"], NOW) == []


def test_one_of_several_authorities_is_enough() -> None:
    both = Authority.create("new").certificate_pem + AUTHORITY.certificate_pem
    assert issued_by(SITE.certificate_pem, both)


def test_an_address_is_the_same_however_it_is_written() -> None:
    site = AUTHORITY.issue("a", ("2001:db8::1",), now=NOW)
    spelt = ["2001:0db8:0:0::1"]
    assert unfit(site.certificate_pem, site.key_pem, AUTHORITY.certificate_pem, "a", spelt, NOW) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_pem": AUTHORITY.issue("a", now=NOW).key_pem}, "key does not belong"),
        ({"authorities_pem": Authority.create("trial", now=NOW).certificate_pem}, "None of the authorities"),
        ({"authorities_pem": SITE.certificate_pem}, "None of the authorities"),
        ({"name": "b"}, "is for 'a', not for 'b'"),
        ({"hosts": ["192.0.2.8"]}, "does not name 192.0.2.8"),
        ({"now": NOW + timedelta(days=366)}, "expired on 2031-05-01"),
        ({"now": NOW - timedelta(days=1)}, "is the clock right?"),
    ],
)
def test_each_thing_wrong_with_a_certificate_is_named(change: dict[str, object], words: str) -> None:
    sound: dict[str, object] = {
        "certificate_pem": SITE.certificate_pem,
        "key_pem": SITE.key_pem,
        "authorities_pem": AUTHORITY.certificate_pem,
        "name": "a",
        "now": NOW,
    }
    (found,) = unfit(**{**sound, **change})  # type: ignore[arg-type]
    assert words in found


def test_an_authoritys_certificate_is_no_sites() -> None:
    authority = Authority.create("a", now=NOW)
    found = " ".join(unfit(authority.certificate_pem, SITE.key_pem, authority.certificate_pem, "a", now=NOW))
    assert "an authority's, not a site's" in found


@given(days=st.floats(0.1, 400), elapsed=st.floats(-10, 500))
def test_a_certificate_is_out_of_date_exactly_outside_its_days(days: float, elapsed: float) -> None:
    now = NOW + timedelta(days=elapsed)
    info = describe(AUTHORITY.issue("a", days=days, now=NOW).certificate_pem, now)
    valid = info.not_before <= now <= info.not_after
    assert (out_of_date(info, now) is None) == valid
    assert (info.days_left >= 0) == (now <= info.not_after)


@settings(max_examples=30)
@given(st.from_regex(SITE_NAME, fullmatch=True))
def test_every_name_a_site_may_have_fits_into_a_certificate(name: str) -> None:
    info = describe(AUTHORITY.issue(name, now=NOW).certificate_pem, NOW)
    assert info.name == name
    assert info.names == (name,)


@given(
    st.binary(max_size=200) | st.builds(lambda a, b: SITE.certificate_pem[:a] + b, st.integers(0, 600), st.binary())
)
def test_bytes_that_are_no_certificate_are_bad_input_and_never_a_crash(content: bytes) -> None:
    for read in (
        lambda: describe(content, NOW),
        lambda: key_fits(SITE.certificate_pem, content),
        lambda: issued_by(SITE.certificate_pem, content),
    ):
        with contextlib.suppress(BadInput):
            read()


def test_a_missing_or_foreign_key_of_the_authority_is_named(tmp_path: Path) -> None:
    AUTHORITY.save(tmp_path)
    (tmp_path / "ca.key").write_bytes(SITE.key_pem)
    with pytest.raises(BadInput, match=r"ca\.key is not the key of .*ca\.crt"):
        Authority.load(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(BadInput, match=r"ca\.key cannot be read: No such file"):
        Authority.load(tmp_path)


def test_a_sites_certificate_cannot_pass_for_an_authority(tmp_path: Path) -> None:
    SITE.save(tmp_path / "ca.crt", tmp_path / "ca.key")
    with pytest.raises(BadInput, match="not the certificate of an authority"):
        Authority.load(tmp_path)


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "tramfl.runtime.transport.certificates")
    with pytest.raises(BadInput, match=r"pip install 'tramfl\[runtime\]'"):
        importlib.import_module("tramfl.runtime.transport.certificates")

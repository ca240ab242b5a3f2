"""Records are signed: a site that can write to the register cannot write in another's name."""

from __future__ import annotations

import contextlib
import sqlite3
import ssl
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.runtime.registers.stories import LONG, story
from tests.runtime.sites import Log, federation
from tramfl.circulation.custody import Entry, Record, Versioned, first_record
from tramfl.notation import BadInput, Ledger
from tramfl.runtime.registers import ABSENT, CheckedRegister, Silent
from tramfl.runtime.registers.checked import REPLACE_SECONDS
from tramfl.runtime.registers.records import (
    NOTE,
    RECORD,
    ROW,
    Sealed,
    Unsealed,
    opened_round,
    round_content,
    sealed_round,
    stored,
)
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Credentials
from tramfl.runtime.transport.certificates import Authority
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import PROTOCOL

NAMES = ("ash", "birch", "cedar")
MEMBERS = tuple(Entry(name, f"127.0.0.1:{n + 1}") for n, name in enumerate(NAMES))
FIRST = replace(first_record("run", 0, "a" * 64, (0, 1), 2, MEMBERS), protocol=PROTOCOL)
LATER = 4e9


def trained(record: Record, digest: str = "b", at: float = 1.0) -> Record:
    """The record with one round more."""
    ledger = Ledger((record.ledger.used[0] + 3, 4), record.ledger.seconds + 2.0, record.round + 1)
    return replace(record, ledger=ledger, weights=replace(record.weights, digest=digest * 64, since=at, copies=(0,)))


class Sites:
    """Sites of one federation, each with a certificate, and the register file that they share."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.authority = folder, Log(), Authority.create("ours")
        self.rosters = {name: Roster(federation(NAMES)) for name in NAMES}

    def credentials(self, name: str, authority: Authority | None = None) -> Credentials:
        issued = (authority or self.authority).issue(name)
        return Credentials(self.authority.certificate_pem, issued.certificate_pem, issued.key_pem)

    def seal(self, name: str, authority: Authority | None = None) -> SiteSeal:
        return SiteSeal(name, self.credentials(name, authority), self.rosters[name])

    def raw(self, name: str) -> SqliteRegister:
        return SqliteRegister(self.folder / "register.sqlite", name, LONG, 60.0)

    async def site(self, name: str) -> CheckedRegister:
        site = CheckedRegister(self.raw(name), self.folder / f"{name}.msgpack", self.log, self.seal(name))
        await site.join()
        return site

    def content(self) -> bytes:
        with sqlite3.connect(self.folder / "register.sqlite") as db:
            return bytes(db.execute("SELECT content FROM record").fetchone()[0])

    def overwrite(self, content: bytes) -> int:
        """As who may write to the register can; the revision afterwards."""
        with sqlite3.connect(self.folder / "register.sqlite") as db:
            db.execute("UPDATE record SET revision = revision + 1, content = ?", (content,))
            return int(db.execute("SELECT revision FROM record").fetchone()[0])

    def signed(self, name: str, record: Record, after: int, authority: Authority | None = None) -> bytes:
        content = msgspec.msgpack.encode((after, stored(record)))
        return self.seal(name, authority).seal(RECORD, content)


async def begun(folder: Path) -> tuple[Sites, CheckedRegister, Versioned]:
    """A federation whose site ash holds; birch's view of the record."""
    sites = Sites(folder)
    ash, birch = await sites.site("ash"), await sites.site("birch")
    first = await ash.swap(ABSENT, FIRST)
    assert first is not None
    assert (await birch.look()).versioned == first
    second = await ash.swap(first.revision, trained(FIRST))
    assert second is not None
    assert (second.by, second.after) == ("ash", first.revision)
    assert (await birch.look()).versioned == second
    await ash.close()
    return sites, birch, second


async def ignored(site: CheckedRegister, sites: Sites, good: Versioned, reason: str) -> None:
    with pytest.raises(Silent, match=reason):
        await site.look()
    assert site.good == good
    assert reason in sites.log.lines[-1]["reason"]
    repaired = await site.repair()
    assert repaired is not None
    assert (repaired.record, repaired.by) == (good.record, site.records.seal.me if site.records.seal else "")
    assert (await site.look()).versioned == repaired


@story
async def test_a_record_without_a_signature_or_of_another_authority_is_ignored(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    next_ = trained(good.record, "c")
    sites.overwrite(stored(next_))
    await ignored(birch, sites, good, "the record there is not signed")
    good = birch.good or good
    sites.overwrite(sites.signed("ash", next_, good.revision, Authority.create("ours")))
    await ignored(birch, sites, good, "an authority that is trusted no more")
    await birch.close()


@story
async def test_another_members_change_cannot_be_forged(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    next_ = trained(good.record, "c")
    # Cedar shows ash's certificate, and has no key of it.
    genuine = msgspec.msgpack.decode(sites.content(), type=Sealed)
    forged = msgspec.msgpack.decode(sites.signed("cedar", next_, good.revision), type=Sealed)
    sites.overwrite(msgspec.msgpack.encode(replace(forged, certificate=genuine.certificate)))
    await ignored(birch, sites, good, "is not what ash signed")
    good = birch.good or good
    # Cedar signs in its own name what only the holder may do, and then builds on it.
    sites.overwrite(sites.signed("cedar", next_, good.revision))
    with pytest.raises(Silent, match="cedar changed what only the holder, ash, may change"):
        await birch.look()
    bad = good.revision + 1
    sites.overwrite(sites.signed("cedar", replace(next_, status="paused"), bad))
    await ignored(birch, sites, good, f"it builds on revision {bad}, which was ignored")
    await birch.close()


@story
async def test_a_takeover_goes_on_from_weights_that_the_run_has(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    for taken in (trained(good.record, "c"), replace(good.record, ledger=FIRST.ledger)):
        sites.overwrite(sites.signed("cedar", replace(taken, epoch=2, holder=2), good.revision))
        await ignored(birch, sites, good, "cedar began epoch 2 with weights or a ledger that the run did not have")
        good = birch.good or good
    await birch.close()


@story
async def test_an_old_record_of_the_right_site_cannot_be_put_back(tmp_path: Path) -> None:
    sites, birch, second = await begun(tmp_path)
    old = sites.content()
    paused = await birch.swap(second.revision, replace(second.record, status="paused"))
    assert paused is not None
    cedar = await sites.site("cedar")
    assert (await cedar.look()).versioned == paused
    sites.overwrite(old)
    await ignored(cedar, sites, paused, f"it was made for revision {second.after}")
    await birch.close()
    await cedar.close()


@story
async def test_what_a_revoked_site_signs_is_ignored_and_what_was_good_before_stays_good(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    for roster in sites.rosters.values():
        roster.revoke({"ash": LATER})
    assert (await birch.look()).versioned == good
    await birch.close()
    again = await sites.site("birch")
    assert (await again.look()).versioned == good, "this site believed it before it was revoked"
    sites.overwrite(sites.signed("ash", trained(good.record, "c"), good.revision))
    with pytest.raises(Silent, match="is signed by ash, whose certificate is revoked"):
        await again.look()
    now = (await again.look()).versioned
    assert now is not None
    assert (now.record, now.by) == (replace(good.record, epoch=2, holder=None), "birch"), "the holder is deposed"
    await again.close()


@story
async def test_a_site_that_missed_some_records_replaces_that_of_a_revoked_site_later(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    missed = sites.overwrite(sites.signed("ash", trained(good.record, "c"), good.revision))
    sites.overwrite(sites.signed("ash", trained(trained(good.record, "c"), "d"), missed))
    sites.rosters["birch"].revoke({"ash": LATER})
    with pytest.raises(Silent, match="is signed by ash, whose certificate is revoked"):
        await birch.look()
    birch._rejected_at -= REPLACE_SECONDS
    with pytest.raises(Silent):
        await birch.look()
    now = (await birch.look()).versioned
    assert now is not None
    assert now.record == replace(good.record, epoch=2, holder=None)
    await birch.close()


@story
async def test_a_takeover_and_a_change_of_status_may_be_any_members(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    cedar = await sites.site("cedar")
    paused = await cedar.swap(good.revision, replace(good.record, status="paused"))
    assert (await birch.look()).versioned == paused
    assert paused is not None
    taken = await cedar.swap(paused.revision, replace(paused.record, epoch=2, holder=2))
    assert (await birch.look()).versioned == taken
    assert not [line for line in sites.log.lines if line["event"] == "record-ignored"]
    await birch.close()
    await cedar.close()


@story
async def test_rows_and_notes_count_only_if_a_member_signed_them_for_this_run_and_round(tmp_path: Path) -> None:
    sites, birch, good = await begun(tmp_path)
    raw, ash = sites.raw("cedar"), sites.seal("ash")
    next_ = trained(good.record, "c")
    assert await birch.swap(good.revision, replace(next_, epoch=2, holder=1), b"row of 2") is not None
    await birch.note("run", 2, b"note of 2")
    assert await birch.rows("run", 0, 9) == [b"row of 2"]
    assert await birch.notes("run", 0, 9) == {2: b"note of 2"}
    (kept,), notes = await birch.sealed("run", 0, 9)
    assert opened_round(sites.seal("cedar"), ROW, "run", kept, NAMES) == (b"row of 2", 2, "birch")
    assert round_content(kept) == b"row of 2"
    await raw.note("run", 3, b"not signed")
    await raw.note("run", 4, notes[2])
    await raw.note("run", 5, sealed_round(ash, NOTE, "another run", 5, b"x"))
    await raw.note("run", 6, sealed_round(ash, NOTE, "run", 6, b"of 6"))
    await raw.note("run", 7, sealed_round(ash, ROW, "run", 7, b"x"))
    assert await birch.notes("run", 0, 9) == {2: b"note of 2", 6: b"of 6"}
    reasons = [line["reason"] for line in sites.log.lines if line["event"] == "row-ignored"]
    assert reasons == [
        "a note of run run is not signed",
        "a note of run run is of run another run",
        "a note of run run is not what ash signed",
    ]
    await birch.close()
    await raw.close()


def test_a_signature_is_good_for_one_purpose_and_one_content(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    ash, birch = sites.seal("ash"), sites.seal("birch")
    sealed = ash.seal(ROW, b"content")
    assert birch.opened(ROW, sealed, NAMES) == (b"content", "ash")
    found = msgspec.msgpack.decode(sealed, type=Sealed)
    for purpose, wrong, known, reason in (
        (RECORD, found, NAMES, "is not what ash signed"),
        (ROW, replace(found, content=b"other"), NAMES, "is not what ash signed"),
        (ROW, replace(found, signature=b""), NAMES, "is not what ash signed"),
        (ROW, replace(found, certificate=b"x"), NAMES, "is not signed by a site"),
        (ROW, found, ("birch",), "'ash' is no site of this federation"),
    ):
        with pytest.raises(Unsealed, match=reason):
            birch.opened(purpose, msgspec.msgpack.encode(wrong), known)
    for nonsense in (b"", b"\xff", b"{}", b"\x91" * 2000):
        with pytest.raises(Unsealed, match="is not signed"):
            birch.opened(ROW, nonsense, NAMES)


@pytest.mark.filterwarnings("ignore::UserWarning")  # cryptography's, of serial numbers that are not positive
def test_a_seal_with_any_bytes_changed_is_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    """A hostile member makes certificates as it likes; some bytes of them are beyond what the library reads."""
    sites, rng = Sites(tmp_path), Random(11)
    reader = sites.seal("birch")
    genuine = msgspec.msgpack.decode(sites.seal("ash").seal(ROW, b"content"), type=Sealed)
    own = msgspec.msgpack.decode(sites.seal("ash", Authority.create("ours")).seal(ROW, b"content"), type=Sealed)
    for turn in range(3000):
        found = (genuine, own)[turn % 2]
        der = bytearray(ssl.PEM_cert_to_DER_cert(found.certificate.decode()))
        for _ in range(rng.randrange(1, 4)):
            der[rng.randrange(len(der))] = rng.randrange(256)
        changed = replace(found, certificate=ssl.DER_cert_to_PEM_cert(bytes(der)).encode())
        with contextlib.suppress(Unsealed):
            opened = reader.opened(ROW, msgspec.msgpack.encode(changed), NAMES)
            assert bytes(der) == ssl.PEM_cert_to_DER_cert(genuine.certificate.decode()), opened


def test_a_new_certificate_signs_only_once_its_key_is_there(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    files: Any = tuple(tmp_path / name for name in ("ca.crt", "site.crt", "site.key"))

    def put(credentials: Credentials, *which: int) -> None:
        for n in which:
            files[n].write_bytes(credentials.now[n])

    old, new = sites.credentials("ash"), sites.credentials("ash")
    put(old, 0, 1, 2)
    own = Credentials.from_files(*files)
    seal, reader = SiteSeal("ash", own), sites.seal("birch")
    for step, certificate in (((1,), old), ((2,), new)):
        put(new, *step)
        own.look_again()
        sealed = seal.seal(ROW, b"content")
        assert msgspec.msgpack.decode(sealed, type=Sealed).certificate == certificate.now.certificate
        assert reader.opened(ROW, sealed, NAMES).by == "ash"


def test_a_key_that_cannot_sign_is_named() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(BadInput, match="use one on an elliptic curve"):
        SiteSeal("ash", Credentials(b"", b"", key)).seal(ROW, b"")

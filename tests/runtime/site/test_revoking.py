"""Revoked certificates: real sites of one process refuse them, wherever the list comes from."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path

import pytest

from tests.runtime.memory import Memory, MemoryView
from tests.runtime.sites import ASK, SECONDS, Log, Trial, federation, played
from tests.runtime.together import Together
from tramfl.notation import BadInput
from tramfl.runtime.operator import certifying
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import OPERATOR, read_site
from tramfl.runtime.site.revoking import Revocations
from tramfl.runtime.transport import Credentials, Peers, Refusal
from tramfl.runtime.transport.certificates import Authority, describe
from tramfl.runtime.transport.revocations import RevocationList, list_in, read_list, signed_list

LATER = time.time() + 3600


def test_a_list_counts_only_with_the_signature_of_an_authority_that_is_trusted() -> None:
    ours, another = Authority.create("ours"), Authority.create("another")
    revoked = RevocationList().with_name("b", 5.0)
    assert read_list(signed_list(ours, revoked), ours.certificate_pem) == revoked
    assert read_list(signed_list(ours, revoked), another.certificate_pem + ours.certificate_pem) == revoked
    assert read_list(signed_list(another, revoked), ours.certificate_pem) is None
    for wrong in (b"", b"\xff", signed_list(ours, revoked)[:-1], signed_list(ours, revoked).replace(b"b", b"c")):
        assert read_list(wrong, ours.certificate_pem) is None


def test_a_name_is_refused_up_to_the_moment_and_no_longer() -> None:
    revoked = RevocationList().with_name("b", 100.0)
    assert [revoked.refuses("b", issued) for issued in (99.0, 100.0, 101.0)] == [True, True, False]
    assert not revoked.refuses("a", 0.0)


@played
async def test_an_open_connection_and_a_call_under_way_end_with_the_certificate(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    roster = Roster(trial.federation)
    trial.server._roster = roster
    async with trial:
        peers = trial.peers()
        assert (await peers.load(1, ASK, SECONDS)).held == (5, 5)
        trial.host.hold = asyncio.Event()
        sending = asyncio.create_task(peers.send(1, trial.consignment(), trial.model, lambda _: None))
        while not trial.host.arrivals:
            await asyncio.sleep(0.01)
        roster.revoke({"ash": LATER})
        trial.host.hold.set()
        with pytest.raises(Refusal, match="the certificate of ash is revoked"):
            await sending
        with pytest.raises(Refusal, match="the certificate of ash is revoked"):
            await peers.load(1, ASK, SECONDS)
        assert {line["reason"] for line in trial.log.refusals()} == {"the certificate of ash is revoked"}
        other = trial.peers("cedar")
        assert (await other.load(1, ASK, SECONDS)).held == (5, 5)
        await other.close()
        await peers.close()


def credentials(folder: Path, authority: Authority, name: str) -> Credentials:
    issued = authority.issue(name)
    folder.mkdir(exist_ok=True)
    return Credentials(authority.certificate_pem, issued.certificate_pem, issued.key_pem)


@played
async def test_a_newer_list_goes_back_into_the_register_and_an_older_or_forged_one_changes_nothing(
    tmp_path: Path,
) -> None:
    ours, memory, log = Authority.create("ours"), Memory(), Log()
    own, register = credentials(tmp_path, ours, "ash"), MemoryView(memory, "ash", 1.0)
    older = RevocationList().with_name("birch", LATER)
    newer = older.with_name("cedar", LATER)

    def revocations() -> tuple[Revocations, Roster]:
        roster = Roster(federation())
        return Revocations("ash", own, roster, register, tmp_path, log), roster

    site, roster = revocations()
    assert not roster.is_barred("cedar")
    await site.follow(signed_list(ours, newer))
    assert roster.is_revoked("cedar", 0.0)
    for wrong in (
        b"",
        b"nonsense",
        signed_list(ours, older),
        signed_list(Authority.create("x"), newer.with_name("ash")),
    ):
        memory.revoked = wrong
        await site.follow(wrong)
        assert read_list(memory.revoked, ours.certificate_pem) == newer
        site.check()
    with pytest.raises(BadInput, match="list 2 of revoked certificates is here, and this is 1"):
        await site.take(signed_list(ours, older))
    with pytest.raises(BadInput, match="not signed by the federation's authority"):
        await site.take(b"nonsense")

    restarted, roster = revocations()
    assert roster.is_barred("cedar"), "the list is on the site's disk"
    roster.show("cedar", LATER + 1)
    restarted.check()
    restarted, roster = revocations()
    assert not roster.is_barred("cedar"), "the site has shown a newer certificate"
    await restarted.take(signed_list(ours, newer.with_name("ash")))
    with pytest.raises(BadInput, match=r"the certificate of site 'ash' was revoked on .*--new-key"):
        restarted.check()


@played
async def test_a_revoked_holder_is_refused_and_replaced_and_comes_back_with_a_new_certificate(tmp_path: Path) -> None:
    async with Together(tmp_path / "f").begun() as sites:
        record = await sites.record()
        revoked = record.name_of(record.holder)
        assert revoked is not None
        place = sites.folder / "sites" / revoked
        stolen = site_credentials(read_site(place / "site.toml"), False)
        with pytest.raises(BadInput, match="no certificate was issued to 'nobody' here"):
            await certifying.revoke(sites.hand, sites.folder, "nobody")

        message = await certifying.revoke(sites.hand, sites.folder, revoked)
        others = [name for name in sites.names if name != revoked]
        assert f"{', '.join(others)} refuse them." in message
        thief = Peers(Roster(read_site(place / "site.toml").federation), revoked, stolen)
        for name in others:
            with pytest.raises(Refusal, match=f"the certificate of {revoked} is revoked"):
                await thief.load(sites.names.index(name), ASK, SECONDS)
        await thief.close()
        with pytest.raises(BadInput, match=f"the certificate of site '{revoked}' was revoked on"):
            await sites.tasks.pop(revoked)
        await sites.advanced(3)
        status = await sites.hand.status()
        assert [site.site for site in status.sites if site.revoked] == [revoked]
        assert any(sentence.startswith(f"Certificates issued to {revoked} until") for sentence in status.revocations)
        shown = {one.path: one.problems for one in certifying.inspect(place)}
        assert shown[str(place / "site.crt")][0].startswith("It was revoked on")

        with pytest.raises(BadInput, match="add --new-key"):
            certifying.renew(sites.folder, [revoked], 365, new_key=False)
        certifying.renew(sites.folder, [revoked], 365, new_key=True)
        assert not any(one.problems for one in certifying.inspect(place))
        sites.logs[revoked] = io.BytesIO()
        sites.start(revoked)
        await sites.until(lambda: bool(sites.events(revoked, "joined")))
        status = await sites.status(lambda seen: all(site.answers for site in seen.sites))
        assert not any(site.revoked for site in status.sites)
        assert not status.revocations

        message = await certifying.revoke(sites.hand, sites.folder, OPERATOR)
        assert f"{', '.join(sites.names)} refuse them." in message
        refused = await sites.status(lambda seen: not seen.answering)
        assert all("the certificate of operator is revoked" in (site.why_not or "") for site in refused.sites)
        certifying.renew(sites.folder, [OPERATOR], 365, new_key=True)
        own = (sites.folder / "operator.crt").read_bytes()
        moments = newest(sites.folder)
        assert describe(own).issued > moments[OPERATOR]


def newest(folder: Path) -> dict[str, float]:
    found = read_list(list_in(folder), (folder / "ca.crt").read_bytes())
    assert found is not None
    return found.moments

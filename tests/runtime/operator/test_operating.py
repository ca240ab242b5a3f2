"""What an operator sees of a run, and what it does where the run moves on, or a transfer breaks, meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.runtime.sites import federation
from tramfl.circulation.custody import Entry, Record, Versioned, first_record
from tramfl.cli.status import print_status
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.record import AuditEntry
from tramfl.runtime.operator.federation_status import FederationStatus, SiteStatus
from tramfl.runtime.operator.operating import Operator
from tramfl.runtime.registers.contract import Standing
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import Order, OrderResult, SiteReport

OLD, NEW = "0" * 64, "1" * 64


class Sites:
    """Sites as an operator reaches them: all say the same record, and only the weights in `given` can be had."""

    def __init__(self, records: list[Record], given: Digest | None, broken: bytes | None = None) -> None:
        self.records, self.given, self.broken = records, given, broken
        self.fetched: list[tuple[NodeId, Digest]] = []

    async def order(self, node: NodeId, order: Order, seconds: float) -> OrderResult:
        record = self.records[0]
        standing = Standing(Versioned(record, 1 + len(self.fetched)), frozenset({"ash", "birch"}))
        return OrderResult(True, "here", record=msgspec.msgpack.encode(standing))

    async def fetch(
        self, node: NodeId, digest: Digest, to: Path, progress: Callable[[int], None], most: int | None
    ) -> None:
        self.fetched.append((node, digest))
        part = to.with_name(f"{to.name}.{digest[:12]}.part")
        part.write_bytes(self.broken or b"")
        if self.broken:
            raise Unreachable("the line is dead")
        if digest != self.given:
            self.records = self.records[1:] or self.records
            raise Refusal("they are not here")
        part.rename(to)


def fetch(sites: Sites, to: Path) -> Digest:
    async def work() -> Digest:
        hand = Operator(federation(("ash", "birch")), "operator", None)
        hand._peers = sites  # type: ignore[assignment]
        record = (await hand.fetch(to, lambda _: None)).record
        assert record is not None
        return record.safe.digest

    return asyncio.run(work())


def record_of(digest: Digest) -> Record:
    return first_record("trial", 0, digest, (0, 1), 2, (Entry("ash"), Entry("birch")))


def test_a_trail_comes_whole_in_short_answers_and_one_that_is_not_given_is_named() -> None:
    lines = [msgspec.json.encode(AuditEntry(float(n), "trained", "trial", 1, n, OLD, None, "ash")) for n in range(7)]

    class Trails(Sites):
        async def order(self, node: NodeId, order: Order, seconds: float) -> OrderResult:
            if order.what != "audit":
                return await super().order(node, order, seconds)
            if node == 1:
                raise Refusal("the message is too large")
            return OrderResult(True, "3 entries", audit=tuple(lines[: 7 - order.round][-3:]))

    async def work() -> tuple[list[AuditEntry], list[str]]:
        hand = Operator(federation(("ash", "birch")), "operator", None)
        hand._peers = Trails([record_of(OLD)], None)  # type: ignore[assignment]
        return await hand.audit(await hand.status()), hand.unread_trails

    trail, unread = asyncio.run(work())
    assert [entry.round for entry in trail] == list(range(7))
    assert unread == ["the audit trail of birch was not read: the message is too large."]


def test_a_member_that_is_removed_is_the_last_that_is_asked_to_do_it() -> None:
    asked: list[NodeId] = []

    class Busy(Sites):
        async def order(self, node: NodeId, order: Order, seconds: float) -> OrderResult:
            if order.what == "status":
                return await super().order(node, order, seconds)
            asked.append(node)
            raise Unreachable("it is gone")

    async def work() -> None:
        hand = Operator(federation(("ash", "birch")), "operator", None)
        hand._peers = Busy([record_of(OLD)], None)  # type: ignore[assignment]
        with pytest.raises(BadInput, match="it is gone"):
            await hand.order(Order("remove-member", site="ash"))

    asyncio.run(work())
    assert asked == [1, 0]


def test_weights_that_a_run_has_left_behind_are_not_asked_for_again(tmp_path: Path) -> None:
    sites = Sites([record_of(OLD), record_of(OLD), record_of(NEW)], given=NEW)
    stale = tmp_path / f"model.{OLD[:12]}.part"
    stale.write_bytes(b"of an earlier fetch")
    assert fetch(sites, tmp_path / "model") == NEW
    assert sites.fetched == [(0, OLD), (1, OLD), (0, NEW)]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_weights_that_nobody_can_give_are_asked_for_once_of_everybody(tmp_path: Path) -> None:
    sites = Sites([record_of(OLD)], given=None)
    with pytest.raises(BadInput, match=r"round 0 lie at ash, birch, and cannot be fetched \(birch: they are not"):
        fetch(sites, tmp_path / "model")
    assert sites.fetched == [(0, OLD), (1, OLD)]
    assert not list(tmp_path.iterdir())


def test_what_has_come_of_a_broken_transfer_is_kept_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"of an earlier pull")
    sites = Sites([record_of(OLD)], given=None, broken=b"half of it")
    with pytest.raises(BadInput, match="the line is dead"):
        fetch(sites, tmp_path / "model")
    assert (tmp_path / f"model.{OLD[:12]}.part").read_bytes() == b"half of it"
    assert (tmp_path / "model").read_bytes() == b"of an earlier pull"


# When a run rests.

STOPPED = replace(record_of(OLD), status="stopped")


def status(record: Record, *doing: str, revision: int = 5, **changes: Any) -> FederationStatus:
    """A federation in which all sites have seen the same record."""
    sites = tuple(
        SiteStatus(
            site=name,
            address="",
            alive=True,
            answers=True,
            report=SiteReport(site=name, doing=what),
            revision=revision,
        )
        for name, what in zip("abc", doing, strict=False)
    )
    return replace(FederationStatus(federation="f", record=record, revision=revision, sites=sites), **changes)


def with_site(status: FederationStatus, number: int, **changes: Any) -> FederationStatus:
    sites = list(status.sites)
    sites[number] = replace(sites[number], **changes)
    return replace(status, sites=tuple(sites))


AT_REST = status(STOPPED, "halted", "following", "following")


def test_a_run_that_is_paused_or_stopped_with_its_weights_at_two_sites_rests() -> None:
    assert AT_REST.rests
    assert status(replace(STOPPED, status="paused"), "halted", "following", "following").rests
    assert not replace(AT_REST, record=replace(STOPPED, status="running")).rests
    assert not replace(AT_REST, record=None).rests
    assert not replace(AT_REST, record=replace(STOPPED, holder=None)).rests


@pytest.mark.parametrize(
    "phase", ["joining", "gathering", "deciding", "waiting", "sending", "training", "storing", "swapping"]
)
def test_a_site_with_something_in_hand_keeps_a_run_from_rest(phase: str) -> None:
    assert not status(STOPPED, phase, "following", "following").rests
    assert not status(STOPPED, "halted", phase, "following").rests


def test_a_report_that_is_older_than_the_newest_record_is_no_sign_of_rest() -> None:
    assert not with_site(AT_REST, 0, revision=4).rests
    assert with_site(AT_REST, 1, revision=4).rests, "only the holder moves a run on"


def test_a_holder_that_does_not_answer_may_still_move_the_run_on() -> None:
    assert not with_site(AT_REST, 0, report=None, answers=False, revision=None).rests


def test_weights_that_are_tested_and_an_end_that_is_still_to_be_recorded_keep_a_run_from_rest() -> None:
    for number, work in ((0, "testing"), (2, "testing"), (1, "finishing")):
        report = AT_REST.sites[number].report
        assert report is not None
        assert not with_site(AT_REST, number, report=replace(report, beside=(work,))).rests


def test_weights_at_one_site_alone_are_waited_for_while_another_site_could_take_them() -> None:
    alone = replace(STOPPED, weights=replace(STOPPED.weights, digest=NEW, copies=(0,)))
    found = replace(AT_REST, record=alone)
    assert not found.rests
    gone: dict[str, Any] = {"report": None, "answers": False, "revision": None}
    found = with_site(with_site(found, 1, **gone), 2, **gone)
    assert not found.rests, "their leases have not run out"
    assert with_site(with_site(found, 1, alive=False), 2, alive=False).rests


def test_a_stop_after_a_round_in_which_nobody_trained_is_rest() -> None:
    skipped = replace(STOPPED, ledger=STOPPED.ledger.after((0, 0), 1.0))
    assert skipped.round > skipped.safe.round
    assert replace(AT_REST, record=skipped).rests


# Versions of sites.


def with_versions(*versions: tuple[str, int] | None) -> FederationStatus:
    found = AT_REST
    for number, version in enumerate(versions):
        report = found.sites[number].report
        assert report is not None
        changed = replace(report, version=version[0], protocol=version[1]) if version is not None else None
        found = with_site(found, number, report=changed, answers=version is not None)
    return found


def test_sites_of_one_version_need_no_word_about_it() -> None:
    assert with_versions(("1.0", 1), ("1.0", 1), ("1.0", 1)).mixed_versions is None
    assert with_versions(("1.0", 1), None, ("1.0", 1)).mixed_versions is None
    assert with_versions(None, None, None).mixed_versions is None


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ((("1.0", 1), ("1.1", 1), ("1.0", 1)), "b has tramfl 1.1 (protocol 1); a, c have tramfl 1.0 (protocol 1)."),
        ((("1.0", 2), ("1.0", 1), ("1.0", 1)), "a has tramfl 1.0 (protocol 2); b, c have tramfl 1.0 (protocol 1)."),
        (
            (("", 0), ("1.0", 1), None),
            "a has a tramfl that does not report its version (protocol not reported); b has",
        ),
    ],
)
def test_a_site_whose_version_or_protocol_differs_is_named(
    versions: tuple[tuple[str, int] | None, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = with_versions(*versions)
    assert said in (found.mixed_versions or "")
    print_status(found, [], None)
    assert said in capsys.readouterr().out
    print_status(AT_REST, [], None)
    assert "version" not in capsys.readouterr().out


def test_status_says_who_leaves_whom_out_and_until_which_round(capsys: pytest.CaptureFixture[str]) -> None:
    found = with_site(AT_REST, 0, report=SiteReport(site="a", doing="halted", left_out={"c": 1234}))
    print_status(found, [], None)
    assert "a leaves c out until round 1,234 at least: it failed." in capsys.readouterr().out


def test_status_says_where_the_weights_are_that_no_site_has_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    record = replace(STOPPED, status="running", weights=replace(STOPPED.weights, digest=NEW, copies=(1,)))

    def shown(*copies: Digest, doing: str = "following") -> str:
        report = SiteReport(site="a", doing=doing, run=record.run, copies=copies)
        gone: dict[str, Any] = {"report": None, "answers": False}
        found = with_site(with_site(status(record, *["following"] * 3), 1, **gone), 2, **gone)
        print_status(with_site(found, 0, report=report), [], None)
        return capsys.readouterr().out

    assert "No site that answers has the newest weights (of round 0, at b) or the safe ones" in shown("2" * 64)
    for copies, doing in (((NEW,), "following"), ((record.safe.digest,), "following"), ((), "joining")):
        assert "No site that answers has" not in shown(*copies, doing=doing)


def test_status_names_both_places_of_a_site_as_the_site_or_as_others_say(capsys: pytest.CaptureFixture[str]) -> None:
    seen = {"c": ("north", "south"), "nobody": ("x", "y")}
    report = SiteReport(site="a", doing="halted", twins=seen)
    found = with_site(AT_REST, 0, report=report)
    print_status(found, [], None)
    out = capsys.readouterr().out
    assert "Site c was started at two places, as a saw: north and south." in out
    assert "nobody" not in out, "it is no site"
    own = SiteReport(site="c", doing="following", twin="north", place="south")
    print_status(with_site(found, 2, report=own), [], None)
    assert "Site c was started at two places: north and south." in capsys.readouterr().out

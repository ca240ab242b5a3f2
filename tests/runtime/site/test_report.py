"""A site's report is one snapshot: what it is doing, and the record that this belongs to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from tests.runtime.sites import federation
from tramfl.circulation.custody import Record, Versioned, first_record
from tramfl.circulation.phases import Backoff, Following, Halted, Limits, Phase, State
from tramfl.notation import ModelCost
from tramfl.runtime.registers.contract import Standing
from tramfl.runtime.site.report import Reporter
from tramfl.runtime.weights import Manifest

FIRST = first_record("run", 0, "w0", (0, 1), labels=2)
LATER = replace(FIRST, ledger=FIRST.ledger.after((1, 1), 1.0), status="stopped")
ALIVE = frozenset({"0", "1"})


def reporter(
    news: Versioned | None, phase: Phase, seen: Versioned | None, busy: bool = False, unfit: str = ""
) -> Reporter:
    """A site that has read `news` in the register, and whose round machine has seen `seen`."""
    state = State(0, 1e6, Limits(), phase=phase, seen=seen)
    where = SimpleNamespace(file=SimpleNamespace(site="ash"), place="here:state")
    no_readout = SimpleNamespace(readout=Path("nowhere"))
    parts: tuple[Any, ...] = (
        SimpleNamespace(
            site=where,
            names=("ash", "birch"),
            now=lambda: 0.0,
            federation=federation(("ash", "birch")),
            register=SimpleNamespace(good=None),
            revocations=SimpleNamespace(own_issue=None),
        ),
        SimpleNamespace(held=(1, 1), labels=("x", "y"), cost=ModelCost(1.0, 1.0), manifest=Manifest({}, 2, 0)),
        SimpleNamespace(expected_flops=lambda: 1.0, bandwidths=lambda names: {}),
        SimpleNamespace(ready=True),
        SimpleNamespace(number=1),
        SimpleNamespace(
            driver=SimpleNamespace(run="run", state=state, progress=None, store=no_readout),
            why_not=lambda run: "its rate differs" if run == unfit else None,
        ),
        SimpleNamespace(standing=None if news is None else Standing(news, ALIVE), silence="", twins={}),
        SimpleNamespace(busy=busy),
        SimpleNamespace(busy=busy),
        SimpleNamespace(last=""),
        SimpleNamespace(why_not=lambda now: None),
    )
    return Reporter(*parts)


def seen_by(found: Reporter) -> tuple[str, Record | None, int | None]:
    """What the site does, the record of its report, and the revision that goes with it."""
    standing = found.standing
    versioned = standing.versioned if standing is not None else None
    report = found.report()
    if versioned is not None:
        assert (report.run, report.epoch, report.round) == (
            versioned.record.run, versioned.record.epoch, versioned.record.round,
        )  # fmt: skip
    return report.doing, found.record, versioned.revision if versioned is not None else None


def test_a_record_that_the_sites_own_swap_made_counts_before_the_register_reports_it() -> None:
    found = reporter(Versioned(FIRST, 4), Halted(), Versioned(LATER, 5))
    assert seen_by(found) == ("halted", LATER, 5)
    assert found.standing == Standing(Versioned(LATER, 5), ALIVE)


def test_news_of_the_register_count_before_the_round_machine_has_seen_them() -> None:
    assert seen_by(reporter(Versioned(LATER, 5), Following(), Versioned(FIRST, 4))) == ("following", LATER, 5)
    assert seen_by(reporter(Versioned(LATER, 5), Following(), None)) == ("following", LATER, 5)


def test_a_site_says_nothing_of_a_run_before_it_has_read_the_register() -> None:
    assert seen_by(reporter(None, Following(), Versioned(FIRST, 4))) == ("following", None, None)


def test_what_a_site_did_in_the_last_run_is_not_shown_beside_the_record_of_the_next() -> None:
    another = replace(FIRST, run="another")
    assert seen_by(reporter(Versioned(another, 9), Halted(), Versioned(LATER, 5))) == ("joining", another, 9)
    ended = replace(another, status="stopped")
    assert seen_by(reporter(Versioned(ended, 9), Halted(), Versioned(LATER, 5))) == ("idle", ended, 9)


def test_tests_of_weights_and_ends_of_runs_that_are_still_to_come_are_reported() -> None:
    at_rest = Versioned(LATER, 5), Halted(), Versioned(LATER, 5)
    assert reporter(*at_rest).report().beside == ()
    assert reporter(*at_rest, busy=True).report().beside == ("testing", "finishing")


def test_a_site_that_is_left_out_is_named_with_the_round_until_which() -> None:
    found = reporter(Versioned(LATER, 5), Following(), Versioned(LATER, 5))
    driver: Any = found._participation.driver
    for backoff, shown in (
        (Backoff(3, LATER.round + 4), {"birch": LATER.round + 4}),
        (Backoff(3, LATER.round), {}),
        (Backoff(3, LATER.round, until_seconds=1.0), {"birch": LATER.round + 1}),  # the clock here is at 0
    ):
        driver.state = replace(driver.state, backoff={1: backoff})
        assert found.report().left_out == shown


def test_a_site_that_the_run_does_not_fit_says_why_it_is_away() -> None:
    news = Versioned(LATER, 5)
    assert reporter(news, Following(), news, unfit=LATER.run).report().away == "not in the run: its rate differs"
    assert reporter(news, Following(), news, unfit="another run").report().away == ""

"""A link that collapses in the middle of a hop."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks.trial.sites import PATIENCE, Far, Goals
from tramfl.runtime.operator.federation_status import FederationStatus

GOAL = 3.0
TRIES = 8
RATE, COLLAPSED = 100, 1
"""Mbit/s."""
LEAST_PROGRESS, MOST_PROGRESS = 0.12, 0.6


class Caught(NamedTuple):
    """A hop at the moment when its link collapsed."""

    sender: str
    to: int
    progress: float
    round: int
    digest: str
    """Of the model."""


def show_collapse(far: Far, goals: Goals) -> None:
    """Let links collapse in the middle of hops: where a third site is left for the round, and where the sender is."""
    far.set_lines(RATE)
    far.sites.order("start", "collapse", replacing=True)
    far.sites.shown("links that all sites know", _know_all_links, PATIENCE)
    _show(far, goals, "a third site", _hop_of_a_drained_site)
    for name in "cd":
        far.sites.order_site(name, "drain")
    _show(far, goals, "the sender", _hop_between_two)
    for name in "cd":
        far.sites.order_site(name, "undrain")
    far.sites.order("stop")
    far.sites.rest()


def _know_all_links(status: FederationStatus) -> bool | None:
    """Before, the site that decides may know of no site but the receiver, and then it has to wait for the hop."""
    reports = [site.report for site in status.sites if site.report is not None]
    return all(len(report.bandwidth) >= len(status.sites) - 1 for report in reports) or None


def _show(far: Far, goals: Goals, left: str, catch: Callable[[Far], Caught | None]) -> None:
    """Try until a link could be changed while the hop was under way."""
    for _ in range(TRIES):
        caught = catch(far)
        shown = caught is not None and _collapse(far, goals, left, caught)
        if left == "a third site" and caught is not None:
            far.sites.order_site(caught.sender, "undrain")
        if shown:
            return
    figure = f"{TRIES} hops had arrived before their link could be changed: the machine is too busy"
    goals.note_time(f"collapse, a hop where {left} is left for the round", figure, "one that is caught", False)


def _hop_of_a_drained_site(far: Far) -> Caught | None:
    """A hop of a holder that takes no part: the round ends at one more hop. None where the holder sent no model."""
    holder = far.sites.holder()
    far.sites.order_site(holder, "drain")

    def look(status: FederationStatus) -> tuple[Caught | None] | None:
        record = status.record
        if (caught := _under_way(far, status)) is not None and caught.sender == holder:
            return (caught,)
        passed = record is not None and record.holder != far.sites.names.index(holder)
        return (None,) if passed else None

    (found,) = far.sites.shown("hop of a drained site", look, PATIENCE)
    if found is None:
        far.sites.order_site(holder, "undrain")
    return found


def _hop_between_two(far: Far) -> Caught | None:
    """A hop between the two sites that take part: where it is given up, the sender trains."""
    pair = {far.sites.names.index(name) for name in "ab"}

    def look(status: FederationStatus) -> Caught | None:
        caught = _under_way(far, status)
        return caught if caught and {far.sites.names.index(caught.sender), caught.to} == pair else None

    return far.sites.shown("hop between two sites", look, PATIENCE)


def _under_way(far: Far, status: FederationStatus) -> Caught | None:
    """A hop that has come far enough, and not too far."""
    if status.record is None:
        return None
    for site in status.sites:
        if (report := site.report) is None or report.to is None or report.progress is None:
            continue
        if LEAST_PROGRESS <= report.progress < MOST_PROGRESS:
            digest = status.record.weights.digest
            return Caught(report.site, report.to, report.progress, status.record.round + 1, digest)
    return None


def _collapse(far: Far, goals: Goals, left: str, caught: Caught) -> bool:
    """Let the link of a hop collapse, and print what becomes of the round; False where the hop was over before."""
    name, before = far.sites.names[caught.to], len(_given_up(far, caught))
    began = time.time()
    far.network.change(caught.to, down=COLLAPSED)
    far.sites.wait_for_round(caught.round, PATIENCE)
    far.network.change(caught.to, down=RATE)
    rows = far.sites.rows()
    row = next(row for row in rows if row.round == caught.round)
    where = far.sites.names[row.node] if row.node is not None else "nowhere"
    reasons = _given_up(far, caught)[before:]
    what = f"collapse, {left} is left for the round"
    if not reasons:
        if row.node == caught.to:
            return False
        print(f"  round {row.round}: {row.decision.reason}")
        goals.note(what, f"the hop was not given up; the round is {where}'s", "given up", False)
        return True
    print(
        f"  {caught.sender} -> {name}: {RATE} -> {COLLAPSED} Mbit/s at {caught.progress:.0%}; given up: {reasons[-1]}"
    )
    # By the log of the site that committed: the site behind the collapsed line takes long to answer for its status.
    committed = next(e for e in far.sites.events(where) if _is_commit(e, caught.round))
    took = datetime.datetime.fromisoformat(committed["at"]).timestamp() - began
    elsewhere = row.transfer_seconds + row.compute_seconds + row.overhead
    print(
        f"  the round lost {row.lost_seconds:.1f} s with that hop; then {row.transfer_seconds:.1f} s of transfer,"
        f" {row.compute_seconds:.1f} s of training and {row.overhead:.1f} s beside;"
        f" predicted without the last: {row.decision.predicted_seconds:.1f} s"
    )
    allowed = GOAL * elsewhere
    goals.note(f"{what}: it commits", f"at {where}", f"not at {name}", row.node != caught.to)
    goals.note_time(
        f"{what}: time to commit",
        f"{took:.1f} s after the collapse, {took / elsewhere:.2f} times the {elsewhere:.1f} s that it took there",
        f"at most {allowed:.1f} s",
        took <= allowed,
    )
    parts = [path.name for path in far.sites.site_folder(name).rglob(f"{caught.digest}-{caught.sender}.part")]
    kept = ", ".join(parts) or "nothing"
    goals.note(f"collapse, what {name} keeps of the model", kept, "the partial file", bool(parts))
    return True


def _is_commit(event: Mapping[str, object], round_: int) -> bool:
    return (event["event"], event["run"], event["round"]) == ("committed", "collapse", round_)


def _given_up(far: Far, caught: Caught) -> list[str]:
    """Why the sender gave transfers to this receiver up so far."""
    name = far.sites.names[caught.to]
    events = far.sites.events(caught.sender)
    return [e["reason"] for e in events if e["event"] == "given-up" and e["peer"] == name]

"""What could keep a site from taking part, checked before it starts: each finding says what to fix."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from tramfl.circulation.custody import Record
from tramfl.notation import BadInput, NodeId
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.registers import AGREEMENT, Silent
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.registers.records import round_content
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import SiteSettings, host_and_port
from tramfl.runtime.site import agreement_of, check_format, digest_of, disagreement, misfit
from tramfl.runtime.training import Build, Built, WorkFailed, Workshop
from tramfl.runtime.transport import Distrusted, Peers, Refusal, Unreachable
from tramfl.runtime.transport.certificates import describe, unfit
from tramfl.runtime.weights.store import SPARE_BYTES
from tramfl.runtime.wire import Order, SiteReport

PEER_SECONDS = 3.0
SKEW_SECONDS = 2.0
"""Clocks further apart make certificates fail early and lost time look longer than it was."""
COPIES = 6
"""Weights that a site may hold at once: newest, safe, in training, arriving, twice over."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    good: bool
    message: str
    """What was found, and what to do where it is not good."""


async def preflight(site: SiteSettings, insecure: bool) -> AsyncIterator[Finding]:
    """Check everything, in the order in which it would fail."""
    certificates = _certificates(site, insecure)
    yield certificates
    yield _port(site)
    register, record, agreed = await _register(site)
    yield register
    model, built, size = await _model(site)
    yield model
    # A run that has stopped does not keep a site from the next.
    if record is not None and record.status != "stopped":
        yield _run(site, record, agreed, built)
    yield _disk(site, size)
    if certificates.good:
        async for finding in _peers(site, insecure):
            yield finding


def _good(check: str, message: str) -> Finding:
    return Finding(check=check, good=True, message=message)


def _bad(check: str, message: str) -> Finding:
    return Finding(check=check, good=False, message=message)


def _certificates(site: SiteSettings, insecure: bool) -> Finding:
    try:
        credentials = site_credentials(site, insecure)
        if credentials is None:
            return _good("certificates", "none, as asked for")
        host, _ = host_and_port(site.address, "address")
        own = credentials.now
        wrong = unfit(own.certificate, own.key, own.authorities, site.file.site, (host,))
        days = describe(own.certificate).days_left
    except BadInput as error:
        return _bad("certificates", str(error))
    if wrong:
        return _bad("certificates", f"{' '.join(wrong)} Have another issued with tramfl cert.")
    return _good("certificates", f"valid for {days:.0f} more days")


def _port(site: SiteSettings) -> Finding:
    host, port = host_and_port(site.listen, "listen")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if site_is_running(site):
                return _good("port", f"{site.listen} is this site's own: it is running")
            return _bad("port", f"{site.listen} cannot be listened on: {error.strerror}; free it, or set `listen`.")
    return _good("port", f"{site.listen} is free")


def site_is_running(site: SiteSettings) -> bool:
    """Whether a process of this site holds its lock."""
    import fcntl  # noqa: PLC0415 - not on every system

    try:
        with (site.beside(site.file.state) / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def _register(site: SiteSettings) -> tuple[Finding, Record | None, list[bytes]]:
    """Whether the register answers, the record, and what the sites of its run have agreed on."""
    kind = site.federation.file.register.kind
    try:
        register = open_register(site.federation, site.file.site)
    except BadInput as error:
        return _bad("register", str(error)), None, []
    try:
        standing = await register.look()
        record = standing.versioned.record if standing.versioned is not None else None
        kept = await register.rows(record.run, AGREEMENT, AGREEMENT) if record is not None else []
        agreed = [round_content(agreement) for agreement in kept]
    except Silent as error:
        why = f"{kind} does not answer: {error}; see [register] in {site.federation.path}."
        return _bad("register", why), None, []
    except BadInput as error:
        return _bad("register", str(error)), None, []
    finally:
        await register.close()
    run = f"run {record.run} is {record.status}" if record is not None else "no run yet"
    return _good("register", f"{kind} answers: {run}"), record, agreed


def _run(site: SiteSettings, record: Record, agreed: list[bytes], built: Built | None) -> Finding:
    """Whether this site can take part in the run under way; a site that cannot would end at once."""
    labels = len(record.ledger.used)
    if wrong := misfit(record, site.federation, site.file.site, len(built.held) if built is not None else labels):
        return _bad("run", wrong)
    if wrong := disagreement(site.federation, record.run, agreed):
        return _bad("run", wrong)
    return _good("run", f"run {record.run} has this site as a member, the settings here, and {labels} labels")


async def _model(site: SiteSettings) -> tuple[Finding, Built | None, int]:
    """Load model and data as the site would, in a process of their own."""
    workshop = Workshop(Build.of(site))
    try:
        with tempfile.TemporaryDirectory() as place:
            built = await workshop.open()
            made = await workshop.make_initial(Path(place) / "initial.safetensors")
    except (BadInput, WorkFailed) as error:
        return _bad("model and data", str(error)), None, 0
    finally:
        await workshop.close()
    held = ", ".join(f"{name}: {count:,}" for name, count in zip(built.labels, built.held, strict=True) if count)
    if not any(built.held):
        message = "the site's data has no training samples; it could never train."
        return _bad("model and data", message), built, made.size
    message = f"{made.size / 1e6:,.3g} MB of weights, {built.flops / 1e9:,.2f} GFLOPS in a short trial; holds {held}"
    return _good("model and data", message), built, made.size


def _disk(site: SiteSettings, size: int) -> Finding:
    place = site.beside(site.file.state)
    try:
        check_format(place)
    except BadInput as error:
        return _bad("disk", str(error))
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(place).free
    except OSError as error:
        why = error.strerror
        return _bad("disk", f"{place} cannot be written: {why}; make room there, or set `state` in {site.path}.")
    wanted = COPIES * size + SPARE_BYTES
    if free < wanted:
        message = f"{place} has {free / 1e6:,.1f} MB free, and the run needs {wanted / 1e6:,.1f} MB"
        return _bad("disk", f"{message}; make room there, or set `state` in {site.path}.")
    return _good("disk", f"{place} has {free / 1e9:,.1f} GB free")


async def _peers(site: SiteSettings, insecure: bool) -> AsyncIterator[Finding]:
    peers = Peers(Roster(site.federation), site.file.site, site_credentials(site, insecure))
    try:
        others = [n for n in range(len(site.federation.names)) if n != site.number]
        for finding in await asyncio.gather(*(_peer(site, peers, n) for n in others)):
            yield finding
    finally:
        await peers.close()


async def _peer(site: SiteSettings, peers: Peers, node: NodeId) -> Finding:
    entry = site.federation.file.site[node]
    check = f"peer {entry.name}"
    began = time.time()
    try:
        answer = await peers.order(node, Order("status"), PEER_SECONDS)
    except Distrusted as error:
        return _bad(check, f"{entry.address}: {error}; give both sites what one tramfl init or tramfl cert made.")
    except Unreachable as error:
        return _bad(check, f"{entry.address}: {error}; is it started, and is its port open?")
    except Refusal as error:
        return _bad(check, f"{entry.address} refuses this site: {error}")
    report = answer.report
    if report is None:
        return _bad(check, f"{entry.address} answers, but does not say what it is.")
    return _compared(site, check, report, began, time.time())


def _compared(site: SiteSettings, check: str, report: SiteReport, began: float, ended: float) -> Finding:
    # The site may have read its clock at any time between question and answer: a slow link is not a wrong clock.
    ahead, behind = report.at - ended, began - report.at
    if max(ahead, behind) > SKEW_SECONDS:
        off = f"{ahead:,.1f} s ahead of" if ahead > 0 else f"{behind:,.1f} s behind"
        # A site reads its clock when it starts, so that its time never runs backwards.
        return _bad(check, f"its clock is {off} this one; keep both by NTP, and restart the site that was wrong.")
    if report.settings != digest_of(agreement_of(site.federation)):
        return _bad(check, "its [run] table or its timings are not this one's; give both one federation.toml.")
    return _good(check, f"answers in {1000 * (ended - began):,.0f} ms, clocks agree")

"""An operator's access to a federation: ask every site for its status, give orders, fetch rows and the model.

Nothing here reaches the register: sites do, and any one that answers will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from tramfl.circulation.custody import Record, Safe
from tramfl.config import is_loopback, read_toml
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.record import Row
from tramfl.runtime.registers import Standing
from tramfl.runtime.settings import OPERATOR, Federation, SiteSettings, host_and_port, read_federation, read_site
from tramfl.runtime.transport import Credentials, Peers, Refusal, Unreachable
from tramfl.runtime.transport.certificates import unfit
from tramfl.runtime.wire import AskRows, Order, OrderResult, SiteReport

ANSWER_SECONDS = 3.0
START_SECONDS = 60.0
ROWS_AT_ONCE = 200
FETCH_TRIES = 50
NOTHING_SEEN = Standing(None, frozenset())
"""What a site that has not answered, or not read the register yet, shows of the record."""


class SiteStatus(Struct, frozen=True, kw_only=True):
    """One site, as it can be seen from here."""

    site: str
    address: str
    alive: bool
    """Whether its lease holds, as the sites that answer say."""
    answers: bool
    why_not: str | None = None
    report: SiteReport | None = None
    revision: int | None = None
    """Of the record that the site's report belongs to."""


class FederationStatus(Struct, frozen=True, kw_only=True):
    """A federation, as it can be seen from here."""

    federation: str
    record: Record | None
    revision: int | None
    sites: tuple[SiteStatus, ...]

    @property
    def answering(self) -> tuple[NodeId, ...]:
        """The numbers of the sites that answer."""
        return tuple(number for number, site in enumerate(self.sites) if site.answers)

    def name_of(self, node: NodeId) -> str:
        """A site's name; its number where the operator's file lists fewer sites than the run has."""
        return self.sites[node].site if node < len(self.sites) else f"site number {node}"

    @property
    def rests(self) -> bool:
        """Whether the run has come to rest: no site changes the record any more without a new order.

        The run is paused or stopped, its last round is committed and tested, and the weights are at two sites; at
        one, where no other site is left to take them. Only the holder moves a run on, so it is the holder's own
        report that counts, and it must belong to the newest record.
        """
        record = self.record
        if record is None or record.status == "running" or record.holder is None or record.holder >= len(self.sites):
            return False
        holder, others = self.sites[record.holder], [s for n, s in enumerate(self.sites) if n != record.holder]
        if holder.report is None or holder.report.doing != "halted" or holder.revision != self.revision:
            return False
        reports = [site.report for site in self.sites if site.report is not None]
        if any(report.beside for report in reports):
            return False
        if any(site.report is not None and site.report.doing not in ("following", "idle") for site in others):
            return False
        # Digests, not rounds: a round in which nobody trained has the weights of the round before.
        copied = record.weights.digest == record.safe.digest
        return copied or not any(site.alive or site.answers for site in others)

    @property
    def mixed_versions(self) -> str | None:
        """One sentence where sites have different versions of tramfl; None where all that answer have the same."""
        having: dict[str, list[str]] = {}
        for site in self.sites:
            if site.report is not None:
                having.setdefault(_version_of(site.report), []).append(site.site)
        if len(having) < 2:
            return None
        # The version of most sites comes last: the first named are those to look at.
        groups = sorted(having.items(), key=lambda group: len(group[1]))
        parts = [f"{', '.join(sites)} {'has' if len(sites) == 1 else 'have'} {what}" for what, sites in groups]
        return f"The sites' versions differ: {'; '.join(parts)}. Install one version of tramfl at all sites."

    @property
    def model(self) -> Safe | None:
        """What a fetch brings: the safe weights; at a run's end, or of the only site, the newest that there are."""
        record = self.record
        if record is None:
            return None
        final = record.status == "stopped" or len(self.sites) == 1
        newest = record.weights
        if final and newest.digest != record.safe.digest and set(newest.copies) & set(self.answering):
            return Safe(record.round, newest.digest, newest.copies, record.ledger, newest.since)
        return record.safe


class RoundTimes(Struct, frozen=True):
    """The time that a round was predicted to take, and took."""

    round: int
    node: str | None
    predicted_seconds: float
    actual_seconds: float
    test_accuracy: float | None
    measured: float | None = None
    """What the run's targets are of, accuracy by default, on the test samples."""
    diverged: bool = False
    """Whether the loss of the round's training was not a finite number."""


class Operator:
    """Acts on a federation from outside."""

    def __init__(self, federation: Federation, me: str, credentials: Credentials | None) -> None:
        self.federation = federation
        self._peers = Peers(federation, me, credentials)

    async def close(self) -> None:
        """End all connections."""
        await self._peers.close()

    async def status(self) -> FederationStatus:
        """Ask every site at once."""
        answers = await asyncio.gather(*(self._ask(n) for n in range(len(self.federation.names))))
        standings = [_standing(answer) if isinstance(answer, OrderResult) else NOTHING_SEEN for answer in answers]
        newest = max((s for s in standings if s is not NOTHING_SEEN), key=_revision, default=None)
        alive = newest.alive if newest is not None else frozenset()
        versioned = newest.versioned if newest is not None else None
        return FederationStatus(
            federation=self.federation.file.name,
            record=versioned.record if versioned is not None else None,
            revision=versioned.revision if versioned is not None else None,
            sites=tuple(
                SiteStatus(
                    site=entry.name,
                    address=entry.address,
                    alive=number in alive,
                    answers=isinstance(answer, OrderResult),
                    why_not=None if isinstance(answer, OrderResult) else answer,
                    report=answer.report if isinstance(answer, OrderResult) else None,
                    revision=seen.versioned.revision if seen.versioned is not None else None,
                )
                for number, (entry, answer, seen) in enumerate(
                    zip(self.federation.file.site, answers, standings, strict=True)
                )
            ),
        )

    async def _ask(self, node: NodeId) -> OrderResult | str:
        try:
            return await self._peers.order(node, Order("status"), ANSWER_SECONDS)
        except (Unreachable, Refusal) as error:
            return str(error)

    async def order(self, order: Order, seconds: float = START_SECONDS) -> str:
        """Give an order to the first site that answers; BadInput where none carries it out."""
        status = await self.status()
        if not status.answering:
            reasons = "; ".join(f"{s.site}: {s.why_not}" for s in status.sites)
            raise BadInput(f"no site of {self.federation.file.name!r} answers ({reasons}).")
        why = ""
        for node in status.answering:
            try:
                answer = await self._peers.order(node, order, seconds)
            except (Unreachable, Refusal) as error:
                why = str(error)
                continue
            if not answer.done:
                raise BadInput(answer.message)
            return answer.message
        raise BadInput(f"no site carried the order out ({why}).")

    async def rows(self, status: FederationStatus, first: int = 1) -> list[Row]:
        """The rows of the run from round `first` on."""
        record = status.record
        if record is None:
            return []
        found: list[Row] = []
        decode = msgspec.json.Decoder(Row).decode
        while first + len(found) <= record.round:
            begin = first + len(found)
            last = min(record.round, begin + ROWS_AT_ONCE - 1)
            rows = await self._rows(status, AskRows(record.run, begin, last))
            found += [decode(line) for line in rows]
            if len(rows) < last - begin + 1:
                break
        return found

    async def last_rounds(self, status: FederationStatus, count: int) -> list[RoundTimes]:
        """How long the last rounds were predicted to take, and took."""
        last, metric = status.record.round if status.record is not None else 0, self.federation.file.run.budget.metric
        rows = await self.rows(status, max(1, last - count + 1)) if count and last else []
        return [
            RoundTimes(
                row.round,
                status.name_of(row.node) if row.node is not None else None,
                row.decision.predicted_seconds,
                row.compute_seconds + row.transfer_seconds + row.idle_seconds,
                row.test_accuracy,
                row.measured(metric),
                row.diverged is True,
            )
            for row in rows
        ]

    async def _rows(self, status: FederationStatus, ask: AskRows) -> tuple[bytes, ...]:
        why = "no site answers"
        for node in status.answering:
            try:
                return (await self._peers.rows(node, ask, START_SECONDS)).lines
            except (Unreachable, Refusal) as error:
                why = f"{status.name_of(node)}: {error}"
        raise BadInput(f"no site gives the rounds of the run ({why}); try again when the register answers.")

    async def fetch(self, to: Path, progress: Callable[[int], None]) -> FederationStatus:
        """Fetch the newest safe weights from a site that has them; the status that names them.

        What has come of a transfer that broke is left for the next fetch; where nothing has come, nothing is left.
        """
        try:
            status = await self._fetch(to, progress)
        except BaseException:
            _forget_parts(to, begun=False)
            raise
        _forget_parts(to, begun=True)
        return status

    async def _fetch(self, to: Path, progress: Callable[[int], None]) -> FederationStatus:
        """A run that moves on may discard weights before the first byte is read: then newer ones are safe."""
        why = "no site that has them answers"
        tried: Digest | None = None
        for _ in range(FETCH_TRIES):
            status = await self.status()
            model = status.model
            if model is None:
                raise BadInput(f"no run has begun in {self.federation.file.name!r}: there is no model to fetch.")
            there = [n for n in model.copies if n in status.answering]
            # The same weights again: the sites that could not give them a moment ago cannot now.
            if not there or model.digest == tried:
                break
            tried = model.digest
            for node in there:
                try:
                    await self._peers.fetch(node, tried, to, progress)
                except (Unreachable, Refusal) as error:
                    why = f"{self.federation.names[node]}: {error}"
                    continue
                return status
        assert model is not None
        copies = ", ".join(map(status.name_of, model.copies))
        raise BadInput(f"the weights of round {model.round} lie at {copies}, and cannot be fetched ({why}).")


def _forget_parts(to: Path, begun: bool) -> None:
    """Delete empty parts; with `begun` all parts, since newer weights have been fetched."""
    for part in to.parent.glob(f"{to.name}.*.part"):
        if begun or part.stat().st_size == 0:
            part.unlink()


def operator_from(path: Path, insecure: bool) -> Operator:
    """An operator with what lies beside `federation.toml` or `site.toml`."""
    if isinstance(read_toml(path).get("site"), str):
        site = read_site(path)
        return Operator(site.federation, site.file.site, site_credentials(site, insecure))
    federation = read_federation(path)
    if insecure:
        check_loopback(federation)
        return Operator(federation, OPERATOR, None)
    names = ("ca.crt", f"{OPERATOR}.crt", f"{OPERATOR}.key")
    return Operator(federation, OPERATOR, _credentials_of(OPERATOR, *map(federation.beside, names)))


def site_credentials(site: SiteSettings, insecure: bool) -> Credentials | None:
    """A site's credentials; None, which trusts everybody, only with `insecure` and only on loopback."""
    if insecure:
        check_loopback(site.federation)
        return None
    file = site.file
    return _credentials_of(file.site, *map(site.beside, (file.authorities, file.certificate, file.key)))


def _credentials_of(name: str, authorities: Path, certificate: Path, key: Path) -> Credentials:
    """The credentials of `name`; BadInput names files that do not fit, where gRPC would fail without a reason."""
    found = Credentials.from_files(authorities, certificate, key)
    sources = str(certificate), str(key), str(authorities)
    if wrong := unfit(found.certificate, found.key, found.authorities, name, sources=sources):
        raise BadInput(
            f"{certificate}, with {key} and {authorities}, will not do for {name!r}: {' '.join(wrong)}"
            f" Put there what tramfl cert makes for {name!r}."
        )
    return found


def check_loopback(federation: Federation) -> None:
    """BadInput where a site without certificates would be reachable from other machines."""
    for entry in federation.file.site:
        host, _ = host_and_port(entry.address, str(federation.path))
        if not is_loopback(host):
            raise BadInput(
                f"--insecure is for loopback only, and site {entry.name!r} is at {entry.address}; use certificates."
            )


def _version_of(report: SiteReport) -> str:
    version = f"tramfl {report.version}" if report.version else "a tramfl that does not report its version"
    return f"{version} (protocol {report.protocol or 'not reported'})"


def _standing(answer: OrderResult) -> Standing:
    try:
        return msgspec.msgpack.decode(answer.record, type=Standing) if answer.record else NOTHING_SEEN
    except msgspec.MsgspecError:
        return NOTHING_SEEN


def _revision(standing: Standing) -> int:
    return standing.versioned.revision if standing.versioned is not None else -1

"""An operator's access to a federation: ask every site for its status, give orders, fetch rows and the model.

The operator does not reach the register. The sites do, and any site that answers can be asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tramfl.circulation.custody import Entry, Status
from tramfl.config import read_toml
from tramfl.hosts import is_loopback
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.record import AuditEntry, Row, gathered, in_columns, sound_entry
from tramfl.runtime.operator.agreeing import Agreement, View, agreed
from tramfl.runtime.operator.federation_status import FederationStatus, RoundTimes, SiteStatus
from tramfl.runtime.operator.row_reading import read_rows
from tramfl.runtime.registers import Standing
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import OPERATOR, Federation, SiteSettings, host_and_port, read_federation, read_site
from tramfl.runtime.transport import Credentials, Peers, Refusal, Unreachable
from tramfl.runtime.transport.certificates import unfit
from tramfl.runtime.transport.revocations import RevocationList, newest_list
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.weights.manifest import SPARE_HEADER_BYTES, Manifest
from tramfl.runtime.wire import AskRows, Order, OrderResult, plain

ANSWER_SECONDS = 3.0
START_SECONDS = 60.0
ROWS_AT_ONCE = 200
FETCH_TRIES = 50
NOTHING_SEEN = Standing(None, frozenset())
"""What a site that has not read the register yet shows of the record."""
PAST_AUTHORITIES = "past-authorities.crt"
"""At the operator's: authorities that were rotated out. Rows of their time are signed with their certificates."""
REMOVED = "it was removed from the federation"
FRESH_LEASES = 0.75
"""A site that the register has not answered for this part of a lease has no say in what the record is."""
STATUS_AFTER: dict[str, Status] = {"pause": "paused", "resume": "running", "stop": "stopped"}
SEEN_SECONDS = 10.0
"""Within this time the sites must see what one of them says it has done."""
LOOKS = 6
LOOK_SECONDS = 0.2
"""Sites that disagree are asked again this often, after this pause: one of them may see a change a moment later."""
MOST_TRAIL_ANSWERS = 100
"""A site's audit trail takes fewer: its files have 8 MiB at most, and an answer some 190 KiB."""
MOST_MODEL_BYTES = 4
"""Fetched weights may have this many times the bytes that most sites report for their model ..."""
MOST_PLAIN = 8
"""... and plain ones, where sites send them in 4 bits, this many times that."""


class Operator:
    """Acts on a federation from outside."""

    def __init__(
        self, federation: Federation, me: str, credentials: Credentials | None, past_authorities: bytes = b""
    ) -> None:
        """`past_authorities` are trusted no more, but for the rows that sites signed in their time."""
        self.federation = federation
        self._seal = SiteSeal(me, credentials, past=past_authorities) if credentials is not None else None
        self._roster = Roster(federation)
        self._credentials = credentials
        self._peers = Peers(self._roster, me, credentials)
        self.bad_rows: list[str] = []
        """A sentence for each row that the last `rows` left out."""
        self.unread_trails: list[str] = []
        """A sentence for each reason for which the last `audit` lacks trails."""

    async def close(self) -> None:
        """End all connections."""
        await self._peers.close()

    async def status(self) -> FederationStatus:
        """Ask every member at once; a few times where they disagree about the record."""
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(LOOK_SECONDS)
            status = await self._look()
            if status.disagreement is None:
                break
        return status

    async def _look(self) -> FederationStatus:
        """Ask every member, and those that the record names on which the first ones agree."""
        file, roster = self.federation.file, self._roster
        answers: dict[NodeId, OrderResult | str] = {}
        views: dict[NodeId, View] = {}
        found = Agreement(None, frozenset())
        while unasked := [number for number in roster.present if number not in answers]:
            answers |= zip(unasked, await asyncio.gather(*map(self._ask, unasked)), strict=True)
            views = {n: _view(answer) for n, answer in answers.items() if isinstance(answer, OrderResult)}
            found = agreed(views, roster.names, FRESH_LEASES * file.lease_seconds)
            if found.versioned is not None:
                roster.follow(found.versioned)
        versioned, revoked = found.versioned, RevocationList()
        if self._credentials is not None:
            shown = (view.standing.revoked for view in views.values())
            revoked = newest_list(shown, self._credentials.now.authorities)
        return FederationStatus(
            federation=file.name,
            record=versioned.record if versioned is not None else None,
            revision=versioned.revision if versioned is not None else None,
            sites=tuple(
                _site_status(entry, answers.get(number, REMOVED), views.get(number), found, revoked)
                for number, entry in enumerate(roster.entries)
            ),
            disagreement=found.disagreement,
            revoked=revoked,
        )

    async def _ask(self, node: NodeId) -> OrderResult | str:
        try:
            return await self._peers.order(node, Order("status"), ANSWER_SECONDS)
        except (Unreachable, Refusal) as error:
            return str(error)

    async def order(self, order: Order, seconds: float = START_SECONDS) -> str:
        """Give an order to a site that answers; BadInput where none carries it out.

        A site that says that it did, while the others see nothing of it, is not believed: the next is asked.
        """
        status = await self.status()
        if not status.answering:
            reasons = "; ".join(f"{s.site}: {s.why_not}" for s in status.sites)
            raise BadInput(f"no site of {self.federation.file.name!r} answers ({reasons}).")
        why = ""
        # A member that is removed ends, perhaps before it has answered: it is asked last.
        for node in sorted(status.trusted, key=lambda node: status.name_of(node) == order.site):
            try:
                answer = await self._peers.order(node, order, seconds)
            except (Unreachable, Refusal) as error:
                why = str(error)
                continue
            if not answer.done:
                raise BadInput(answer.message)
            if await self._carried_out(order):
                return answer.message
            why = f"{status.name_of(node)} says that it is done, and the others see nothing of it"
        raise BadInput(f"no site carried the order out ({why}).")

    async def _carried_out(self, order: Order) -> bool:
        """Whether the record shows what was ordered; sites may see it a moment later."""
        wanted = STATUS_AFTER.get(order.what)
        until = time.monotonic() + SEEN_SECONDS
        while True:
            status = await self.status()
            if (record := status.record) is not None:
                if order.what == "start" and record.run == order.run:
                    return True
                if wanted is not None and record.status in (wanted, "stopped"):
                    return True
            if order.what not in ("start", *STATUS_AFTER):
                return True
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_SECONDS)

    async def repair(self) -> str:
        """Have the last good record put in the place of one that is not sound; one sentence about the result."""
        status = await self.status()
        if status.record is None:
            raise BadInput(status.disagreement or "no site that answers knows a record to go back to.")
        why = "no site that has it answers"
        for node in status.trusted:
            if not status.sites[node].confirms or status.sites[node].revision != status.revision:
                continue
            try:
                answer = await self._peers.order(node, Order("repair"), START_SECONDS)
            except (Unreachable, Refusal) as error:
                why = str(error)
                continue
            if answer.done:
                return answer.message
            why = answer.message
        raise BadInput(f"the record of round {status.record.round} could not be put back ({why}).")

    async def revoke(self, content: bytes, name: str) -> tuple[list[str], list[str]]:
        """Bring every member a list of revoked certificates; the names of those that took it, and of the others.

        A site that refuses the list because it revokes the operator's own certificate has it already.
        """
        numbers = [n for n in self._roster.present if self._roster.names[n] != name]
        answers = await asyncio.gather(*(self._bring(n, content, name) for n in numbers))
        names = [self._roster.names[n] for n in numbers]
        took_it = [site for site, took in zip(names, answers, strict=True) if took]
        return took_it, [site for site in names if site not in took_it]

    async def _bring(self, node: NodeId, content: bytes, name: str) -> bool:
        try:
            return (await self._peers.order(node, Order("revoke", content=content), SEEN_SECONDS)).done
        except Refusal as error:
            return name == OPERATOR and "is revoked" in str(error)
        except Unreachable:
            return False

    async def order_site(self, site: str, order: Order, seconds: float = START_SECONDS) -> str:
        """Give an order to one member; BadInput where it does not carry it out."""
        members = [entry.site for entry in (await self.status()).sites if entry.member]
        if site not in members:
            raise BadInput(f"{self.federation.file.name!r} has no member {site!r}; it has {', '.join(members)}.")
        try:
            answer = await self._peers.order(self._roster.number_of(site), order, seconds)
        except (Unreachable, Refusal) as error:
            raise BadInput(f"{site} did not carry the order out: {error}.") from None
        if not answer.done:
            raise BadInput(f"{site}: {answer.message}")
        return f"{site} is {answer.message}"

    async def rows(self, status: FederationStatus, first: int = 1) -> list[Row]:
        """The rows of the run from round `first` on; those that cannot be right are left out, and in `bad_rows`."""
        record = status.record
        self.bad_rows = []
        if record is None:
            return []
        found: list[Row] = []
        for begin in range(first, record.round + 1, ROWS_AT_ONCE):
            last = min(record.round, begin + ROWS_AT_ONCE - 1)
            rows, bad = await self._rows(status, AskRows(record.run, begin, last))
            found += [in_columns(row, len(status.sites)) for row in rows]
            self.bad_rows += bad
            if len(rows) + len(bad) < last - begin + 1:
                break
        return found

    async def audit(self, status: FederationStatus, rows: Sequence[Row] = ()) -> list[AuditEntry]:
        """The audit trails of all sites that answer, as one; what is no entry of the run is left out.

        The rows were signed by the sites that trained, and so prove who did. Why a trail is missing is in
        `unread_trails`.
        """
        run = status.record.run if status.record is not None else ""
        trails: list[tuple[str, list[AuditEntry]]] = []
        unread: dict[str, list[str]] = {}
        for node in status.answering:
            try:
                trails.append((status.name_of(node), await self._trail(node, run)))
            except (Unreachable, Refusal, BadInput) as error:
                unread.setdefault(str(error).removesuffix("."), []).append(status.name_of(node))
        self.unread_trails = [
            f"the audit trail of {', '.join(names)} was not read: {reason}." for reason, names in unread.items()
        ]
        signed = {(row.epoch, row.round): status.name_of(row.node) for row in rows if row.node is not None}
        return gathered(trails, signed if self._seal is not None else None)

    async def _trail(self, node: NodeId, run: str) -> list[AuditEntry]:
        """The whole trail of a site, from the newest entry back. Raises Unreachable, Refusal or BadInput."""
        lines: dict[bytes, None] = {}
        for _ in range(MOST_TRAIL_ANSWERS):
            answer = await self._peers.order(node, Order("audit", run, round=len(lines)), START_SECONDS)
            if not answer.done:
                raise BadInput(answer.message)
            known = len(lines)
            lines |= dict.fromkeys(answer.audit)
            if len(lines) == known:
                break
        entries = [entry for line in lines if (entry := sound_entry(line)) is not None]
        return [entry for entry in entries if entry.run == run]

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
                tuple(map(status.name_of, row.rejected)) if row.rejected else (),
                row.overhead,
            )
            for row in rows
        ]

    async def _rows(self, status: FederationStatus, ask: AskRows) -> tuple[list[Row], list[str]]:
        """Rows, and a sentence for each that is left out; of several answers, the one that leaves out least."""
        why = "no site answers"
        best: tuple[list[Row], list[str]] | None = None
        for node in status.trusted:
            try:
                given = await self._peers.rows(node, ask, START_SECONDS)
            except (Unreachable, Refusal) as error:
                why = f"{status.name_of(node)}: {error}"
                continue
            names = (site.site for site in status.sites)
            rows, bad = read_rows(given, ask, names, status.record, self._seal)
            if best is None or len(rows) > len(best[0]):
                best = rows, bad
            if not bad:
                break
        if best is None:
            raise BadInput(f"no site gives the rounds of the run ({why}); try again when the register answers.")
        return best

    async def fetch(self, to: Path, progress: Callable[[int], None]) -> FederationStatus:
        """Fetch the newest safe weights from a site that has them; the status that names them.

        The bytes of a transfer that broke are kept for the next fetch; a transfer that brought none leaves no file.
        """
        try:
            status = await self._fetch(to, progress)
        except BaseException:
            _forget_parts(to, begun=False)
            raise
        _forget_parts(to, begun=True)
        return status

    async def fetch_file(self, digest: Digest, nodes: Sequence[NodeId], to: Path, status: FederationStatus) -> None:
        """Fetch a file by its digest from the first of some sites that gives it. Raises BadInput."""
        most = _most_bytes(status, MOST_PLAIN)
        why = "no site that has it answers"
        for node in nodes:
            try:
                await self._peers.fetch(node, digest, to, lambda _: None, most)
            except (Unreachable, Refusal) as error:
                why = f"{self._roster.names[node]}: {error}"
                continue
            return
        raise BadInput(f"the file {digest[:12]}... cannot be fetched ({why}).")

    async def _fetch(self, to: Path, progress: Callable[[int], None]) -> FederationStatus:
        """A run that moves on may discard weights before the first byte is read: then newer ones are safe."""
        why = "no site that has them answers"
        tried: Digest | None = None
        for _ in range(FETCH_TRIES):
            status = await self.status()
            model = status.model
            if model is None:
                if status.disagreement is not None:
                    raise BadInput(status.disagreement)
                raise BadInput(f"no run has begun in {self.federation.file.name!r}: there is no model to fetch.")
            there = [n for n in model.copies if n in status.answering]
            # The same weights again: the sites that could not give them a moment ago cannot now.
            if not there or model.digest == tried:
                break
            tried = model.digest
            for node in there:
                try:
                    await self._peers.fetch(node, tried, to, progress, most=_most_bytes(status))
                    _check_tensors(to, status)
                except (Unreachable, Refusal) as error:
                    why = f"{status.name_of(node)}: {error}"
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
    past = federation.beside(PAST_AUTHORITIES)
    credentials = _credentials_of(OPERATOR, *map(federation.beside, names))
    return Operator(federation, OPERATOR, credentials, past.read_bytes() if past.exists() else b"")


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
    papers = found.now
    if wrong := unfit(papers.certificate, papers.key, papers.authorities, name, sources=sources):
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


def _site_status(
    entry: Entry, answer: OrderResult | str, view: View | None, found: Agreement, revoked: RevocationList
) -> SiteStatus:
    report = answer.report if isinstance(answer, OrderResult) else None
    issued = report.issued if report is not None else None
    shown, versioned = view.standing.versioned if view is not None else None, found.versioned
    return SiteStatus(
        site=entry.name,
        address=entry.address or "",
        alive=entry.name in found.alive,
        answers=isinstance(answer, OrderResult),
        why_not=answer if isinstance(answer, str) else None,
        report=report,
        revision=shown.revision if shown is not None else None,
        confirms=versioned is None or (view is not None and view.votes_for(versioned)),
        member=entry.address is not None,
        revoked=revoked.refuses(entry.name, 0.0 if issued is None else issued),
    )


def _view(answer: OrderResult) -> View:
    try:
        standing = msgspec.msgpack.decode(answer.record, type=Standing) if answer.record else NOTHING_SEEN
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        standing = NOTHING_SEEN
    return View(plain(standing), answer.seen, answer.age_seconds)


def _most_bytes(status: FederationStatus, times: int = 1) -> int | None:
    size = status.model_bytes
    return times * int(MOST_MODEL_BYTES * size) + SPARE_HEADER_BYTES if size is not None else None


def _check_tensors(file: Path, status: FederationStatus) -> None:
    """Refusal, and the file is deleted, where fetched weights are not of the model that most sites have."""
    if status.tensors is None:
        return
    try:
        found = Manifest.of(file).fingerprint
    except BadInput as error:
        found = str(error)
    if found != status.tensors:
        file.unlink()
        raise Refusal("what it gives are no weights of this run's model")

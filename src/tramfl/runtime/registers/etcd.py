"""The register of sites on many machines: an etcd cluster.

    tramfl/<federation>/alive/<name>               a life of the node and its place; goes when its lease ends
    tramfl/<federation>/certificates/revoked       the list of revoked certificates
    tramfl/<federation>/record                     the record; its mod_revision is the revision given out
    tramfl/<federation>/rounds/{row,note}/<run>/<round>

The keys up to `record` are one range: a look reads it at one revision, and a watch of it hears of nothing else. What
a watch says is put to what the last look found, so that news costs no question: questions of many sites at once queue
up in etcd, and between sites that are far apart each takes two or three round trips.

Safety comes from the swap, not from the lease: one transaction compares the record's revision and that of this life's
key. Every read is linearizable: a member that has lost the others gives no answer rather than an old one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from urllib.parse import quote, unquote

import msgspec

from tramfl.circulation.custody import Record, Versioned
from tramfl.runtime.registers.contract import LeaseLost, LeaseTaken, Silent, Standing
from tramfl.runtime.registers.etcd_gateway import Gateway, Json, Password, content, text
from tramfl.runtime.registers.records import Records
from tramfl.runtime.settings import RegisterSettings

PAGE = 200
"""Rows asked for at once."""
LAST_ROUND = 10**12 - 1


class Keys(msgspec.Struct, frozen=True):
    """Where a federation's things are."""

    prefix: str

    @property
    def record(self) -> str:
        """The record."""
        return f"{self.prefix}record"

    @property
    def revoked(self) -> str:
        """The list of revoked certificates."""
        return f"{self.prefix}certificates/revoked"

    @property
    def rounds(self) -> str:
        """Before the keys of all rows and notes."""
        return f"{self.prefix}rounds/"

    def alive(self, node: str) -> str:
        """The key that a node's lease holds."""
        return f"{self.prefix}alive/{quote(node, safe='')}"

    def round(self, what: str, run: str, round_: int) -> str:
        """A row or a note."""
        # As many digits for all, so that the order of keys is that of rounds.
        return f"{self.rounds}{what}/{quote(run, safe='')}/{min(max(round_, 0), LAST_ROUND):012d}"


def keys_of(federation: str) -> Keys:
    """The keys of a federation."""
    return Keys(f"tramfl/{quote(federation, safe='')}/")


class Life(msgspec.Struct, frozen=True):
    """What this node's lease is known by."""

    lease: str
    revision: int
    """Of the key bound to it: each join writes it anew, so that a former life's swaps fail."""


class KeyValues(msgspec.Struct, frozen=True):
    """The keys up to the record, as they were at one revision."""

    revision: int
    found: dict[str, Json]

    def after(self, events: list[Json]) -> KeyValues:
        """The view after what a watch says; what it knows already, it ignores."""
        found, newest = dict(self.found), self.revision
        for event in events:
            kv = event["kv"]
            if (revision := int(kv["mod_revision"])) <= self.revision:
                continue
            key, newest = content(kv["key"]).decode(), max(newest, revision)
            if event.get("type") == "DELETE":
                found.pop(key, None)
            else:
                found[key] = kv
        return KeyValues(newest, found)


class EtcdRegister:
    """One node's view of the cluster. See `Register`.

    Settings that etcd refuses, or under which no TLS comes about, raise BadInput until it has answered once; from
    then on the same is Silent, for it may pass.
    """

    def __init__(
        self,
        settings: RegisterSettings,
        federation: str,
        node: str,
        lease_seconds: float,
        password: Password | None = None,
        *,
        place: str = "",
    ) -> None:
        self._gateway = Gateway(settings, password)
        self._keys = keys_of(federation)
        self.records = Records()
        self._node, self._place = node, place
        self._lease_seconds = lease_seconds
        self._life: Life | None = None
        self._names: set[str] = set()
        """Under these names this process took its lease, or tried to."""
        self._joined = False
        self._joining = asyncio.Lock()
        self._newest: Versioned | None = None
        self._watch: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Event] = set()
        self._view: KeyValues | None = None
        self._watched_from = 0
        """The watch reports every change after this revision."""

    async def join(self) -> str | None:
        """Take this node's lease, unless another process has joined since this one did."""
        # One after the other: the life that is kept must be the one whose key was written last.
        async with self._joining:
            return await self._join()

    async def renew(self) -> None:
        """Make the lease last a full length again."""
        life = self._own_life()
        answer = await self._gateway.ask("lease/keepalive", {"ID": life.lease}, repeatable=True)
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            self._lose(life)
            raise LeaseLost(f"site {self._node}'s lease in etcd has run out")

    async def leave(self) -> None:
        """Give the lease up; where etcd is silent it runs out by itself."""
        life, self._life = self._life, None
        if life is not None:
            await self._revoke(life.lease)

    async def look(self) -> Standing:
        """The record and who is alive, at one revision."""
        answer = await self._gateway.ask("kv/range", self._span, repeatable=True)
        found = {content(kv["key"]).decode(): kv for kv in answer.get("kvs", [])}
        view = KeyValues(int(answer["header"]["revision"]), found)
        if self._view is None or self._view.revision <= view.revision:
            self._view = view
        return self._standing(view)

    async def changed(self, since: Standing, seconds: float) -> Standing:
        """The standing, as soon as it differs from `since`, or as it is when `seconds` have passed.

        News comes from the watch. A look is made where the watch may have missed something, and where it is silent:
        only so does a silent register, or a deaf watch, show.
        """
        until = time.monotonic() + seconds
        self._keep_watching()
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while True:
                news.clear()
                standing = self._watched() or await self.look()
                left = until - time.monotonic()
                if standing != since:
                    return standing
                if left <= 0 or not await _set_within(news, min(left, self._lease_seconds / 3)):
                    standing = await self.look()
                    if standing != since:
                        self._stop_watching()  # it is deaf, so the next call begins another
                    if standing != since or time.monotonic() >= until:
                        return standing
        finally:
            self._waiting.discard(news)

    async def swap(self, revision: int, record: Record, row: bytes | None = None) -> Versioned | None:
        """Put `record` in place of `revision`, with its row; None if the record has another revision by now."""
        life = self._own_life()
        puts = [_put(self._keys.record, self.records.content(record, revision))]
        if row is not None:
            puts.append(_put(self._keys.round("row", record.run, record.round), row))
        transaction = {
            "compare": [_unchanged(self._keys.record, revision), _unchanged(self._own_key, life.revision)],
            "success": puts,
            "failure": [{"request_range": {"key": text(key)}} for key in (self._keys.record, self._own_key)],
        }
        answer = await self._gateway.ask("kv/txn", transaction, repeatable=False)
        if answer.get("succeeded", False):
            return self.records.swapped(record, revision, int(answer["header"]["revision"]))
        found, own = (response["response_range"].get("kvs", []) for response in answer["responses"])
        if not own or int(own[0]["mod_revision"]) != life.revision:
            self._lose(life)
            raise LeaseLost(f"site {self._node} has no lease in etcd any more")
        if (int(found[0]["mod_revision"]) if found else 0) == revision:
            raise Silent("etcd refused a swap for no reason it gives")
        return None

    async def rows(self, run: str, first: int, last: int) -> list[bytes]:
        """The rows of rounds `first` to `last`, in order."""
        return list((await self._rounds("row", run, first, last)).values())

    async def note(self, run: str, round_: int, content: bytes) -> None:
        """Keep something about a round; the last one counts."""
        note = _put(self._keys.round("note", run, round_), content)["request_put"]
        await self._gateway.ask("kv/put", note, repeatable=False)

    async def notes(self, run: str, first: int, last: int) -> dict[int, bytes]:
        """What was noted about rounds `first` to `last`."""
        return await self._rounds("note", run, first, last)

    async def announce_revoked(self, content: bytes) -> None:
        """Put a list of revoked certificates where every node sees it; the last one counts."""
        await self._gateway.ask("kv/put", _put(self._keys.revoked, content)["request_put"], repeatable=True)

    async def close(self) -> None:
        """End all connections; the lease runs out by itself unless given up before."""
        watch = self._watch
        self._stop_watching()
        if watch is not None:
            await asyncio.wait({watch})
        await self._gateway.close()
        for news in self._waiting:
            news.set()

    @property
    def _own_key(self) -> str:
        return self._keys.alive(self._node)

    @property
    def _span(self) -> Json:
        return {"key": text(self._keys.alive("")), "range_end": text(f"{self._keys.record}\0")}

    def _standing(self, view: KeyValues) -> Standing:
        found = dict(view.found)
        self._check_own(found.get(self._own_key, {}), view.revision)
        kv = found.pop(self._keys.record, None)
        revoked = content(found.pop(self._keys.revoked, {}).get("value", ""))
        lives = {unquote(key.rpartition("/")[2]): _life_in(life) for key, life in found.items()}
        places = {node: place for node, (_, place) in lives.items() if place}
        return Standing(None if kv is None else self._versioned(kv), frozenset(lives), revoked, places)

    def _watched(self) -> Standing | None:
        """The standing by the last look and the watch; None where a change may lie between the two."""
        view = self._view
        return self._standing(view) if view is not None and view.revision >= self._watched_from else None

    def _own_life(self) -> Life:
        if self._life is None:
            raise LeaseLost(f"site {self._node} has no lease in etcd")
        return self._life

    def _lose(self, life: Life) -> None:
        if self._life == life:
            self._life = None

    def _check_own(self, kv: Json, revision: int) -> None:
        """A key that is gone, or another life's, ends this life, though its lease may still be renewed."""
        life = self._life
        # What was read before this life began says nothing about it.
        if life is not None and revision >= life.revision and int(kv.get("mod_revision", 0)) != life.revision:
            self._lose(life)

    def _versioned(self, kv: Json) -> Versioned:
        revision = int(kv["mod_revision"])
        if self._newest is None or self._newest.revision != revision:
            place = f"{self._keys.record} in etcd"
            self._newest = self.records.versioned(content(kv["value"]), place, revision)
        return self._newest

    async def _join(self) -> str | None:
        answer: Json = {}
        while not answer.get("succeeded", False):
            # The first time it does not matter which process had the key; later it must be this one's, or gone.
            unchanged = [_unchanged(self._own_key, await self._own_revision())] if self._joined else []
            granted = await self._gateway.ask("lease/grant", {"TTL": math.ceil(self._lease_seconds)}, repeatable=True)
            lease, name = str(granted["ID"]), secrets.token_hex(8)
            self._names.add(name)
            value = f"{name} {self._place}"
            put = {"key": text(self._own_key), "value": text(value), "lease": lease, "prev_kv": True}
            transaction = {"compare": unchanged, "success": [{"request_put": put}]}
            answer = await self._gateway.ask("kv/txn", transaction, repeatable=False)
        self._life, self._joined = Life(lease, int(answer["header"]["revision"])), True
        # The key is bound to the new lease by now, so the end of the former one cannot take it along.
        former = answer["responses"][0]["response_put"].get("prev_kv", {})
        if str(former.get("lease", "0")) != "0":
            await self._revoke(str(former["lease"]))
        name, place = _life_in(former)
        return None if not former or name in self._names or place == self._place else place

    async def _own_revision(self) -> int:
        """The revision of this node's key, 0 where there is none. Raises LeaseTaken if another process wrote it."""
        answer = await self._gateway.ask("kv/range", {"key": text(self._own_key)}, repeatable=True)
        for kv in answer.get("kvs", []):
            name, place = _life_in(kv)
            if name not in self._names:
                raise LeaseTaken(place)
            return int(kv["mod_revision"])
        return 0

    async def _revoke(self, lease: str) -> None:
        """End a lease; if that fails it ends by itself."""
        with contextlib.suppress(Silent):
            await self._gateway.ask("lease/revoke", {"ID": lease}, repeatable=True)

    async def _rounds(self, what: str, run: str, first: int, last: int) -> dict[int, bytes]:
        start, end = self._keys.round(what, run, first), f"{self._keys.round(what, run, last)}\0"
        found: dict[int, bytes] = {}
        while True:
            page = {"key": text(start), "range_end": text(end), "limit": PAGE}
            answer = await self._gateway.ask("kv/range", page, repeatable=True)
            for kv in answer.get("kvs", []):
                start = content(kv["key"]).decode()
                found[int(start.rpartition("/")[2])] = content(kv.get("value", ""))
            if not answer.get("more", False):
                return found
            start += "\0"

    def _keep_watching(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._wake_on_news())

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _wake_on_news(self) -> None:
        while True:
            async with contextlib.aclosing(self._gateway.listen("watch", {"create_request": self._span})) as messages:
                async for message in messages:
                    result = message.get("result", {})
                    if result.get("created", False):
                        # A look shows what happened before the watch began.
                        self._watched_from = int(result["header"]["revision"])
                    if self._view is not None and self._view.revision >= self._watched_from:
                        self._view = self._view.after(result.get("events", []))
                    for news in self._waiting:
                        news.set()
                    if "error" in message or result.get("canceled", False):
                        break
            await asyncio.sleep(min(1.0, self._lease_seconds / 3))


def _life_in(kv: Json) -> tuple[str, str]:
    """The name and the place of the life in a lease's key."""
    name, _, place = content(kv.get("value", "")).decode(errors="replace").partition(" ")
    return name, place


def _put(key: str, value: bytes) -> Json:
    return {"request_put": {"key": text(key), "value": text(value)}}


def _unchanged(key: str, revision: int) -> Json:
    """True of a key that has this revision; of one that is not there if the revision is 0."""
    return {"key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    if seconds <= 0:
        return True
    try:
        # Not wait_for: until Python 3.12 it may swallow a cancellation that comes with the event.
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False

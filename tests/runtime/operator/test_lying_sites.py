"""One site lies to the operator: three real servers on loopback, of which two tell the truth."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.record.test_rows import row
from tests.runtime.sites import NAMES, Log, PlainHost, federation, played, write_model
from tramfl.circulation.custody import Record, Versioned, first_record
from tramfl.circulation.phases import Copy
from tramfl.config import Evaluation
from tramfl.notation import BadInput, Digest, Ledger, ModelCost
from tramfl.record import Row, in_columns
from tramfl.runtime.operator.collecting import pull
from tramfl.runtime.operator.operating import Operator
from tramfl.runtime.registers import Standing
from tramfl.runtime.registers.checked import fingerprint
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Server
from tramfl.runtime.weights import Manifest, WeightStore
from tramfl.runtime.wire import AskRows, Order, OrderResult, ReadOutFile, Rows, SiteReport

LIAR = 2
ROWS = [row(1), row(2)]


@dataclass
class Site(PlainHost):
    """A site that shows a record."""

    name: str = ""
    shown: Versioned | None = None
    seen: tuple[tuple[int, bytes], ...] = ()
    size: int = 0
    given: Path | None = None
    readout: ReadOutFile | None = None
    obeys: Callable[[Order], None] = field(default=lambda order: None)

    async def order(self, who: str, order: Order) -> OrderResult:
        self.asked.append(order.what)
        if order.what != "status":
            self.obeys(order)
            return OrderResult(True, "done.")
        assert self.manifest is not None
        report = SiteReport(
            site=self.name,
            doing="following",
            held=(5, 5),
            labels=("x", "y"),
            cost=ModelCost(1.0, 8.0 * self.size),
            tensors=self.manifest.fingerprint,
            readout=self.readout,
        )
        standing = Standing(self.shown, frozenset(NAMES))
        return OrderResult(True, "here", report, record=msgspec.msgpack.encode(standing), seen=self.seen)

    async def rows(self, who: str, ask: AskRows) -> Rows:
        return Rows(self.lines[ask.first - 1 : ask.last])

    def model_path(self, digest: Digest) -> Path | None:
        return self.given or super().model_path(digest)


class Trio:
    """Three sites with one model; what all three say is the truth, until the liar is changed."""

    def __init__(self, folder: Path) -> None:
        model = folder / "model.safetensors"
        digest = write_model(model, os.urandom(3000))
        self.federation = federation()
        self.record: Record = replace(
            first_record("run-1", LIAR, digest, (0, 1, 2), 2, Roster(self.federation).entries),
            ledger=Ledger(ROWS[-1].used, ROWS[-1].total_seconds, 2),
        )
        self.sites: list[Site] = []
        for name in NAMES:
            store = WeightStore(folder / name)
            copy = store.scratch()
            copy.write_bytes(model.read_bytes())
            store.put(copy, Copy(digest, 0, 1))
            site = Site(store, Manifest.of(model), name=name, size=model.stat().st_size)
            site.lines = tuple(map(msgspec.json.encode, ROWS))
            self.sites.append(site)
        self.show(self.record, 7)
        self.model = model.read_bytes()

    def show(self, record: Record, revision: int, *sites: int) -> None:
        """All sites, or these, show a record."""
        for number in sites or range(3):
            self.sites[number].shown = Versioned(record, revision)

    @property
    def liar(self) -> Site:
        return self.sites[LIAR]

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        async with contextlib.AsyncExitStack() as stack:
            for number, site in enumerate(self.sites):
                address = self.federation.file.site[number].address
                server = Server(address, None, Roster(self.federation), site, Log())
                await server.start()
                stack.push_async_callback(server.stop, 0)
            hand = Operator(self.federation, "operator", None)
            stack.push_async_callback(hand.close)
            yield hand


LIES: list[tuple[dict[str, Any], int]] = [
    ({"status": "stopped"}, 1 << 40),
    ({"run": "../../../tmp/taken", "status": "stopped"}, 1 << 40),
    ({"run": "another"}, 1 << 40),
    ({"holder": LIAR, "epoch": 9}, 1 << 40),
    ({"holder": 0, "ledger": Ledger((0, 0), float("nan"), 0)}, 1 << 40),
    ({"status": "stopped"}, 7),
]


@played
@pytest.mark.parametrize(("lie", "revision"), LIES)
async def test_one_lying_site_does_not_decide_what_the_operator_sees(
    tmp_path: Path, lie: dict[str, Any], revision: int
) -> None:
    trio = Trio(tmp_path)
    trio.show(replace(trio.record, **lie), revision, LIAR)
    async with trio.operator() as hand:
        status = await hand.status()
        assert status.record == trio.record
        assert [site.confirms for site in status.sites] == [True, True, False]


@played
async def test_pull_writes_the_honest_run_whatever_the_holder_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio = Trio(tmp_path)
    trio.show(replace(trio.record, run="../../outside", status="stopped"), 1 << 40, LIAR)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    async with trio.operator() as hand:
        status, folder, _ = await pull(hand, None, overwrite=False)
    assert folder == Path("runs/run-1")
    assert (home / folder / "model.safetensors").read_bytes() == trio.model
    assert sorted(path.name for path in home.iterdir()) == ["runs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ash", "birch", "cedar", "home", "model.safetensors"]
    assert status.record == trio.record


@played
async def test_two_sites_that_contradict_each_other_are_both_named_and_nothing_is_done(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    trio.federation = federation(NAMES[:2])
    trio.sites = trio.sites[:2]
    trio.show(replace(trio.record, holder=1, status="stopped"), 8, 1)
    async with trio.operator() as hand:
        status = await hand.status()
        assert status.record is None
        assert status.disagreement is not None
        assert "ash shows run run-1, running" in status.disagreement
        assert "birch shows run run-1, stopped" in status.disagreement
        with pytest.raises(BadInput, match="The sites disagree about the record"):
            await hand.fetch(tmp_path / "got", lambda _: None)


@played
async def test_a_site_that_sees_a_change_later_than_others_still_confirms_what_went_before(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    newer = replace(trio.record, holder=0)
    trio.show(newer, 8, 0)
    trio.sites[0].seen = ((7, fingerprint(trio.record)), (8, fingerprint(newer)))
    async with trio.operator() as hand:
        assert (await hand.status()).revision == 7
        trio.sites[1].seen = ((8, fingerprint(newer)),)
        assert (await hand.status()).record == newer


@played
async def test_weights_that_are_not_the_runs_are_not_delivered(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    trio.liar.given = huge
    trio.record = replace(trio.record, weights=replace(trio.record.weights, copies=(LIAR, 1)))
    trio.record = replace(trio.record, safe=replace(trio.record.safe, copies=(LIAR, 1)))
    trio.show(trio.record, 8)
    async with trio.operator() as hand:
        await hand.fetch(tmp_path / "got", lambda _: None)
        assert (tmp_path / "got").read_bytes() == trio.model
        # Most sites have a model with other tensors than the one that the digest names.
        other = tmp_path / "other"
        write_model(other, os.urandom(2000))
        for site in trio.sites:
            site.manifest = Manifest.of(other)
        with pytest.raises(BadInput, match="no weights of this run's model"):
            await hand.fetch(tmp_path / "again", lambda _: None)
        assert not (tmp_path / "again").exists()


BAD_ROWS = [
    b"{}",
    msgspec.json.encode(ROWS[0]).replace(b'"compute_seconds":', b'"compute_seconds":1e300,"_":'),
    msgspec.json.encode(ROWS[0]).replace(b'"total_seconds":', b'"total_seconds":null,"_":'),
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
]


@played
@pytest.mark.parametrize("bad", BAD_ROWS, ids=range(len(BAD_ROWS)))
async def test_a_bad_row_is_named_and_skipped_and_an_honest_site_has_a_right_one(tmp_path: Path, bad: bytes) -> None:
    trio = Trio(tmp_path)
    trio.liar.lines = (bad, trio.liar.lines[1])
    async with trio.operator() as hand:
        status = await hand.status()
        assert await hand.rows(status) == [in_columns(row, 3) for row in ROWS]
        assert hand.bad_rows == []
        for site in trio.sites:  # it is in the register
            site.lines = trio.liar.lines
        assert await hand.rows(status) == [in_columns(row, 3) for row in ROWS[1:]]
        (sentence,) = hand.bad_rows
        assert sentence.startswith("The row of round 1 is left out: it ")


@played
async def test_rows_that_do_not_lead_to_the_record_are_not_taken(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    false: Row = replace(ROWS[1], total_seconds=5_000_000.0)
    trio.liar.lines = (trio.liar.lines[0], msgspec.json.encode(false))
    async with trio.operator() as hand:
        assert await hand.rows(await hand.status()) == [in_columns(row, 3) for row in ROWS]


@played
async def test_a_site_that_only_says_that_it_stopped_the_run_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tramfl.runtime.operator.operating.SEEN_SECONDS", 0.0)
    trio = Trio(tmp_path)
    trio.sites[0].obeys = functools.partial(_stop, trio)
    async with trio.operator() as hand:
        assert await hand.order(Order("stop")) == "done."
        assert "stop" in trio.liar.asked
        assert "stop" in trio.sites[0].asked


def _stop(trio: Trio, order: Order) -> None:
    trio.show(replace(trio.record, status="stopped"), 9)


@played
async def test_a_mean_is_fetched_from_the_site_that_trained_its_round_and_from_no_other(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    file = trio.federation.file
    run = replace(file.run, evaluation=Evaluation(readout="average"))
    trio.federation = replace(trio.federation, file=replace(file, run=run))
    trio.show(replace(trio.record, status="stopped"), 8)
    for number, round_ in ((1, 1), (LIAR, 2)):  # node 1 trained both rounds
        offered = tmp_path / f"mean-{number}"
        digest = write_model(offered, bytes([number]) * 3000)
        trio.sites[number].given = offered
        trio.sites[number].readout = ReadOutFile(round_, trio.record.weights.digest, digest)
    async with trio.operator() as hand:
        await pull(hand, tmp_path / "got", overwrite=False)
        assert (tmp_path / "got" / "model.safetensors").read_bytes().endswith(bytes([1]) * 3000)
        trio.sites[1].readout = None
        with pytest.raises(BadInput, match="no site that answers has the mean that the run tests"):
            await pull(hand, tmp_path / "again", overwrite=False)
        # As large as a model can be, and no larger.
        trio.sites[1].readout = ReadOutFile(2, trio.record.weights.digest, "a" * 64)
        with (tmp_path / "mean-1").open("wb") as huge:
            huge.truncate(1 << 40)
        with pytest.raises(BadInput, match="more than this run's model can have"):
            await pull(hand, tmp_path / "again", overwrite=False)

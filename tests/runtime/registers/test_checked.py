"""A hostile site writes what it likes to the register that all sites share."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.runtime.registers.stories import LONG, story
from tests.runtime.sites import Log
from tramfl.circulation.custody import Record, first_record
from tramfl.notation import Ledger
from tramfl.runtime.registers import ABSENT, CheckedRegister, Silent
from tramfl.runtime.registers.records import stored
from tramfl.runtime.registers.sqlite import SqliteRegister

FIRST = first_record("run", 0, "a" * 64, (0, 1), 2)
SECOND = replace(FIRST, ledger=Ledger((3, 4), 2.0, 1), weights=replace(FIRST.weights, digest="b" * 64))


class Shared:
    """One register file, and an honest site's view of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, Log()
        self.honest = self.view()

    def view(self) -> CheckedRegister:
        return CheckedRegister(self.raw(0), self.folder / "record.msgpack", self.log)

    def raw(self, node: int) -> SqliteRegister:
        return SqliteRegister(self.folder / "register.sqlite", str(node), LONG, 60.0)

    def overwrite(self, content: bytes) -> None:
        """What any user who may write the file can do."""
        with sqlite3.connect(self.folder / "register.sqlite") as db:
            db.execute("UPDATE record SET revision = revision + 1, content = ?", (content,))

    async def begin(self) -> None:
        await self.honest.join()
        first = await self.honest.swap(ABSENT, FIRST)
        assert first is not None
        assert await self.honest.swap(first.revision, SECOND) is not None

    def ignored(self) -> list[str]:
        return [line["reason"] for line in self.log.lines if line["event"] == "record-ignored"]


def written(**change: object) -> bytes:
    """The second record as the register keeps it, with something changed."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(stored(SECOND)) | change)


BAD = [
    written(holder="nobody"),
    written(members=[]),
    stored(replace(SECOND, run="../../tmp/x")),
    stored(replace(SECOND, ledger=Ledger((3, 4), float("nan"), 1))),
    stored(FIRST),
    msgspec.msgpack.encode({"run": 7, "protocol": 9}),
    b"\x91" * 5000,
    b"not msgpack",
]


@story
@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
async def test_a_bad_record_is_logged_once_and_ignored_until_it_is_repaired(tmp_path: Path, bad: bytes) -> None:
    shared = Shared(tmp_path)
    await shared.begin()
    good = (await shared.honest.look()).versioned
    assert good is not None
    shared.overwrite(bad)
    for _ in range(2):
        with pytest.raises(Silent, match="the last good record stands; see tramfl repair"):
            await shared.honest.look()
    assert len(shared.ignored()) == 1
    assert shared.honest.good == good
    repaired = await shared.honest.repair()
    assert repaired is not None
    assert repaired.record == SECOND
    assert (await shared.honest.look()).versioned == repaired
    assert await shared.honest.repair() is None
    shared.overwrite(bad)
    with pytest.raises(Silent):
        await shared.honest.look()
    assert len(shared.ignored()) == 2, "it is bad again"
    await shared.honest.close()


@story
async def test_a_run_of_another_protocol_that_goes_on_is_logged_once(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    await shared.begin()
    for _ in range(3):
        shared.overwrite(msgspec.msgpack.encode({"run": 7, "protocol": 9}))
        with pytest.raises(Silent, match="protocol 9"):
            await shared.honest.look()
    assert len(shared.ignored()) == 1
    await shared.honest.close()


@story
async def test_a_site_that_is_restarted_over_a_bad_record_still_knows_the_last_good_one(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    await shared.begin()
    await shared.honest.close()
    shared.overwrite(BAD[0])
    again = shared.view()
    await again.join()
    with pytest.raises(Silent):
        await again.look()
    assert again.good is not None
    assert again.good.record == SECOND
    repaired = await again.repair()
    assert repaired is not None
    assert repaired.record == SECOND
    await again.close()


@story
async def test_without_a_good_record_nothing_is_put_in_the_place_of_a_bad_one(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    await shared.begin()
    shared.overwrite(BAD[0])
    (tmp_path / "record.msgpack").write_bytes(b"lost")
    stranger = shared.view()
    await stranger.join()
    with pytest.raises(Silent, match="the last good record stands"):
        await stranger.repair()
    await shared.honest.close()
    await stranger.close()


@story
async def test_a_new_run_in_place_of_an_ended_one_is_no_bad_record(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    await shared.begin()
    other = shared.raw(1)
    await other.join()
    seen = (await other.look()).versioned
    assert seen is not None
    stopped: Record = replace(SECOND, status="stopped")
    ended = await other.swap(seen.revision, stopped)
    assert ended is not None
    assert await other.swap(ended.revision, replace(FIRST, run="next")) is not None
    now = (await shared.honest.look()).versioned
    assert now is not None
    assert now.record.run == "next"
    assert shared.ignored() == []
    await shared.honest.close()
    await other.close()

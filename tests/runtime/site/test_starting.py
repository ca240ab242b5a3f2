"""What beginning a run does to the register, whatever else happens to it at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from tests.runtime.sites import federation
from tramfl.circulation.custody import Record, first_record
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import ABSENT, Register, record_from
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.site.agreement import misfit
from tramfl.runtime.site.starting import put_first

T = TypeVar("T")
OLD = replace(first_record("old", 0, "w0", (0, 1), 2), status="stopped")
NEW = first_record("new", 0, "v0", (0, 1), 2)


class Desk:
    """A real register, as this site and another one see it."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self.register: Register = self.run(self._open(folder / "register.sqlite", 0))
        self.other: Register = self.run(self._open(folder / "register.sqlite", 1))

    async def _open(self, path: Path, node: int) -> Register:
        register = SqliteRegister(path, node, lease_seconds=60)
        await register.join()
        return register

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def swap(self, revision: int, record: Record) -> None:
        assert self.run(self.other.swap(revision, record)) is not None

    def record(self) -> Record:
        versioned = self.run(self.register.look()).versioned
        assert versioned is not None
        return versioned.record

    def close(self) -> None:
        for register in (self.register, self.other):
            self.run(register.close())
        self._runner.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def test_a_run_begins_although_the_last_round_of_the_stopped_one_was_committed_meanwhile(desk: Desk) -> None:
    desk.swap(ABSENT, OLD)
    before = desk.run(desk.register.look()).versioned
    assert before is not None
    desk.swap(before.revision, replace(OLD, ledger=OLD.ledger.after((1, 1), 1.0)))
    assert desk.run(put_first(desk.register, NEW, before))
    assert desk.record() == NEW


def test_a_run_does_not_begin_in_the_place_of_another_that_just_began(desk: Desk) -> None:
    desk.swap(ABSENT, OLD)
    assert not desk.run(put_first(desk.register, NEW, None))
    assert desk.record() == OLD


def test_a_run_begins_although_the_site_has_lost_its_lease(desk: Desk) -> None:
    desk.run(desk.register.leave())
    assert desk.run(put_first(desk.register, NEW, None))
    assert desk.record() == NEW


def test_a_site_does_not_join_a_run_of_another_protocol_and_says_what_to_install() -> None:
    other = replace(NEW, protocol=2)
    said = misfit(other, federation(), 2)
    assert said is not None
    assert "run new is of protocol 2" in said
    assert "has protocol 1; install the version of tramfl that the other sites have." in said
    assert misfit(NEW, federation(), 2) is None


def test_a_record_that_only_a_newer_version_can_read_is_refused_with_the_same_sentence() -> None:
    newer = msgspec.msgpack.encode({"run": 7, "protocol": 2})
    with pytest.raises(BadInput, match=r"register\.sqlite: the run there is of protocol 2.*install the version"):
        record_from(newer, "register.sqlite")
    with pytest.raises(BadInput, match=r"register\.sqlite: the record there cannot be read"):
        record_from(b"\x00", "register.sqlite")

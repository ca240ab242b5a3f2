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
from tramfl.circulation.custody import Entry, Record, first_record
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import ABSENT, Register
from tramfl.runtime.registers.records import record_from
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.site.agreement import agreement_of, first_difference, misfit
from tramfl.runtime.site.starting import put_first
from tramfl.runtime.wire import PROTOCOL

T = TypeVar("T")
OLD = replace(first_record("old", 0, "w0", (0, 1), 2), status="stopped")
NEW = first_record("new", 0, "v0", (0, 1), 2)


class Desk:
    """A real register, as this site and another one see it."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self.register: Register = self.run(self._open(folder / "register.sqlite", "0"))
        self.other: Register = self.run(self._open(folder / "register.sqlite", "1"))

    async def _open(self, path: Path, node: str) -> Register:
        register = SqliteRegister(path, node, lease_seconds=60, timeout_seconds=60)
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
    assert desk.run(put_first(desk.register, NEW, before, b"{}"))
    assert desk.record() == NEW


def test_a_run_does_not_begin_in_the_place_of_another_that_just_began(desk: Desk) -> None:
    desk.swap(ABSENT, OLD)
    assert not desk.run(put_first(desk.register, NEW, None, b"{}"))
    assert desk.record() == OLD


def test_a_run_begins_although_the_site_has_lost_its_lease(desk: Desk) -> None:
    desk.run(desk.register.leave())
    assert desk.run(put_first(desk.register, NEW, None, b"{}"))
    assert desk.record() == NEW


def test_a_site_does_not_join_a_run_of_another_protocol_and_says_what_to_install() -> None:
    other = replace(NEW, protocol=PROTOCOL + 1)
    said = misfit(other, federation(("0", "1")), "0", 2)
    assert said is not None
    assert f"run new is of protocol {PROTOCOL + 1}" in said
    assert f"has protocol {PROTOCOL}; install the version of tramfl that the other sites have." in said
    assert misfit(replace(NEW, protocol=PROTOCOL), federation(("0", "1")), "0", 2) is None


@pytest.mark.parametrize(
    ("listed", "site", "said"),
    [
        (("0", "1", "e"), "0", "lists site 'e', which run new does not have; add it with tramfl members add e HOST"),
        (
            ("0", "1", "e"),
            "e",
            "site 'e' is no member of the federation; an operator adds it with tramfl",
        ),
        (("0", "gone"), "gone", "site 'gone' is no member of the federation"),
    ],
)
def test_a_site_does_not_join_where_its_list_has_a_site_that_the_run_has_not(
    listed: tuple[str, ...], site: str, said: str
) -> None:
    record = replace(NEW, protocol=PROTOCOL, members=(*NEW.members, Entry("gone", None)))
    assert said in str(misfit(record, federation(listed), site, 2))
    assert misfit(record, federation(("0", "gone")), "0", 2) is None, "a site that was removed may stay in old files"


def test_the_first_setting_that_differs_is_named_with_both_values() -> None:
    here = federation()
    training = replace(here.file.run.training, learning_rate=0.1)
    there = replace(here, file=replace(here.file, run=replace(here.file.run, training=training)))
    assert first_difference(agreement_of(here), agreement_of(here)) is None
    said = first_difference(agreement_of(there), agreement_of(here))
    assert said == f"training.learning_rate is 0.1 here and {here.file.run.training.learning_rate} in the run"
    slower = replace(here, file=replace(here.file, lease_seconds=9.0))
    said = first_difference(agreement_of(slower), agreement_of(here), "at b")
    assert said == "lease_seconds is 9.0 here and 5.0 at b"
    others = replace(here, file=replace(here.file, site=here.file.site[:1]))
    assert first_difference(agreement_of(others), agreement_of(here)) is None, "members are in the record"


def test_a_record_that_only_a_newer_version_can_read_is_refused_with_the_same_sentence() -> None:
    newer = msgspec.msgpack.encode({"run": 7, "protocol": PROTOCOL + 1})
    sentence = rf"register\.sqlite: the run there is of protocol {PROTOCOL + 1}.*install the version"
    with pytest.raises(BadInput, match=sentence):
        record_from(newer, "register.sqlite", 1)
    with pytest.raises(BadInput, match=r"register\.sqlite: the record there cannot be read"):
        record_from(b"\x00", "register.sqlite", 1)

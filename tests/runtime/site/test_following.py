"""When a site says that the holder is lost, and how often it asks its register."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from tests.runtime.sites import played
from tramfl.circulation.custody import Entry, Record, Versioned, first_record
from tramfl.runtime.registers import Standing
from tramfl.runtime.site.following import HolderWatch, RegisterFollower, TwinWatch

RECORD = first_record("run", 0, "w0", (0, 1), 2, (Entry("a"), Entry("b")))


class Watch:
    """Site b, which watches the holder a."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, Any]] = []
        member: Any = SimpleNamespace(
            lease_seconds=0.0,  # a site that was just started gives the holder a lease to appear
            roster=SimpleNamespace(is_barred=lambda name: False),
            site=SimpleNamespace(file=SimpleNamespace(site="b")),
            log=lambda event, holder: self.logged.append((event, holder)),
        )
        self._watch = HolderWatch(member)

    def is_lost(self, record: Record, *alive: str) -> bool:
        return self._watch.is_lost(Standing(Versioned(record, 1), frozenset(alive)))


def test_a_holder_without_a_lease_is_lost_and_logged_once() -> None:
    watch = Watch()
    assert not watch.is_lost(RECORD, "a", "b")
    assert [watch.is_lost(RECORD, "b") for _ in range(3)] == [True, True, True]
    assert watch.logged == [("holder-lost", "a")]


def test_a_paused_run_can_lose_its_holder_and_a_stopped_one_cannot() -> None:
    watch = Watch()
    assert watch.is_lost(replace(RECORD, status="paused"), "b")
    stopped = Watch()
    assert not stopped.is_lost(replace(RECORD, status="stopped"), "b")
    assert not stopped.is_lost(replace(RECORD, status="stopped"), "b")
    assert stopped.logged == []


def test_a_lease_that_changes_its_place_while_it_lasts_shows_a_name_that_is_used_twice() -> None:
    watch = TwinWatch()

    def saw(**places: str) -> dict[str, tuple[str, str]]:
        watch.saw(Standing(None, frozenset(places), b"", places))
        return watch.found

    assert saw(a="north", b="south") == {}
    assert saw(b="south") == {}
    assert saw(a="west", b="south") == {}, "it left before it came back elsewhere"
    assert saw(a="east", b="south") == {"a": ("west", "east")}
    assert saw(a="east") == {"a": ("west", "east")}
    assert saw() == {}


class SlowRegister:
    """Answers when the test lets it, and counts."""

    def __init__(self) -> None:
        self.looks = 0
        self.answer = asyncio.Event()

    async def look(self) -> Standing:
        self.looks += 1
        await self.answer.wait()
        return Standing(None, frozenset())


@played
async def test_a_hundred_reports_of_a_change_ask_the_register_twice_and_a_later_one_again() -> None:
    register = SlowRegister()

    async def follow(content: bytes) -> None:
        pass

    member: Any = SimpleNamespace(register=register, revocations=SimpleNamespace(follow=follow))
    following = RegisterFollower(member, SimpleNamespace())  # type: ignore[arg-type]
    first = asyncio.create_task(following.look())
    while not register.looks:
        await asyncio.sleep(0)
    others = [asyncio.create_task(following.look()) for _ in range(99)]
    await asyncio.sleep(0)
    register.answer.set()
    await asyncio.gather(first, *others)
    assert register.looks == 2, "the first look may have begun before what the others report"
    await following.look()
    assert register.looks == 3

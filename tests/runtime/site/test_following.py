"""What a site asks its register, and how often."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.runtime.sites import played
from tramfl.runtime.registers.contract import Standing
from tramfl.runtime.site.following import RegisterFollower


class SlowRegister:
    """Answers when it is told to, and counts."""

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

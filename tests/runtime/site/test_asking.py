"""What a site asks the others before a round begins, and which answers count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.runtime.sites import federation
from tramfl.notation import NodeId
from tramfl.runtime.roster import Roster
from tramfl.runtime.site.asking import LoadQuestions, Report
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import AskLoad, Load

SECONDS = 60.0


class Others:
    """Sites that answer with the number of the question, or not at all."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.fault: Exception | None = None
        self.waits = False
        self.cancelled = 0
        self.logged: list[tuple[str, str]] = []
        self.questions = LoadQuestions(
            "run",
            Roster(federation(("a", "b"))),
            2,
            self.ask,
            lambda event, peer, **_: self.logged.append((event, peer)),
        )

    async def ask(self, node: NodeId, ask: AskLoad, seconds: float) -> Report:
        self.rounds.append(ask.round)
        if self.fault is not None:
            raise self.fault
        try:
            while self.waits:
                await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Load(float(len(self.rounds)), 1e6, (1, 1)), 1e6

    async def flops(self, round_: int, seconds: float = SECONDS) -> float | None:
        found = await self.questions.of(1, round_, seconds)
        return found[0].flops if found is not None else None


def played(story: Callable[[Others], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        async def play() -> None:
            await story(Others())

        asyncio.run(play())

    test.__name__ = story.__name__
    return test


@played
async def test_a_report_that_was_asked_for_ahead_counts_once(others: Others) -> None:
    others.questions.ask_ahead(5, (1,), SECONDS)
    assert await others.flops(5) == 1.0
    assert await others.flops(5) == 2.0, "the round is decided again: loads have changed"
    assert others.rounds == [5, 5]


@played
async def test_a_report_for_another_round_or_an_old_one_does_not_count(others: Others) -> None:
    others.questions.ask_ahead(5, (1,), SECONDS)
    await asyncio.sleep(0)
    assert await others.flops(6) == 2.0
    others.questions.ask_ahead(7, (1,), SECONDS)
    await asyncio.sleep(0)
    assert await others.flops(7, seconds=0.0) == 4.0, "older than a report may be"


@played
async def test_questions_that_nobody_wants_answered_any_more_end(others: Others) -> None:
    others.waits = True
    others.questions.ask_ahead(5, (1,), SECONDS)
    await asyncio.sleep(0)
    others.questions.forget()
    while not others.cancelled:
        await asyncio.sleep(0)
    others.waits = False
    assert await others.flops(5) == 2.0


@pytest.mark.parametrize("fault", [Unreachable("gone"), Refusal("no")])
def test_a_site_that_does_not_report_is_logged_once_and_again_when_it_is_back(fault: Exception) -> None:
    async def play() -> None:
        others = Others()
        others.fault = fault
        others.questions.ask_ahead(1, (1,), SECONDS)
        assert [await others.flops(round_) for round_ in (1, 2)] == [None, None]
        others.fault = None
        assert await others.flops(3) is not None
        assert others.logged == [("peer-missing", "b"), ("peer-back", "b")]

    asyncio.run(play())

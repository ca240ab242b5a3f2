"""Registers as their tests need them: records to put in, and how long to wait for what."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec

import pytest
from msgspec.structs import replace

from tramfl.circulation.custody import Record, first_record
from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import Register, Silent

P = ParamSpec("P")
LONG = 120.0
"""A lease that does not run out in a test."""
SHORT = 1.0
PATIENCE = 180.0
"""Seconds until a test says that something will not happen; only a machine that hangs takes so long."""


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that awaits."""

    @functools.wraps(test)
    def played(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return played


def begun(run: str = "run", labels: int = 3) -> Record:
    return first_record(run, 0, "w0", (0,), labels)


def next_round(record: Record, digest: str = "w") -> Record:
    """The record with one round more."""
    used = (1,) * len(record.ledger.used)
    weights = replace(record.weights, digest=digest)
    return replace(record, ledger=record.ledger.after(used, 1.0), weights=weights)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to what may be asked again, once there is one."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask()
        except Silent:
            assert time.monotonic() < deadline, "it never answered"


async def refused(register: Register, *words: str) -> None:
    """A node that joins this register gets what is wrong, in one sentence."""
    with pytest.raises(BadInput) as caught:
        await register.join()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message, message
    await register.close()

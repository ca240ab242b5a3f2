"""Wrong inputs at every entry point, a modest number; `make fuzz` plays a hundred thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.fuzzing import SECONDS, Bench


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, asyncio.Runner]]:
    bench = Bench(tmp_path_factory.mktemp("fuzz"))
    with asyncio.Runner() as runner:
        yield bench, runner
        runner.run(bench.close())


@pytest.mark.parametrize(
    "entry", ["small_message", "consigned", "chunked", "wired", "headed", "replied", "opened", "handshaken"]
)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False), inputs=st.integers(1, 4))
def test_no_input_crashes_hangs_or_changes_anything(
    site: tuple[Bench, asyncio.Runner], entry: str, rng: Random, inputs: int
) -> None:
    bench, runner = site
    for _ in range(inputs):
        runner.run(asyncio.wait_for(getattr(bench, entry)(rng), SECONDS))


def test_the_same_seed_gives_the_same_inputs_and_right_ones_get_through(tmp_path: Path) -> None:
    async def play(folder: Path) -> Bench:
        folder.mkdir()
        bench, rng = Bench(folder), Random(5)
        for _ in range(800):
            await bench.one(rng)
        await bench.close()
        return bench

    async def twice() -> tuple[Bench, Bench]:
        return await play(tmp_path / "first"), await play(tmp_path / "second")

    first, second = asyncio.run(twice())
    assert first.counts == second.counts
    assert first.outcomes["stored, being right"] > 0
    assert first.outcomes["header fits"] > 0
    assert first.outcomes["refused with a status"] > 0

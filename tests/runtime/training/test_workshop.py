"""The process in which a site trains: it may hang, crash and print, and the site goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conftest import wait_until_gone
from tramfl.config import Cost, Partition, Scenario
from tramfl.notation import BadInput
from tramfl.runtime.training.workshop import Build, WorkFailed, Workshop

SCENARIO = Scenario(partition=Partition(layout="3"), cost=Cost())
SHOP = """
import os, sys, time
import numpy as np
import tramfl
from torch import nn
from tramfl.learning.data.datasets import Dataset

class Odd(nn.Module):
    def __init__(self, classes, input_shape):
        super().__init__()
        self.layer = nn.Linear(4, classes)
        print("printed by the model", flush=True)
    def forward(self, x):
        if os.path.exists("hang" if self.training else "hang-scoring"):
            open("hangs", "w").close()
            time.sleep(3600)
        if self.training and os.path.exists("crash"):
            os._exit(3)
        if self.training and os.path.exists("raise"):
            raise RuntimeError("no luck today")
        return self.layer(x.flatten(1))

def data():
    rng = np.random.default_rng(0)
    train, test = rng.random((40, 1, 2, 2)), rng.random((4, 1, 2, 2))
    return Dataset.from_arrays("d", train, np.arange(40) % 2, test, [0, 1, 0, 1])

app = tramfl.App(model=Odd, data=data)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    # The site is started in this folder: its files may not be taken for installed modules.
    (folder / "torch.py").write_text("import os; os._exit(7)")
    return folder


@pytest.fixture(scope="module")
def bench(place: Path) -> Iterator[tuple[asyncio.Runner, Workshop]]:
    """One workshop for all tests here, since loading takes seconds; each leaves it able to work."""
    before = Path.cwd()
    os.chdir(place)
    try:
        with asyncio.Runner() as runner:

            async def opened() -> Workshop:
                workshop = Workshop(Build(SCENARIO, 0, "a", "shop:app", None, None, 1, str(place)))
                built = await workshop.open()
                assert built.held == (18, 18)
                await workshop.make_initial(place / "w0")
                return workshop

            workshop = runner.run(opened())
            yield runner, workshop
            runner.run(workshop.close())
    finally:
        os.chdir(before)


def test_what_the_sites_code_prints_is_not_taken_for_a_result(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    runner, workshop = bench
    made = runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
    assert made.size == (place / "w1").stat().st_size
    scores = runner.run(workshop.score(place / "w1", ()))
    assert scores.test_accuracy is not None


def test_an_error_of_the_sites_code_fails_the_training_alone(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    runner, workshop = bench
    pid = workshop.pid
    (place / "raise").touch()
    try:
        with pytest.raises(BadInput, match=r"RuntimeError: no luck today \(shop.py, line \d+\)\.$"):
            runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
    finally:
        (place / "raise").unlink()
    runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
    assert workshop.pid == pid


def test_bad_input_is_reported_as_such(place: Path, bench: tuple[asyncio.Runner, Workshop]) -> None:
    runner, workshop = bench
    with pytest.raises(BadInput, match="nowhere cannot be read"):
        runner.run(workshop.train(place / "nowhere", (4, 4), 1, place / "w1"))


def test_a_crash_is_reported_and_the_process_started_anew(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    runner, workshop = bench
    (place / "crash").touch()
    try:
        with pytest.raises(WorkFailed, match="has died"):
            runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
    finally:
        (place / "crash").unlink()
    runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))


def test_a_training_that_hangs_is_ended_when_it_is_given_up(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    runner, workshop = bench
    (place / "hang").touch()
    pid = workshop.pid
    assert pid is not None

    async def given_up() -> None:
        training = asyncio.create_task(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
        await hangs(place)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    try:
        runner.run(given_up())
    finally:
        (place / "hang").unlink()
    wait_until_gone(pid)
    runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
    assert workshop.pid != pid


def test_a_caller_that_stops_waiting_for_a_process_to_load_leaves_no_answer_behind(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    runner, workshop = bench

    async def given_up() -> None:
        await workshop._end()
        training = asyncio.create_task(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
        while workshop.pid is None:
            await asyncio.sleep(0.01)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        while not workshop.ready:  # though nobody asks for anything
            await asyncio.sleep(0.05)
        await workshop.train(place / "w0", (4, 4), 1, place / "w1")

    runner.run(given_up())


@pytest.mark.parametrize("turns", range(6))
def test_a_workshop_that_closes_while_its_process_is_started_again_leaves_none_behind(
    place: Path, bench: tuple[asyncio.Runner, Workshop], turns: int
) -> None:
    """However many turns of the event loop the new start has had by then."""

    async def life() -> None:
        workshop = Workshop(Build(SCENARIO, 0, "a", "shop:app", None, None, 1, str(place)))
        training = asyncio.create_task(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
        while workshop.pid is None:
            await asyncio.sleep(0.01)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        for _ in range(turns):
            await asyncio.sleep(0)
        await workshop.close()

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    before = children()
    with asyncio.Runner() as runner:
        runner.run(life())
        assert children() == before


def test_a_scoring_that_hangs_is_ended_when_a_training_waits_for_it_in_vain(
    place: Path, bench: tuple[asyncio.Runner, Workshop], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, workshop = bench
    monkeypatch.setattr("tramfl.runtime.training.workshop.STUCK_SECONDS", 0.0)
    (place / "hang-scoring").touch()

    async def both() -> None:
        scoring = asyncio.create_task(workshop.score(place / "w0", ()))
        await hangs(place)
        training = asyncio.create_task(workshop.train(place / "w0", (4, 4), 1, place / "w1"))
        await asyncio.sleep(0)  # it waits for its turn
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        with pytest.raises(WorkFailed, match="has died"):
            await scoring

    try:
        runner.run(both())
    finally:
        (place / "hang-scoring").unlink()
    runner.run(workshop.train(place / "w0", (4, 4), 1, place / "w1"))


async def hangs(place: Path) -> None:
    """Until the site's code hangs; the mark is removed."""
    while not (place / "hangs").exists():
        await asyncio.sleep(0.01)
    (place / "hangs").unlink()


def test_a_torch_py_in_the_folder_that_a_site_is_started_in_is_not_run(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    _, workshop = bench
    assert (place / "torch.py").exists()
    assert workshop.ready


def test_an_app_is_not_taken_from_the_folder_that_a_site_is_started_in(
    place: Path, bench: tuple[asyncio.Runner, Workshop]
) -> None:
    runner, _ = bench
    assert (Path.cwd() / "shop.py").exists()

    async def opened() -> None:
        workshop = Workshop(Build(SCENARIO, 0, "a", "shop:app", None, None, 1, None))
        try:
            await workshop.open()
        finally:
            await workshop.close()

    with pytest.raises(BadInput, match="shop"):
        runner.run(opened())

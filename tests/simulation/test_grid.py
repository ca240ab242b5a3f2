from __future__ import annotations

import multiprocessing
import os
import signal
from ctypes import c_bool
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from msgspec.structs import replace

from tramfl.notation import BadInput
from tramfl.simulation import grid
from tramfl.simulation.grid import cells, finished, play_cell
from tramfl.simulation.play import Request
from tramfl.simulation.scenarios import scenario_named

BASE = scenario_named("digits-3")
SMALL = replace(BASE, budget=replace(BASE.budget, rounds=3))


def request(out: Path, **changes: object) -> Request:
    return Request(scenario=replace(SMALL, **changes), out=out, train=False)


def test_every_cell_has_a_folder_of_its_own_and_all_policies_come_before_the_next_seed(tmp_path: Path) -> None:
    scenarios = [replace(s, policy=p) for s in (SMALL, scenario_named("digits-5")) for p in ("tram", "random")]
    found = cells(scenarios, range(2), tmp_path, Request(scenario=SMALL, train=False))
    assert len({cell.out for cell in found}) == 8
    assert [(c.scenario.seed, c.scenario.name, c.scenario.policy) for c in found[:5]] == [
        (0, "digits-3", "tram"), (0, "digits-3", "random"), (0, "digits-5", "tram"), (0, "digits-5", "random"),
        (1, "digits-3", "tram"),
    ]  # fmt: skip
    assert all(cell.threads == 1 and not cell.train for cell in found)
    assert found[0].out == tmp_path / "digits-3" / "tram-0"


def test_a_cell_is_finished_once_it_was_played_and_until_it_is_asked_for_more(tmp_path: Path) -> None:
    assert finished(request(tmp_path)) is None
    summary = play_cell(request(tmp_path))
    assert finished(request(tmp_path)) == summary
    assert finished(replace(request(tmp_path), overwrite=True)) is None
    longer = request(tmp_path, budget=replace(SMALL.budget, rounds=5))
    assert finished(longer) is None
    assert play_cell(longer).rounds == 5
    with pytest.raises(BadInput, match="already has 5 rounds"):
        play_cell(request(tmp_path))


def test_a_cell_in_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    play_cell(request(tmp_path))
    with pytest.raises(BadInput, match="`seed` is 0 there and 1 here"):
        finished(request(tmp_path, seed=1))
    with pytest.raises(BadInput, match="other settings"):
        play_cell(request(tmp_path, policy="random"))
    with pytest.raises(BadInput, match="without training"):
        finished(replace(request(tmp_path), train=True))


def look_until_stopped(stop: c_bool, ready: Connection) -> None:
    """What a worker does between two rounds, over and over."""
    grid._begin_worker(stop, None)
    ready.send(None)
    try:
        while True:
            grid._stop_if_asked()
    except KeyboardInterrupt:
        ready.send("stopped")


def test_a_worker_that_is_interrupted_while_it_looks_whether_to_stop_stops() -> None:
    """Five workers, each interrupted at some moment of its looks: with a lock, most of them would wait for ever."""
    context = multiprocessing.get_context("spawn")
    workers = []
    for _ in range(5):
        stop = context.RawValue(c_bool, False)
        ours, theirs = context.Pipe()
        worker = context.Process(target=look_until_stopped, args=(stop, theirs), daemon=True)
        worker.start()
        workers.append((worker, ours, stop))
    try:
        for worker, ours, stop in workers:
            assert ours.poll(60)
            ours.recv()
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGINT)
            assert ours.poll(60), "the worker waits for itself"
            assert ours.recv() == "stopped"
            assert stop.value
    finally:
        for worker, _, _ in workers:
            worker.kill()
            worker.join()

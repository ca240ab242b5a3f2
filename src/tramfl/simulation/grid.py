"""Many runs at once: scenarios, methods, seeds and other keys, in processes on this machine or on a Ray cluster.

A grid picks up where it stopped: a folder with the same scenario is skipped if its run is finished and resumed if
it is not, or if its limits have been raised since.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from ctypes import c_bool
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tramfl.config import Scenario, as_table, override, settings_from, with_value
from tramfl.notation import BadInput
from tramfl.processes import no_interrupt, without_script, workers_with
from tramfl.record import RunFolder, Summary, folder_name
from tramfl.simulation.play import Request, check_way, play
from tramfl.simulation.scenarios import difference

TRAINING = "tramfl.learning.training.building"
"""The module that imports PyTorch."""
CANCEL_SECONDS = 30.0
"""How long interrupted runs on a Ray cluster may take to save themselves."""


def variants(scenario: Scenario, axes: Mapping[str, Sequence[Any]]) -> list[Scenario]:
    """The scenario with every combination of values of some of its keys; the name of each says which values it has.

    A value that is text is read as `--set` reads it.
    """
    found: list[Scenario] = []
    for values in itertools.product(*axes.values()):
        table = as_table(scenario)
        for key, value in zip(axes, values, strict=True):
            if isinstance(value, str):
                table = override(table, f"{key}={value}")
            else:
                table = with_value(table, key.split("."), value, f"grid: `{key}`")
        marks = [f"{key.rpartition('.')[2]}={value}" for key, value in zip(axes, values, strict=True)]
        table["name"] = ",".join([scenario.name, *marks]).replace("/", "_").replace("\\", "_")
        found.append(settings_from(table, Scenario, f"grid: {', '.join(marks)}" if marks else scenario.name))
    return found


def seeds_from(text: str) -> tuple[int, ...]:
    """Seeds as a user writes them: `5` is the first five, `10-19` those ten, `3,7,20-22` those five."""
    wrong = BadInput(f"--seeds {text}: write how many (5), a range (10-19) or a list (3,7,20-22).")
    if re.fullmatch(r"\s*\d+\s*", text):
        count = int(text)
        if count < 1:
            raise wrong
        return tuple(range(count))
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise wrong
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, last + 1)
    if not found or len(set(found)) < len(found):
        raise wrong
    return tuple(found)


def cells(scenarios: Sequence[Scenario], seeds: Sequence[int], out: Path, template: Request) -> list[Request]:
    """The runs of a grid, each scenario with its own method: all of one seed before the next, each with a folder."""
    return [
        replace(
            template,
            scenario=replace(scenario, seed=seed),
            out=out / folder_name(scenario) / f"{scenario.method_name.replace(':', '.')}-{seed}",
            threads=1,
            keep_rows=False,
        )
        for seed in seeds
        for scenario in scenarios
    ]


def finished(request: Request) -> Summary | None:
    """The summary of a run that needs no more playing."""
    assert request.out is not None
    if request.overwrite or not _same_run(request) or RunFolder(request.out).scenario() != request.scenario:
        return None
    try:
        summary = RunFolder(request.out).summary()
    except BadInput:
        return None  # a damaged summary follows from the rows, and is written again when the run ends
    return summary if summary is not None and summary.status == "finished" else None


def _same_run(request: Request) -> bool:
    """Whether the folder holds this very run, limits aside; BadInput where it holds another."""
    assert request.out is not None
    folder = RunFolder(request.out)
    if not folder.holds_run:
        return False
    if differs := difference(folder.scenario(), request.scenario):
        raise BadInput(
            f"{request.out} holds a run with other settings: {differs}; give another folder with --out,"
            " or remove this one."
        )
    check_way(folder, request)
    return True


def play_cell(request: Request) -> Summary:
    """Play one run of a grid, or go on with it."""
    _stop_if_asked()
    resume = not request.overwrite and _same_run(request)
    with _Worker.playing:
        return play(replace(request, resume=resume), lambda *_: _stop_if_asked()).summary()


class _Worker:
    """What a process of the pool knows of the world outside its run."""

    stop = c_bool(False)
    """Whether the grid is to end, in memory that all its processes share. There is no lock, as an Event has one: a
    process that is interrupted while it looks, and sets the Event then, would wait for itself for ever."""
    orphan = False
    """Whether the grid's own process has been killed."""
    playing = threading.Lock()
    """Held during a run."""


def _stop_if_asked() -> None:
    if _Worker.orphan or _Worker.stop.value:
        raise KeyboardInterrupt


def _end_with_the_grid() -> None:
    """End a worker whose grid was killed, after the round in hand: it would go on, and then wait for work forever."""
    grid = multiprocessing.parent_process()
    assert grid is not None
    grid.join()
    _Worker.orphan = True
    with _Worker.playing:
        os._exit(1)


def _begin_worker(stop: c_bool, prepare: Callable[[], None] | None) -> None:
    """Ctrl-C reaches every process of a terminal: it ends the run in hand, not an idle worker."""

    def interrupted(*_: object) -> None:
        stop.value = True
        if _Worker.playing.locked():
            raise KeyboardInterrupt

    _Worker.stop = stop
    threading.Thread(target=_end_with_the_grid, daemon=True).start()
    signal.signal(signal.SIGINT, interrupted)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if prepare is not None:
        prepare()


def play_all(
    requests: Sequence[Request], jobs: int, prepare: Callable[[], None] | None = None
) -> Iterator[tuple[Request, Summary]]:
    """Play runs in `jobs` processes, each of which calls `prepare` first; each run as it ends.

    Where one fails, or the user interrupts, the others are stopped after the round in hand; each can be resumed.
    """
    processes = workers_with(TRAINING if any(request.train for request in requests) else __name__)
    stop = processes.RawValue(c_bool, False)
    with ProcessPoolExecutor(jobs, mp_context=processes, initializer=_begin_worker, initargs=(stop, prepare)) as pool:
        try:
            with no_interrupt(), without_script():
                waiting: dict[Future[Summary], Request] = {pool.submit(play_cell, r): r for r in requests}
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BaseException:
            stop.value = True
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def play_on_ray(
    requests: Sequence[Request], address: str, jobs: int | None = None
) -> Iterator[tuple[Request, Summary]]:
    """Play runs on a Ray cluster; `local` starts one here, of `jobs` cores. The folders must be on a shared disk."""
    try:
        import ray
    except ImportError:
        raise BadInput("--ray needs an extra: pip install 'tramfl[ray]'.") from None
    if not requests:
        return
    here: dict[str, Any] = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **here)
    except (ConnectionError, ValueError, RuntimeError, ImportError) as error:
        raise BadInput(
            f"--ray {address}: no Ray cluster answers there ({str(error).strip().splitlines()[0]}); give the address"
            " of one, or --ray local to start one on this machine."
        ) from None
    try:
        remote: Any = ray.remote(num_cpus=1, max_retries=0)(play_cell)
        waiting = {remote.remote(_absolute(request)): request for request in requests}
        try:
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(done), ray.get(done)
        except ray.exceptions.RayTaskError as error:
            # Its own text is a traceback of the worker.
            raise error.cause from None
        finally:
            if waiting:
                _cancel_on_ray(list(waiting))
    finally:
        ray.shutdown()


def _cancel_on_ray(runs: list[Any]) -> None:
    """Interrupt runs as Ctrl-C does, and give them the time to save what they have."""
    import ray

    for run in runs:
        ray.cancel(run)
    ray.wait(runs, num_returns=len(runs), timeout=CANCEL_SECONDS)


def _absolute(request: Request) -> Request:
    """Workers run in another folder: paths must not depend on this one."""
    assert request.out is not None
    data = request.data_dir.absolute() if request.data_dir else None
    return replace(request, out=request.out.absolute(), data_dir=data)

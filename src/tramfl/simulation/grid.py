"""Many runs at once: processes with one thread each on this machine, or the same grid on a Ray cluster.

A grid picks up where it stopped: a folder with the same scenario is skipped if its run is finished and resumed if
it is not.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tramfl.config import Scenario
from tramfl.notation import BadInput
from tramfl.record import SUMMARY_FILE, Summary
from tramfl.simulation.folder import RunFolder
from tramfl.simulation.play import Request, play


def cells(
    scenarios: Sequence[Scenario], policies: Sequence[str], seeds: Sequence[int], out: Path, template: Request
) -> list[Request]:
    """The runs of a grid, all policies of one seed before the next seed, each with its own folder."""
    return [
        replace(
            template,
            scenario=replace(scenario, policy=policy, seed=seed),
            out=out / scenario.name / f"{policy}-{seed}",
            threads=1,
        )
        for seed in seeds
        for scenario in scenarios
        for policy in policies
    ]


def finished(request: Request) -> Summary | None:
    """The summary of a run that needs no more playing."""
    assert request.out is not None
    path = request.out / SUMMARY_FILE
    if request.overwrite or not path.exists() or not _same_run(request):
        return None
    summary = msgspec.json.decode(path.read_bytes(), type=Summary)
    return summary if summary.status == "finished" else None


def _same_run(request: Request) -> bool:
    """Whether the folder holds this very run; BadInput where it holds another."""
    assert request.out is not None
    folder = RunFolder(request.out)
    if not folder.holds_run:
        return False
    if folder.scenario() != request.scenario:
        raise BadInput(
            f"{request.out} holds a run with other settings; add --overwrite, or --out for another folder."
        )
    return True


def play_cell(request: Request) -> Summary:
    """Play one run of a grid, or go on with it."""
    resume = not request.overwrite and _same_run(request)
    return play(replace(request, resume=resume)).summary()


def play_all(
    requests: Sequence[Request], jobs: int, prepare: Callable[[], None] | None = None
) -> Iterator[tuple[Request, Summary]]:
    """Play runs in `jobs` processes, each of which calls `prepare` first; each run as it ends."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=prepare) as pool:
        waiting: dict[Future[Summary], Request] = {pool.submit(play_cell, r): r for r in requests}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def play_on_ray(requests: Sequence[Request], address: str) -> Iterator[tuple[Request, Summary]]:
    """Play runs on a Ray cluster; `local` starts one on this machine. The folders must be on a shared disk."""
    try:
        import ray
    except ImportError:
        raise BadInput("--ray needs an extra: pip install 'tramfl[ray]'.") from None
    try:
        ray.init(
            address=None if address == "local" else address,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError) as error:
        raise BadInput(f"--ray {address}: no Ray cluster answers there ({str(error).splitlines()[0]}).") from None
    try:
        remote: Any = ray.remote(num_cpus=1)(play_cell)
        waiting = {remote.remote(_absolute(request)): request for request in requests}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done), ray.get(done)
    finally:
        ray.shutdown()


def _absolute(request: Request) -> Request:
    """Workers run in another folder: paths must not depend on this one."""
    assert request.out is not None
    data = request.data_dir.absolute() if request.data_dir else None
    return replace(request, out=request.out.absolute(), data_dir=data)
